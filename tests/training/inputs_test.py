"""Files that a run reads are those that it was started with."""

import dataclasses
import json
import logging
import types

import pytest

from grpo_jax.data import sources
from grpo_jax.training import inputs, loop
from tests.experiments import tiny_config
from tests.training.problem import problem_test

ROWS = [{"prompt": f"{i} + 1 =", "answer": str(i + 1)} for i in range(8)]


@pytest.fixture
def read(tmp_path, monkeypatch):
  """Says what a run with files of several kinds reads."""
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
  for name, content in {
    "my_pkg/verifiers.py": "def length(completions): ...",
    "train.jsonl": "\n".join(map(json.dumps, ROWS)),
    "test.jsonl": "{}",
    "left_out.json": "[]",
    "words.txt": "some words",
    "model/config.json": '{"model_type": "qwen2"}',
    "model/tokenizer.json": "{}",
    "model/model.safetensors": "weights",
    "sets/gsm8k/1.0.0/gsm8k-train.array_record": "rows",
  }.items():
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
  config = problem_test._text_config(
    data__train_path=str(tmp_path / "train.jsonl"),
    data__eval_path=str(tmp_path / "test.jsonl"),
    data__quarantine=str(tmp_path / "left_out.json"),
    data__tokenizer=str(tmp_path / "model"),
    log__name=str(tmp_path / "run"),
    rewards__functions=("my_pkg.verifiers:length",),
    rewards__weights=(1.0,),
    rewards__options={"length": {"words": str(tmp_path / "words.txt")}},
  )
  tfds = problem_test._text_config(
    data__source="tfds",
    data__name="gsm8k",
    data__train_path="",
    data__eval_path="",
  )
  return lambda: inputs.digests(config) | inputs.digests(tfds)


@pytest.mark.parametrize(
  "name",
  [
    *("train.jsonl", "test.jsonl", "left_out.json", "words.txt"),
    *("model/config.json", "model/tokenizer.json", "model/model.safetensors"),
    "sets/gsm8k/1.0.0/gsm8k-train.array_record",
  ],
)
def test_a_file_that_was_replaced_is_named(tmp_path, read, name):
  workdir = tmp_path / "run"
  workdir.mkdir()
  inputs.check(workdir, read())  # Of a run without a record.
  inputs.save(workdir, read())
  (workdir / "config.json").write_text("{}")  # Of the run itself.
  inputs.check(workdir, read())
  path = tmp_path / name
  before = path.read_text()
  path.write_text('{"model_type": "qwen3"}')
  with pytest.raises(ValueError, match=rf"{path} has another content\. A run"):
    inputs.check(workdir, read())
  path.unlink()
  with pytest.raises(ValueError, match=f"{path} is not there any more"):
    inputs.check(workdir, read())
  path.write_text(before)
  inputs.check(workdir, read())


def test_images_of_records_are_files_too(tmp_path):
  (tmp_path / "a.png").write_text("an image")
  path = tmp_path / "train.jsonl"
  path.write_text(json.dumps({"prompt": "<image>", "image": "a.png"}))
  config = problem_test._text_config(
    data__format="", data__train_path=str(path), data__eval_path=""
  )
  data = dataclasses.replace(
    config.data, images=("image",), max_images=1, max_patches=4
  )
  config = dataclasses.replace(config, data=data)
  source = sources.JsonlSource(path, images=("image",))
  made = types.SimpleNamespace(train=source, held_out=source)
  inputs.save(tmp_path, inputs.digests(config, made))
  (tmp_path / "a.png").write_text("another one")
  with pytest.raises(ValueError, match=r"a\.png has another content"):
    inputs.check(tmp_path, inputs.digests(config, made))


@pytest.mark.parametrize("is_checkpoint", [True, False])
@pytest.mark.parametrize(
  "name", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"]
)
def test_a_template_that_was_added_is_named(
  tmp_path, read, name, is_checkpoint
):
  if not is_checkpoint:  # A folder with a tokenizer alone.
    (tmp_path / "model/config.json").unlink()
  inputs.save(tmp_path, read())
  path = tmp_path / "model" / name
  path.parent.mkdir(exist_ok=True)
  path.write_text("{{ messages }}")
  with pytest.raises(ValueError, match=f"{name} was not there"):
    inputs.check(tmp_path, read())


def test_code_may_be_corrected(tmp_path, read, caplog):
  inputs.save(tmp_path, read())
  (tmp_path / "my_pkg/verifiers.py").write_text("def length(prompts): ...")
  with caplog.at_level(logging.WARNING):
    inputs.check(tmp_path, read())
  assert "other code than it was started with" in caplog.text
  assert "my_pkg/verifiers.py" in caplog.text


def test_of_a_large_file_parts_are_read(tmp_path, monkeypatch):
  monkeypatch.setattr(inputs, "_BLOCK", 4)
  monkeypatch.setattr(inputs, "_NUM_PLACES", 3)
  path, seen = tmp_path / "large", set()
  text = "0123456789" * 2
  for place in (None, 0, 9, 19, 5):
    made = text if place is None else f"{text[:place]}x{text[place + 1 :]}"
    path.write_text(made)
    seen.add(inputs._read(path, (len(seen), len(made))))
  assert len(seen) == 4  # The last change is between two parts.


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_data(tmp_path):
  path = tmp_path / "train.jsonl"
  path.write_text("\n".join(map(json.dumps, ROWS)))
  config = tiny_config.get_config("on_host")
  config.phases = ("rl",)
  config.data.train_path = str(path)
  config.data.format = ""
  config.rl.steps = 1
  loop.train(config, tmp_path / "run")
  path.write_text("\n".join(map(json.dumps, ROWS[1:])))
  with pytest.raises(ValueError, match=f"{path} has another content"):
    loop.train(config, tmp_path / "run")

"""A checkpoint that no run has trained, evaluated on files of prompts."""

import json
import math
import re

import jax
import numpy as np
import pytest

import grpo_jax
from experiments.parity import outputs
from grpo_jax.data import tokenizer
from grpo_jax.models.hf import weights
from grpo_jax.training.evaluation import data_sets
from tests.cli import checkpoint_run_test
from tests.experiments import command

pytestmark = pytest.mark.slow

NAMES = {
  "long": ("Ada", "Bela", "Carl", "Dora", "Emil"),
  "short": ("Fay", "Gus"),
}
# Right is what holds a letter of the name: random text, sometimes.
REWARDS = """
def letters(prompts, completions, ids, extras):
  return [
    float(bool(set(extra["answer"].lower()) & set(text.lower())))
    for text, extra in zip(completions, extras, strict=True)
  ]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """`model`, `long.jsonl` with two domains, `short.jsonl` and a reward."""
  root = tmp_path_factory.mktemp("checkpoint")
  checkpoint_run_test.make(root, "qwen2")
  for name, people in NAMES.items():
    rows = [
      {"prompt": f"Greet {person}: ", "answer": person, "extras": {}}
      for person in people
    ]
    if name == "long":
      for number, row in enumerate(rows):
        row["extras"] = {"domain": number // 4}
    text = "\n".join(map(json.dumps, rows))
    (root / f"{name}.jsonl").write_text(text)
  (root / "evaluate_rewards.py").write_text(REWARDS)
  return root


@pytest.fixture(scope="module")
def opened(folder):
  config = checkpoint_run_test.small(folder, "")
  config.rewards.functions = ("evaluate_rewards:letters",)
  config.data.train_path = str(folder / "long.jsonl")
  config.model.dtype = config.model.param_dtype = "float32"
  before = config.to_json()
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(folder)
    with grpo_jax.load_checkpoint(config, str(folder / "model")) as found:
      assert config.to_json() == before
      yield found


def test_a_checkpoint_has_its_own_weights_and_no_step(folder, opened):
  _, params = weights.load(folder / "model", param_dtype="float32")
  jax.tree.map(np.testing.assert_array_equal, opened.params, params)
  assert opened.step is None


def test_a_checkpoint_completes_prompts_as_the_model_does_alone(folder, opened):
  (one,) = data_sets.opened(opened.loaded, {}, 3)
  (groups,) = data_sets.complete(opened.loaded, [one], data_sets.Draws())
  ours, params = weights.load(folder / "model", param_dtype="float32")
  text = tokenizer.Tokenizer(folder / "model")
  prompts = [f"Greet {name}: " for name in NAMES["long"][:3]]
  assert [row.prompt for (row,) in groups] == prompts
  ids, mask = np.zeros((3, 16), int), np.zeros((3, 16), bool)
  for number, prompt in enumerate(map(text.encode, prompts)):
    ids[number, -len(prompt) :] = prompt
    mask[number, -len(prompt) :] = True
  tokens = np.asarray(outputs.greedy(ours, params, ids, mask, 4))
  assert [row.text for (row,) in groups] == [
    text.decode(tokens[number, : row.num_tokens].tolist())
    for number, (row,) in enumerate(groups)
  ]


def test_data_sets_and_samples_from_python(folder, opened):
  data = {name: str(folder / f"{name}.jsonl") for name in NAMES}
  found = opened.evaluate(temperature=1.0, num_samples=4, data=data)
  for name in NAMES:
    of = f"eval/{name}/"
    assert found[f"{of}pass@1"] == pytest.approx(found[f"{of}accuracy"])
    assert found[f"{of}avg@4"] == pytest.approx(found[f"{of}accuracy"])
    assert found[f"{of}pass@1"] <= found[f"{of}pass@2"] <= found[f"{of}pass@4"]
    assert found[f"{of}pass@4"] > 0
    assert 0 < found[f"{of}truncated"] <= 1
  for figure in ("pass@4", "maj@2", "reward", "length"):
    assert found[f"eval/macro/{figure}"] == pytest.approx(
      (found[f"eval/long/{figure}"] + found[f"eval/short/{figure}"]) / 2
    )
  # One data set alone has the same draws, whatever was before it.
  alone = opened.evaluate(
    temperature=1.0, num_samples=4, data={"short": data["short"]}
  )
  for name in ("accuracy", "maj@4", "length"):
    assert alone[f"eval/short/{name}"] == found[f"eval/short/{name}"]
  one = opened.evaluate(num_prompts=2)
  assert one["eval/accuracy"] in (0.0, 0.5, 1.0)
  assert not any(re.search("@|macro/", name) for name in one)
  assert math.isnan(one["eval/length_right"]) == (one["eval/accuracy"] == 0)
  with pytest.raises(ValueError, match="all samples of a prompt would be the"):
    opened.evaluate(num_samples=2)


def test_lengths_may_differ_from_those_of_the_run(opened):
  (one,) = data_sets.opened(opened.loaded, {}, 2)
  longer = data_sets.with_lengths(opened.loaded, max_new_tokens=7)
  (groups,) = data_sets.complete(longer, [one], data_sets.Draws())
  assert {row.num_tokens for (row,) in groups if not row.terminated} == {7}
  assert opened.loaded.problem.max_new_tokens == 4
  shorter = data_sets.with_lengths(opened.loaded, max_prompt_len=2)
  with pytest.raises(ValueError, match=r"max_prompt_len=2: .*raise it"):
    data_sets.complete(shorter, [one], data_sets.Draws())


def run(folder, *arguments):
  sizes = {
    "data.max_prompt_len": 16,
    "sampling.max_new_tokens": 6,
    "rewards.functions": "('evaluate_rewards:letters',)",
  }
  return command.run(
    "evaluate",
    "--checkpoint=model",
    f"--config={command.ROOT / 'configs/checkpoint.py'}",
    *(f"--config.{name}={value}" for name, value in sizes.items()),
    *arguments,
    cwd=folder,
  )


def test_the_program_evaluates_a_checkpoint_on_several_files(folder):
  before = {path.name for path in folder.iterdir()}
  status, out, err = run(
    folder,
    *("--data=long=long.jsonl", "--data=short=short.jsonl", "--num_samples=3"),
    *("--top_p=0.9", "--out=out.json", "--completions=lines.jsonl"),
  )
  assert status == 0, err
  assert max(map(len, out.splitlines())) <= 80
  assert {path.name for path in folder.iterdir()} - before <= {
    *("out.json", "lines.jsonl", "__pycache__")
  }
  said = json.loads((folder / "out.json").read_text())
  assert (said["policy"], said["step"], said["top_p"]) == ("model", None, 0.9)
  assert list(said["data_sets"]) == ["long", "short"]
  long = said["data_sets"]["long"]
  assert [x["num_prompts"] for x in long["domains"].values()] == [4, 1]
  assert "domains" not in said["data_sets"]["short"]
  rows = [json.loads(x) for x in (folder / "lines.jsonl").open()]
  assert [row["data_set"] for row in rows] == ["long"] * 5 + ["short"] * 2
  assert [row["domain"] for row in rows] == [*"00001", None, None]
  for name, section in said["data_sets"].items():
    groups = [row["samples"] for row in rows if row["data_set"] == name]
    shares = [sum(x["correct"] for x in group) / 3 for group in groups]
    value = section["figures"]["avg@3"]["value"]
    assert value == pytest.approx(np.mean(shares))
    assert re.search(rf"\n  {name} +{len(groups)} .* {value:.3f} ", out)
  values = [x["figures"]["pass@3"]["value"] for x in said["data_sets"].values()]
  mean = said["macro"]["pass@3"]["value"]
  assert mean == pytest.approx(sum(values) / 2)
  assert re.search(rf"\n  mean of data sets .* {mean:.3f} ", out)


# A process for each mistake.
def test_mistakes_are_one_message_and_nothing_is_written(folder):
  before = sorted(path.name for path in folder.iterdir())
  config = f"--config={command.ROOT / 'configs/checkpoint.py'}"
  mistakes = (
    (["--workdir=a", "--checkpoint=model"], "needs one of them"),
    (["--checkpoint=model", config, "--step=1"], "has no --step"),
    (["--workdir=a", "--data=b=x", "--data=b=y"], "x has the same name"),
    (["--workdir=a", "--out=none/o.json"], "there is no folder none"),
  )
  results = command.finish_all(
    [command.start("evaluate", *x, cwd=folder) for x, _ in mistakes]
  )
  for (status, out, err), (arguments, message) in zip(
    results, mistakes, strict=True
  ):
    assert (status, out) == (2, ""), arguments
    assert message in " ".join(err.split())
    assert "Traceback" not in err
  assert sorted(path.name for path in folder.iterdir()) == before

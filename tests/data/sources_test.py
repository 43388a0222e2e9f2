"""Records: generated, read from TFDS without TensorFlow, read from JSONL."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from grpo_jax.data import formats, sources
from grpo_jax.tasks import copy

SAMPLE = pathlib.Path(__file__).parent / "gsm8k_sample"

# Prepares the sample as a TFDS dataset in argv[2], reads it back and prints
# its first record. A process of its own, with an empty package `tensorflow`
# on its path, so that any import of TensorFlow would succeed and be seen.
_READ_TFDS = """
import json, sys
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from etils import epath
from grpo_jax.data import formats, sources

sample, root = sys.argv[1:]
lines = epath.Path(sample).read_text(encoding="utf-8").splitlines()
folder = epath.Path(root) / "gsm8k" / "1.0.0"
folder.mkdir(parents=True)
features = tfds.features.FeaturesDict(
    {name: tfds.features.Text() for name in ("question", "answer")}
)
features.save_config(folder)
writer = ArrayRecordWriter(
    str(folder / "gsm8k-train.array_record-00000-of-00001"), "group_size:1"
)
for line in lines:
  writer.write(features.serialize_example(json.loads(line)))
writer.close()
(folder / "dataset_info.json").write_text(json.dumps({
    "name": "gsm8k", "version": "1.0.0", "fileFormat": "array_record",
    "moduleName": "tensorflow_datasets.text.gsm8k.gsm8k",
    "splits": [{
        "name": "train", "numBytes": "1", "shardLengths": [str(len(lines))],
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
    }],
}))
source = sources.TfdsSource("gsm8k", "train")
records = [source[i] for i in range(len(source))]
assert "tensorflow" not in sys.modules
print(json.dumps(records))
"""


@pytest.mark.slow
def test_tfds_gives_the_records_of_the_sample_without_tensorflow(tmp_path):
  (tmp_path / "tensorflow").mkdir()
  (tmp_path / "tensorflow" / "__init__.py").touch()
  repository = pathlib.Path(sources.__file__).parents[2]
  data_dir = tmp_path / "data"
  result = subprocess.run(
    [
      sys.executable,
      "-c",
      _READ_TFDS,
      str(SAMPLE / "train.jsonl"),
      str(data_dir),
    ],
    env={
      **os.environ,
      "PYTHONPATH": f"{tmp_path}{os.pathsep}{repository}",
      "TFDS_DATA_DIR": str(data_dir),
    },
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  jsonl = sources.JsonlSource(SAMPLE / "train.jsonl", format="gsm8k")
  assert json.loads(result.stdout) == list(jsonl)


def test_tfds_without_data_says_what_to_set(tmp_path, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  with pytest.raises(FileNotFoundError, match=r"Set TFDS_DATA_DIR .*'jsonl'"):
    sources.TfdsSource("gsm8k", "train")
  with pytest.raises(ValueError, match="'mnist': not one of the datasets"):
    sources.TfdsSource("mnist", "train")


def test_gsm8k_answers_and_reasoning_are_parsed():
  record = formats.gsm8k_record(
    {
      "question": b" How many? ",
      "answer": b"He has 2*3=<<2*3=6>>6.\nSo <<6*200=1200>>1,200.\n#### 1,200",
    }
  )
  assert record == {
    "prompt": "How many?",
    "answer": "1200",
    "completion": "He has 2*3=6.\nSo 1,200.",
    "extras": {},
  }
  with pytest.raises(ValueError, match="no '####'"):
    formats.gsm8k_record({"question": "a", "answer": "6"})
  with pytest.raises(ValueError, match=r"\['q'\]; need 'question'"):
    formats.gsm8k_record({"q": "a"})


@pytest.mark.parametrize(("split", "size"), [("train", 7473), ("test", 1319)])
def test_every_gsm8k_question_has_a_numeric_answer(split, size):
  if "TFDS_DATA_DIR" in os.environ:
    source = sources.TfdsSource("gsm8k", split)
    assert len(source) == size
  else:
    source = sources.JsonlSource(SAMPLE / f"{split}.jsonl", format="gsm8k")
    assert len(source) == 64
  for i in range(len(source)):
    record = source[i]
    float(record["answer"])  # Raises where it is not a number.
    assert record["prompt"]
    assert record["completion"]
    assert "<<" not in record["completion"]
    assert "#" not in record["completion"][-8:]


def test_task_records_depend_on_seed_index_and_split_only():
  task = copy.make(length=8)

  def prompts(split, seed):
    source = sources.TaskSource(task, split, seed, num_examples=20)
    return np.stack([source[i]["prompt"] for i in range(len(source))])

  base = prompts("train", 0)
  np.testing.assert_array_equal(prompts("train", 0), base)
  assert len(np.unique(base, axis=0)) == 20
  assert (prompts("train", 1) != base).any(axis=1).all()
  assert (prompts("test", 0) != base).any(axis=1).all()


def test_task_records_carry_completion_and_extras():
  source = sources.TaskSource(copy.make(length=3), "train", 0, num_examples=2)
  record = source[1]
  answer = record["extras"]["answer"]
  np.testing.assert_array_equal(record["completion"][:-1], answer)
  assert record["answer"] == ""
  with pytest.raises(ValueError, match="num_examples is 0"):
    sources.TaskSource(copy.make(), "train", 0, num_examples=0)


def test_jsonl_fills_in_what_is_optional(tmp_path):
  path = tmp_path / "data.jsonl"
  full = {
    "prompt": "1+1=\u2028",  # A line separator, which JSON may hold.
    "answer": "2",
    "completion": "two",
    "extras": {"level": 1},
  }
  lines = [json.dumps(full, ensure_ascii=False), "", '{"prompt": "x"}']
  path.write_text("\n".join(lines), encoding="utf-8")
  source = sources.JsonlSource(path)
  assert list(source) == [
    full,
    {"prompt": "x", "answer": "", "completion": None, "extras": {}},
  ]


@pytest.mark.parametrize(
  ("line", "message"),
  [
    ("{oops", r"found '\{oops' .*; need a JSON object on one line"),
    ('["x"]', r"need a JSON object"),
    ('{"prompt": null}', r"found 'prompt' = None; need a string"),
    (
      '{"q": "x", "answer": "2"}',
      r"no field 'prompt'; the row has \['answer', 'q'\]\. Name the field of",
    ),
    (
      '{"question": "x", "answer": "#### 2"}',
      r"has \['answer', 'question'\]\. Set config\.data\.format='gsm8k', whi",
    ),
    ('{"problem": "x", "solution": ""}', r"config\.data\.format='math'"),
    ('{"prompt": 3}', r"found 'prompt' = 3; need a string"),
    ('{"prompt": "x", "answer": 2}', r"found 'answer' = 2; need a string"),
    ('{"prompt": "x", "extras": []}', r"'extras' = \[\]; need an object"),
    ('{"prompt": "x", "gold": 2}', r"found the fields \['gold'\]; need only"),
    (
      '{"prompt": "x", "extras": {"domain": "math"}}',
      r"found the domain 'math' in 'extras'; need a number from 0 on",
    ),
    ('{"prompt": "x", "extras": {"domain": -1}}', r"found the domain -1"),
    ('{"prompt": "x", "extras": {"domain": true}}', r"found the domain True"),
  ],
)
def test_jsonl_names_the_bad_line(tmp_path, line, message):
  path = tmp_path / "bad.jsonl"
  path.write_text('{"prompt": "fine"}\n' + line + "\n")
  with pytest.raises(ValueError, match=r"bad\.jsonl:2: .*" + message):
    sources.JsonlSource(path)


def test_domains_are_numbers_of_all_records_or_of_none(tmp_path):
  path = tmp_path / "data.jsonl"
  first, second = (
    json.dumps({"prompt": "x", "extras": {"domain": domain, "note": "n"}})
    for domain in (0, 3)
  )
  path.write_text(f"{first}\n{second}\n")
  extras = [record["extras"] for record in sources.JsonlSource(path)]
  assert extras == [{"domain": 0, "note": "n"}, {"domain": 3, "note": "n"}]
  # An array reaches the program; text stays on the host.
  assert all(isinstance(extra["domain"], np.int32) for extra in extras)
  path.write_text(f'{first}\n{second}\n{{"prompt": "x"}}\n')
  with pytest.raises(
    ValueError, match=r"data\.jsonl: 2 of 3 records .* need all or none"
  ):
    sources.JsonlSource(path)


def test_jsonl_refuses_what_is_not_there(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"no file .*none\.jsonl"):
    sources.JsonlSource(tmp_path / "none.jsonl")
  with pytest.raises(ValueError, match="unknown format 'gsm'"):
    sources.JsonlSource(tmp_path / "none.jsonl", format="gsm")
  (tmp_path / "empty.jsonl").write_text("\n")
  with pytest.raises(ValueError, match="has no records"):
    sources.JsonlSource(tmp_path / "empty.jsonl")

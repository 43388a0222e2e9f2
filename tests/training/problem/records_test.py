"""Each source of text opens by its config, and its stream goes on exactly."""

import json

import numpy as np
import pytest

from grpo_jax.data import pipeline
from grpo_jax.data.encoder import Encoder
from grpo_jax.settings import config as config_lib
from grpo_jax.training.problem import records as records_lib

MATH = {
  "problem": "What is {}?",
  "level": "Level 2",
  "type": "Geometry",
  "solution": r"It is $\boxed{{{}}}$.",
}


class Letters:
  """A tokenizer whose tokens are characters."""

  pad_id, end_ids = 0, (1,)

  def encode(self, text):
    return [ord(letter) for letter in text]

  context_ids = encode


def write_lines(folder, *rows):
  path = folder / "data.jsonl"
  path.write_text("\n".join(map(json.dumps, rows)))
  return str(path)


def write_tfds(folder, name, splits, features):
  """Prepares a dataset as TFDS does, in the array_record format."""
  import tensorflow_datasets as tfds
  from array_record.python.array_record_module import ArrayRecordWriter
  from etils import epath

  place = epath.Path(folder) / name / "1.0.0"
  place.mkdir(parents=True)
  described = tfds.features.FeaturesDict(features)
  described.save_config(place)
  for split, rows in splits.items():
    path = place / f"{name}-{split}.array_record-00000-of-00001"
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for row in rows:
      writer.write(described.serialize_example(row))
    writer.close()
  pattern = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
  info = {
    "name": name,
    "version": "1.0.0",
    "fileFormat": "array_record",
    "moduleName": f"somewhere.{name}",
    "splits": [
      {
        "name": split,
        "numBytes": "1",
        "shardLengths": [str(len(rows))],
        "filepathTemplate": pattern,
      }
      for split, rows in splits.items()
    ],
  }
  (place / "dataset_info.json").write_text(json.dumps(info))


def write_riddles(folder, monkeypatch):
  """A dataset that nothing here knows, and its settings."""
  import tensorflow_datasets as tfds

  monkeypatch.setenv("TFDS_DATA_DIR", str(folder))
  rows = [
    {"riddle": f"riddle {i}?", "gold": i, "hard": i % 3} for i in range(10)
  ]
  features = {
    "riddle": tfds.features.Text(),
    "gold": np.int64,
    "hard": np.int32,
  }
  splits = {"train": rows, "validation": rows[:2]}
  write_tfds(folder, "riddles", splits, features)
  return {
    "source": "tfds",
    "name": "riddles",
    "eval_split": "validation",
    "fields": {
      "prompt": "riddle",
      "answer": "gold",
      "extras": {"hardness": "hard"},
    },
  }


def write_table(folder, monkeypatch, rows):
  """A Parquet file that is read one row at a time, and its settings."""
  import datasets

  cache = str(folder / "cache")
  monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
  path = str(folder / "data.parquet")
  datasets.Dataset.from_list(rows).to_parquet(path)
  return {"source": "datasets", "train_path": path, "streaming": True}


def settings_of(kind, folder, monkeypatch):
  """Settings of `config.data` for each source, with ten prompts or more."""
  if kind == "tfds":
    return write_riddles(folder, monkeypatch)
  if kind == "text":
    path = folder / "prompts.txt"
    path.write_text("".join(f"prompt {i}\n" for i in range(10)))
    return {"source": "text", "train_path": str(path)}
  if kind == "reasoning_gym":
    levels = {"name": "gcd", "levels": ((0, 0), (9, 1))}
    return {"source": "reasoning_gym", "datasets": (levels, {"name": "lcm"})}
  rows = {
    "math": [
      {**MATH, "problem": f"What is {i}?", "solution": rf"$\boxed{{{i}}}$"}
      for i in range(10)
    ],
    "pairs": [
      {"prompt": f"{i} =", "chosen": f"{i}", "rejected": "no"}
      for i in range(10)
    ],
    "streaming": [{"prompt": f"prompt {i}"} for i in range(10)],
    "datasets": [
      {"prompt": [{"role": "user", "content": f"prompt {i}"}], "level": i}
      for i in range(10)
    ],
  }[kind]
  if kind == "datasets":
    return write_table(folder, monkeypatch, rows)
  return {
    "source": "jsonl",
    "train_path": write_lines(folder, *rows),
    "format": "" if kind == "streaming" else kind,
    "streaming": kind == "streaming",
  }


KINDS = (
  *("tfds", "text", "reasoning_gym", "math", "pairs", "streaming"),
  "datasets",
)


def opened(settings, seed=0):
  config = config_lib.default_config()
  for name, value in settings.items():
    config.data[name] = value
  config.data.tokenizer = "gsm8k"
  config.data.max_prompt_len = 200
  config.sampling.max_new_tokens = 8
  return records_lib.open_sources(config_lib.resolve(config).data, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_goes_on_where_it_was(kind, tmp_path, monkeypatch):
  settings = settings_of(kind, tmp_path, monkeypatch)

  def stream(**changes):
    return pipeline.prompt_stream(
      opened(settings).train,
      Encoder(Letters()),
      **{
        "batch_size": 4,
        "max_prompt_len": 400,
        "seed": 3,
        "pad_id": 0,
        **changes,
      },
    )

  def records(batches):
    return [record for batch in batches for record in batch.records]

  original = stream()
  first = records(next(original) for _ in range(3))  # Over an epoch of ten.
  state = json.loads(json.dumps(original.get_state()))
  rest = records(next(original) for _ in range(4))
  fresh = stream()
  fresh.set_state(state)
  assert records(next(fresh) for _ in range(4)) == rest
  halves = [stream(rows=rows) for rows in ([0, 1], [2, 3])]
  for batch in range(3):
    both = [record for half in halves for record in next(half).records]
    assert both == first[4 * batch : 4 * batch + 4]
  assert records([next(stream(seed=4))]) != first[:4]


def test_any_tfds_dataset_opens_by_the_names_of_its_fields(
  tmp_path, monkeypatch
):
  settings = write_riddles(tmp_path, monkeypatch)
  train, held_out, lessons, _ = opened(settings)
  assert (len(train), len(held_out)) == (10, 2)
  assert train[4] == {
    "prompt": "riddle 4?",
    "answer": "4",
    "completion": None,
    "extras": {"hardness": 1},
  }
  assert lessons is train  # No teacher: nothing says how its answers are put.
  sliced = opened({**settings, "train_split": "train[3:5]"}).train
  assert [sliced[i]["answer"] for i in range(len(sliced))] == ["3", "4"]
  for changes, message in (
    ({"fields": {"prompt": "ridle"}}, r"no field 'ridle'; the dataset has \["),
    ({"train_split": "trian"}, r"has the splits \['train', 'validation'\]"),
    ({"fields": {}}, "'riddles': not one of the .* set config.data.fields"),
    ({"fields": {}, "format": "math"}, "need 'problem' and 'solution'"),
  ):
    with pytest.raises(ValueError, match=message):
      opened({**settings, **changes})


@pytest.mark.parametrize(
  ("separator", "prompts"),
  [("\n", ["one", "two", "three"]), ("\n\n", ["one\ntwo", "three"])],
)
def test_prompts_of_a_text_are_lines_or_paragraphs(
  tmp_path, separator, prompts
):
  path = tmp_path / "prompts.txt"
  path.write_bytes(b"\xef\xbb\xbfone\r\ntwo \n \n\n\nthree\n")
  train, held_out, *_ = opened(
    {"source": "text", "train_path": str(path), "separator": separator}
  )
  assert [train[i]["prompt"] for i in range(len(train))] == prompts
  assert held_out[0] == {
    "prompt": prompts[0],
    "answer": "",
    "completion": None,
    "extras": {},
  }


def test_a_wrong_text_is_refused(tmp_path):
  path = tmp_path / "prompts.txt"
  settings = {"source": "text", "train_path": str(path)}
  with pytest.raises(FileNotFoundError, match=r"no file .*prompt on each line"):
    opened(settings)
  path.write_bytes(b"\n \n")
  with pytest.raises(ValueError, match="has no prompts"):
    opened(settings)
  with pytest.raises(ValueError, match="separator is empty"):
    opened({**settings, "separator": ""})
  path.write_bytes(b"\xff")
  with pytest.raises(ValueError, match="need text in UTF-8"):
    opened(settings)


def test_worked_answers_of_gsm8k_alone_get_a_teacher(tmp_path, monkeypatch):
  settings = settings_of("math", tmp_path, monkeypatch)
  train, _, lessons, _ = opened(settings)
  assert lessons is train
  assert train[3]["completion"] == r"$\boxed{3}$"
  path = write_lines(tmp_path, {"question": "1 + 1?", "answer": "so #### 2"})
  lessons = opened(
    {"source": "jsonl", "format": "gsm8k", "train_path": path}
  ).supervised
  assert lessons[0]["completion"] == "<think>so</think>\n<answer>2</answer>"


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"source": "text"}, "needs config.data.train_path, a file with a prompt"),
    ({"source": "task", "streaming": True}, "data.streaming=True is for"),
    ({"source": "tfds", "separator": "x"}, r"data\.separator='x' is for"),
    ({"source": "task", "fields": {"prompt": "x"}}, "'tfds' or 'jsonl'"),
    ({"source": "tfds", "datasets": ({"name": "x"},)}, "data.datasets="),
    ({"source": "gym"}, "data.source got 'gym'"),
    ({"source": "reasoning_gym"}, "datasets is empty"),
    ({"rejected_share": 0.5}, "is for a file of pairs"),
    ({"drop_tag_probability": 0.5}, "format='gsm8k', and the format is"),
    ({"end_tokens": ("x",)}, "the task 'add' makes its own of ids"),
  ],
)
def test_settings_of_another_source_are_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    opened(settings)

"""Random-access sources of records: synthetic tasks, TFDS, JSON lines.

A record is a dict with these keys:

| key        | value                                                          |
|------------|----------------------------------------------------------------|
| prompt     | text, or int32 token ids                                       |
| answer     | the final answer as text, "" if there is none                  |
| completion | what a teacher would write (text or int32 ids), or None        |
| extras     | name -> value; NumPy values are batched for in-graph verifiers |
| observed   | True on ids of the completion to read and not to imitate (the  |
|            | environment's); None or absent if there are none               |

A source has `len(source)` and `source[i]`, and `source[i]` is always the same
record: order, epochs and batches are the business of `pipeline`.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import zlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from etils import epath

Record = dict[str, Any]


class Source(Protocol):
  """What `pipeline` reads from."""

  def __len__(self) -> int: ...

  def __getitem__(self, index: int) -> Record: ...


class TaskSource:
  """Records of a synthetic task, generated when they are read."""

  def __init__(self, task: Any, split: str, seed: int, num_examples: int):
    """Describes `num_examples` records; nothing is stored.

    Args:
      task: A `tasks.task.Task`; its `example` makes the records.
      split: "train" or "test"; each draws its own random numbers.
      seed: Non-negative. Record i depends on (seed, i, split) only.
      num_examples: Records in an epoch, at least 1; the order of an epoch
        takes 8 bytes for each.
    """
    if num_examples < 1:
      raise ValueError(
        f"TaskSource: num_examples is {num_examples}; it must be at least 1."
      )
    self.task = task
    self._split = split
    self._split_key = zlib.crc32(split.encode())
    self._seed = seed
    self._num_examples = num_examples

  def __len__(self) -> int:
    return self._num_examples

  def __getitem__(self, index: int) -> Record:
    rng = np.random.default_rng((self._seed, index, self._split_key))
    example = self.task.example(rng, self._split)
    return {
      "prompt": example.prompt,
      "answer": "",
      "completion": example.completion,
      "extras": example.extras,
      "observed": example.observed,
    }


_CALCULATOR = re.compile(r"<<[^>]*>>")


def gsm8k_record(raw: dict[str, Any]) -> Record:
  """Converts a GSM8K question with its worked solution.

  The solution ends in `#### 1,234`. The answer loses its thousands separators;
  the reasoning before it loses the calculator annotations `<<2*3=6>>`.

  Args:
    raw: `question` and `answer` as text or UTF-8 bytes.

  Returns:
    A record whose completion is the reasoning alone, for `teacher`.

  Raises:
    ValueError: A field is missing or no text, or there is no `####` line.

  Source: Cobbe et al., "Training Verifiers to Solve Math Word Problems",
  arXiv:2110.14168.
  """
  if not {"question", "answer"} <= raw.keys():
    raise ValueError(
      f"gsm8k_record: found the fields {sorted(raw)}; need 'question' and"
      " 'answer'."
    )
  question, solution = _text_of(raw, "question"), _text_of(raw, "answer")
  reasoning, separator, answer = solution.rpartition("####")
  if not separator:
    raise ValueError(
      f"gsm8k_record: the solution {solution[-60:]!r} has no '####' before"
      " its final answer."
    )
  return {
    "prompt": question.strip(),
    "answer": answer.strip().replace(",", ""),
    "completion": _CALCULATOR.sub("", reasoning).strip(),
    "extras": {},
  }


def _text_of(raw: dict[str, Any], field: str) -> str:
  value = raw[field]
  if isinstance(value, bytes):
    value = value.decode()
  if not isinstance(value, str):
    raise ValueError(
      f"gsm8k_record: found {field!r} = {value!r:.60}; need a string."
    )
  return value


# Raw rows of a known dataset -> records; shared by TFDS and JSON lines.
FORMATS: dict[str, Callable[[dict[str, Any]], Record]] = {
  "gsm8k": gsm8k_record,
}


class TfdsSource:
  """A prepared TensorFlow Datasets split, read without TensorFlow."""

  def __init__(self, name: str, split: str, data_dir: str | None = None):
    """Opens a dataset that has been prepared in the array_record format.

    Args:
      name: TFDS name, with an entry in `FORMATS`: "gsm8k", "gsm8k:1.0.0".
      split: TFDS split, such as "train" or "train[:100]".
      data_dir: Local or `gs://` folder of datasets; by default the
        environment variable TFDS_DATA_DIR, else ~/tensorflow_datasets.

    Raises:
      ValueError: `FORMATS` does not know the dataset.
      FileNotFoundError: The folder does not hold the dataset.
    """
    base_name = re.split("[:/]", name)[0]
    if base_name not in FORMATS:
      raise ValueError(
        f"TfdsSource: no conversion for {name!r}; known: {sorted(FORMATS)}."
        " Add a function to sources.FORMATS, or use data.source='jsonl'."
      )
    data_dir = data_dir or os.environ.get(
      "TFDS_DATA_DIR", "~/tensorflow_datasets"
    )
    root = epath.Path(data_dir).expanduser()
    if not (root / base_name).exists():
      raise FileNotFoundError(
        f"TfdsSource: {root} has no {base_name!r}. Set TFDS_DATA_DIR to a"
        " folder with the prepared dataset (array_record), or use"
        " data.source='jsonl'."
      )
    # Late, so that sources without TFDS start half a second sooner.
    import tensorflow_datasets as tfds

    self._convert = FORMATS[base_name]
    self._rows = tfds.data_source(name, split=split, data_dir=root)

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: int) -> Record:
    return self._convert(self._rows[index])


# Field -> (type, what the error message says, default; required if `...`).
_FIELDS: dict[str, tuple[type, str, Any]] = {
  "prompt": (str, "a string", ...),
  "answer": (str, "a string", ""),
  "completion": (str, "a string", None),
  "extras": (dict, "an object", {}),
}


def _plain_record(raw: dict[str, Any]) -> Record:
  """Checks a JSON object whose fields are those of a record."""
  record: dict[str, Any] = {}
  for field, (kind, description, default) in _FIELDS.items():
    value = raw.get(field)
    if value is None and default is not ...:
      value = default
    elif not isinstance(value, kind):
      raise ValueError(f"found {field!r} = {value!r:.60}; need {description}.")
    record[field] = value
  if unknown := raw.keys() - _FIELDS.keys():
    raise ValueError(
      f"found the fields {sorted(unknown)}; need only {list(_FIELDS)}. Put"
      " what a verifier reads under 'extras'."
    )
  if "domain" in (extras := record["extras"]):
    # An array, so that it reaches the loss (weights of the KL by domain).
    domain = extras["domain"]
    if type(domain) is not int or not 0 <= domain <= np.iinfo(np.int32).max:
      raise ValueError(
        f"found the domain {domain!r:.60} in 'extras'; need a number from 0 on,"
        " of at most 31 bits."
      )
    record["extras"] = {**extras, "domain": np.int32(extras["domain"])}
  return record


# Lists and objects within each other: the next reader may follow them with a
# call for each.
_MAX_DEPTH = 64
# Characters of a text of a record. To tokenize a million takes about a second,
# and what is longer is a file in the place of a prompt.
_MAX_TEXT = 2**22


def _parsed(line: bytes) -> dict[str, Any] | None:
  """The object on a line of UTF-8; None if the line is empty.

  Raises:
    ValueError: It is none, or too deep, or has half a surrogate pair, which no
      tokenizer and no file takes.
  """
  text = line.decode("utf-8")
  if not text.strip():
    return None
  try:
    raw = json.loads(text)
  except json.JSONDecodeError as error:
    raise ValueError(
      f"found {text!r:.60} ({error}); need a JSON object on one line."
    ) from error
  except RecursionError as error:
    raise _too_deep(text) from error
  if not isinstance(raw, dict):
    raise ValueError(f"found {text!r:.60}; need a JSON object.")
  level: list[Any] = [raw]
  for _ in range(_MAX_DEPTH):
    inside = [x.values() if isinstance(x, dict) else x for x in level]
    level = [x for xs in inside for x in xs if isinstance(x, (dict, list))]
  if level:
    raise _too_deep(text)
  if "\\ud" in text.lower():  # How JSON writes a surrogate.
    json.dumps(raw, ensure_ascii=False).encode()
  return raw


def _sized(record: Record) -> Record:
  """The record, if none of its texts is too long."""
  for field in ("prompt", "answer", "completion"):
    if len(record[field] or "") > _MAX_TEXT:
      raise ValueError(
        f"found {field!r} with {len(record[field])} characters; need at most"
        f" {_MAX_TEXT}."
      )
  return record


def _too_deep(text: str) -> ValueError:
  return ValueError(
    f"found {text!r:.60}, with lists and objects within each other; need at"
    f" most {_MAX_DEPTH} of them."
  )


class JsonlSource:
  """JSON objects, one a line, held in memory."""

  def __init__(self, path: epath.PathLike, format: str | None = None):
    """Reads and checks the whole file.

    Args:
      path: Local or `gs://` file, in UTF-8, with or without a mark of it.
        Each line has `prompt` and may have `answer`, `completion` (strings of
        up to 4 million characters) and `extras` (an object, which host
        verifiers see). Empty lines are skipped. The entry `domain` of all
        `extras` or of none numbers the domain of a prompt, from 0 on.
      format: Key of `FORMATS` for a file that keeps a dataset's own fields:
        "gsm8k" reads `question` and `answer`.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: A line is malformed (the message has its number), or there
        is none; or unknown format.
    """
    if format is not None and format not in FORMATS:
      raise ValueError(
        f"JsonlSource: unknown format {format!r}; known: {sorted(FORMATS)},"
        " or none for the fields prompt, answer, completion, extras."
      )
    convert = FORMATS[format] if format else _plain_record
    path = epath.Path(path)
    if not path.exists():
      raise FileNotFoundError(
        f"JsonlSource: no file {path}; set config.data.train_path (and"
        " eval_path) to a .jsonl file."
      )
    self._records = []
    lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    for number, line in enumerate(lines, start=1):
      try:
        raw = _parsed(line)
        if raw is not None:
          self._records.append(_sized(convert(raw)))
      except UnicodeError as error:
        raise ValueError(
          f"JsonlSource: {path}:{number}: {error}; need text in UTF-8, without"
          " halves of surrogate pairs."
        ) from error
      except ValueError as error:
        raise ValueError(f"JsonlSource: {path}:{number}: {error}") from error
    if not self._records:
      raise ValueError(f"JsonlSource: {path} has no records; need at least 1.")
    labelled = sum("domain" in record["extras"] for record in self._records)
    if labelled not in (0, len(self._records)):
      raise ValueError(
        f"JsonlSource: {path}: {labelled} of {len(self._records)} records have"
        " a 'domain' in 'extras'; need all or none."
      )

  def __len__(self) -> int:
    return len(self._records)

  def __getitem__(self, index: int) -> Record:
    return self._records[index]

"""Random-access sources of records: synthetic tasks, TFDS, JSON lines, text.

A record is a dict with these keys:

| key        | value                                                          |
|------------|----------------------------------------------------------------|
| prompt     | text, perhaps a `conversations.Conversation`, or int32 ids     |
| answer     | the final answer as text, "" if there is none                  |
| completion | completion of a teacher, likewise, or None                     |
| extras     | name -> value; NumPy values are batched for in-graph verifiers |
| rejected   | completion that was not preferred, in pairs (text)             |
| observed   | True on ids of the completion to read and not to imitate (the  |
|            | environment's); None or absent if there are none               |
| pictures   | images of the prompt, each as `images.files.value` makes it;   |
|            | absent if prompts are text alone                               |
| images     | `Images` of the prompt without the axis of prompts, in NumPy;  |
|            | None or absent if the prompt is tokens only                    |

A source has `len(source)` and `source[i]`, and `source[i]` is always the same
record; `pipeline` makes order, epochs and batches. Sources that make or read
each record on demand, and are never read as a whole, have an attribute
`starts`: see `streaming` and `gym`.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import reprlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from etils import epath

from grpo_jax.data import formats
from grpo_jax.data.formats import Conversion, Format, Record

# Most nested lists and objects: a recursive reader needs a call for each level.
_MAX_DEPTH = 64
# Most characters of a text of a record. To tokenize a million takes about a
# second, and a longer text is a file instead of a prompt.
_MAX_TEXT = 2**22


def record_of(line: bytes, convert: Conversion) -> Record | None:
  """The record on a line of UTF-8; None if the line is empty.

  Raises:
    ValueError: The line is not a JSON object; or the object is too deep, too
      long, or rejected by `convert`.
  """
  try:
    raw = _parsed(line)
    return None if raw is None else sized(convert(raw))
  except UnicodeError as error:
    raise ValueError(
      f"{error}; need text in UTF-8, without halves of surrogate pairs."
    ) from error


def _parsed(line: bytes) -> dict[str, Any] | None:
  """The object on a line of UTF-8; None if the line is empty.

  Raises:
    ValueError: The line is not a JSON object; or as in `check`.
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
  return check(raw)


def check(raw: Any) -> Any:
  """Returns a value of JSON, after a check of its depth and its text.

  Raises:
    ValueError: The value is too deep, or has half a surrogate pair, which
      neither tokenizers nor files can hold.
  """
  level: list[Any] = [raw]
  depth = 0
  while level:
    if (depth := depth + 1) > _MAX_DEPTH:
      raise _too_deep(reprlib.repr(raw))
    next_level: dict[int, Any] = {}  # Each once, as a list may contain itself.
    for outer in level:
      inner = [*outer, *outer.values()] if isinstance(outer, dict) else outer
      for value in inner:
        if isinstance(value, str):
          value.encode()
        elif isinstance(value, (dict, list, tuple)):
          next_level[id(value)] = value
    level = [*next_level.values()]
  return raw


def sized(record: Record) -> Record:
  """Returns the record; raises ValueError if one of its texts is too long."""
  for field in ("prompt", "answer", "completion", "rejected"):
    if len(record.get(field) or "") > _MAX_TEXT:
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


class Source(Protocol):
  """The interface of a source of records, from which `pipeline` reads."""

  def __len__(self) -> int: ...

  def __getitem__(self, index: int) -> Record: ...


class InMemory:
  """Records that are held in memory."""

  _records: list[Record]

  def __len__(self) -> int:
    return len(self._records)

  def __getitem__(self, index: int) -> Record:
    return self._records[index]


class Chosen:
  """Some records of a source that is held in memory, or cheap to read."""

  def __init__(self, source: Source, indices: Sequence[int]):
    self._source, self._indices = source, indices

  def __len__(self) -> int:
    return len(self._indices)

  def __getitem__(self, index: int) -> Record:
    return self._source[self._indices[index]]


class TaskSource:
  """Records of a synthetic task, generated when they are read."""

  def __init__(self, task: Any, split: str, seed: int, num_examples: int):
    """Creates a source of `num_examples` records; nothing is stored.

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
      "images": example.images,
    }


def starts(source: Source) -> tuple[int, ...] | None:
  """First records of the parts of a source; None if it can be read as a whole.

  Each part is read in an order of its own before the next part.
  """
  return getattr(source, "starts", None)


def task_of(source: Source) -> Any:
  """The `tasks.task.Task` that makes the records, or None."""
  return getattr(source, "task", None)


def number(source: Source, index: int) -> int:
  """Returns the number of the record at an index of a source.

  In a mixture several indices may lead to one record: they have one number,
  among the records of all its parts. In other sources it is the index.
  """
  method = getattr(source, "number", None)
  return index if method is None else method(index)


def base_name(name: str) -> str:
  """The name of a TFDS dataset without its config and version."""
  return re.split("[:/]", name)[0]


def tfds_folder(name: str) -> epath.Path:
  """The folder of a TFDS dataset, with the config and version of its name.

  It is in TFDS_DATA_DIR, a local or `gs://` folder, by default
  ~/tensorflow_datasets.
  """
  data_dir = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
  return epath.Path(data_dir).expanduser().joinpath(*re.split("[:/]", name))


class TfdsSource:
  """A prepared TensorFlow Datasets split, read without TensorFlow."""

  def __init__(
    self,
    name: str,
    split: str,
    *,
    format: Format = None,
    fields: Mapping[str, Any] | None = None,
    domain_key: str = "",
    images: Sequence[str] = (),
  ):
    """Opens a dataset that has been prepared in the array_record format.

    Args:
      name: TFDS name: "gsm8k", "gsm8k:1.0.0", "ai2_arc/ARC-Easy".
      split: TFDS split, such as "train" or "train[:100]".
      format, fields, domain_key, images: As in `formats.conversion`. Without
        `format` and `fields` the dataset's name is the format. Images that the
        dataset declares are read without being decoded; texts are paths.

    Raises:
      ValueError: There is no format for the dataset, or its rows lack a field;
        there is no such split, or the data are not in array_record.
      FileNotFoundError: The folder does not hold the dataset.
    """
    base = base_name(name)
    if not format and not fields:
      if base not in formats.FORMATS:
        raise ValueError(
          f"config.data.name={name!r}: not one of the datasets whose fields are"
          f" known here, {sorted(formats.FORMATS)}. If it is another one, set"
          " config.data.fields to {'prompt': …, 'answer': …} with names of the"
          " dataset's fields, or config.data.format."
        )
      format = base
    self._convert = formats.conversion(format, fields, domain_key, images)
    root = tfds_folder(base).parent
    if not (root / base).exists():
      raise FileNotFoundError(
        f"config.data.name={name!r}: {root} has no {base!r}. Set"
        " TFDS_DATA_DIR to a folder with the prepared dataset (array_record),"
        " or use data.source='jsonl'."
      )
    self._name = f"{name} ({split})"
    self._rows, self._paths = _opened(name, split, root, images)
    self[0]  # Raises at once if a field is misspelt.

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: int) -> Record:
    row = self._rows[index]
    if self._paths:
      row = {**row, **{name: _texts(row[name]) for name in self._paths}}
    try:
      return self._convert(row)
    except ValueError as error:
      raise ValueError(f"{self._name}, row {index}: {error}") from error


def _texts(value: Any) -> Any:
  """Decodes bytes, or a list of bytes, of a dataset to text."""
  if isinstance(value, np.ndarray):
    value = value.tolist()
  if isinstance(value, list):
    return [_texts(x) for x in value]
  return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _opened(
  name: str, split: str, root: epath.Path, images: Sequence[str] = ()
) -> tuple[Any, tuple[str, ...]]:
  """The rows of a split, and the fields of images that hold paths."""
  # Late, so that sources without TFDS start half a second sooner.
  import tensorflow_datasets as tfds

  class Undecoded(tfds.decode.SkipDecoding):
    """Skips the decoding of images, also in a sequence."""

    def decode_batch_example_np(self, examples: Any) -> Any:
      return examples

  builder = tfds.builder(name, data_dir=root)
  features = builder.info.features or {}
  raw, paths = {}, []
  for field in set(images) & {*features}:
    feature = features[field]
    inner = getattr(feature, "feature", feature)  # Element of a sequence.
    if isinstance(inner, tfds.features.Image):
      raw[field] = Undecoded()
    elif isinstance(inner, tfds.features.Text):
      paths.append(field)
  try:
    rows = builder.as_data_source(split=split, decoders=raw or None)
  except (ValueError, KeyError, NotImplementedError) as error:
    raise ValueError(
      f"config.data.name={name!r}: {root} has the splits"
      f" {sorted(builder.info.splits)},"
      f" and {split!r} cannot be opened: {error}. Needed is one of"
      " them, prepared with file_format='array_record'; set"
      " config.data.train_split and eval_split."
    ) from error
  if not len(rows):
    raise ValueError(
      f"config.data.name={name!r}: the split {split!r} is empty."
    )
  return rows, tuple(paths)


class RowsSource(InMemory):
  """Rows that a program passes, held in memory."""

  def __init__(
    self,
    rows: Sequence[Mapping[str, Any]],
    format: Format = None,
    fields: Mapping[str, Any] | None = None,
    domain_key: str = "",
    images: Sequence[str] = (),
  ):
    """Checks all rows.

    Args:
      rows: Rows like the lines of `JsonlSource`. Further fields of a row become
        extras of its record.
      format, fields, domain_key, images: As in `formats.conversion`.

    Raises:
      ValueError: A row is malformed (the message has its number), there are no
        rows, or the format is unknown.
    """
    convert = formats.with_columns(
      formats.conversion(format, fields, domain_key, images),
      *(format, fields, (domain_key, *images)),
    )
    records = []
    for number, row in enumerate(rows):
      try:
        records.append(sized(convert(row)))
      except ValueError as error:
        raise ValueError(f"config.data: row {number}: {error}") from error
    self._records = _checked(records, "config.data", domain_key)


def _checked(
  records: list[Record], where: str, domain_key: str
) -> list[Record]:
  """Returns records; raises if there are none, or if only some have domains."""
  if not records:
    raise ValueError(f"{where} has no records; need at least 1.")
  labelled = sum(map(formats.has_domain, records))
  if labelled not in (0, len(records)):
    raise ValueError(
      f"{where}: {labelled} of {len(records)} records have"
      f" a {domain_key or 'domain'!r} in 'extras'; need all or none."
    )
  return records


class JsonlSource(InMemory):
  """JSON objects, one a line, held in memory."""

  def __init__(
    self,
    path: epath.PathLike,
    format: Format = None,
    fields: Mapping[str, Any] | None = None,
    domain_key: str = "",
    images: Sequence[str] = (),
  ):
    """Reads and checks the whole file.

    Args:
      path: Local or `gs://` file, in UTF-8, with or without a byte order mark.
        Each line has `prompt` and may have `answer`, `completion` (strings of
        up to 4 million characters, or messages) and `extras` (an object, which
        host verifiers see); with messages also `tools` and `chat_options`.
        Empty lines are skipped. The entry `domain` of `extras`
        is the number of the prompt's domain, from 0 on; all records have it, or
        none.
      format, fields: Format of a file that keeps a dataset's own fields, as in
        `formats.conversion`. For example, "gsm8k" reads `question` and
        `answer`.
      domain_key, images: As in `formats.conversion`.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: A line is malformed (the message has its number), there are no
        lines, or the format is unknown.
    """
    convert = formats.conversion(format, fields, domain_key, images)
    path = existing(path, "a .jsonl file")
    records = []
    lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    for number, line in enumerate(lines, start=1):
      try:
        record = record_of(line, convert)
      except ValueError as error:
        raise ValueError(f"{path}:{number}: {error}") from error
      if record is not None:
        records.append(record)
    self._records = _checked(records, str(path), domain_key)


def existing(path: epath.PathLike, what: str) -> epath.Path:
  """Returns the path of a data file; `what` says in messages what to name.

  Raises:
    FileNotFoundError: There is no such file.
    IsADirectoryError: The path is a folder.
  """
  path = epath.Path(path)
  if path.is_dir():
    raise IsADirectoryError(
      f"config.data.train_path (or eval_path): {path} is a folder; name {what}."
    )
  if not path.exists():
    raise FileNotFoundError(
      f"config.data.train_path (or eval_path): no file {path}; name {what}."
    )
  return path


class TextSource(InMemory):
  """Prompts of a text file, without answers, held in memory."""

  def __init__(self, path: epath.PathLike, separator: str = "\n"):
    """Reads the whole file.

    Args:
      path: Local or `gs://` file, in UTF-8, with or without a byte order mark.
      separator: Text between two prompts: "\\n" for a prompt on each line,
        "\\n\\n" for paragraphs with empty lines between them. White space
        around a prompt is removed, and empty prompts are dropped.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: The separator is empty, the file is not in UTF-8, or there is
        no prompt in it.
    """
    if not separator:
      raise ValueError(
        "config.data.separator is empty; set it to '\\n' for a"
        " prompt on each line, or to '\\n\\n' for paragraphs."
      )
    path = existing(path, "a file with a prompt on each line")
    try:
      text = path.read_bytes().removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeError as error:
      raise ValueError(f"{path}: {error}; need text in UTF-8.") from error
    text = text.replace("\r\n", "\n")
    if separator == "\n\n":  # An empty line may contain spaces.
      text = re.sub(r"\n[ \t]+(?=\n)", "\n", text)
    self._records = [
      {"prompt": prompt, "answer": "", "completion": None, "extras": {}}
      for part in text.split(separator)
      if (prompt := part.strip())
    ]
    if not self._records:
      raise ValueError(f"{path} has no prompts; need at least 1.")

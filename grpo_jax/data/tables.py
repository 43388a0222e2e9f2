"""A source of rows of the package `datasets`: Parquet, CSV, Arrow, or its hub.

The package writes other files than Arrow into its cache as Arrow, once, and
maps Arrow into memory. So any row is read when it is needed, and many rows need
no memory. `HF_DATASETS_CACHE` names the folder of the cache.
"""

from __future__ import annotations

import glob
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_jax import optional
from grpo_jax.data import formats, sources
from grpo_jax.data.formats import Format, Record

# How the package calls the reader of a file, by the ending of its name.
_READERS = {
  ".parquet": "parquet",
  ".csv": "csv",
  ".tsv": "csv",
  ".arrow": "arrow",
  ".json": "json",
  ".jsonl": "json",
}
_ON_HUB = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?(?:@([\w./-]+))?")
# Fields of text. In CSV they keep their digits, and "NA" and "None".
_TEXTS = (
  *("prompt", "completion", "answer", "solution", "ground_truth"),
  *("question", "problem", "chosen", "rejected"),
)
# Files that `save_to_disk` writes.
_SAVED = ("dataset_info.json", "dataset_dict.json")


class DatasetSource:
  """A split of a dataset, read from the disk one row at a time.

  Attributes:
    starts: (0,), a single part, if rows are not read as a whole before the
      first step; else None. See `sources.starts`.
  """

  def __init__(
    self,
    path: str,
    split: str,
    format: Format = None,
    fields: Mapping[str, Any] | None = None,
    domain_key: str = "",
    images: Sequence[str] = (),
    *,
    is_on_hub: bool = False,
    is_streamed: bool = False,
  ):
    """Opens a dataset, and checks its first row; others when they are read.

    Args:
      path: Local file or folder, also one of `save_to_disk`; or a name on the
        hub, "owner/name:subset@revision".
      split: Name of a split, perhaps with a slice, as "train[:100]". A file has
        one split, so only the slice counts.
      format, fields, domain_key, images: As in `formats.conversion`. Further
        columns become extras.
      is_on_hub: Whether `path` is a name on the hub.
      is_streamed: Whether rows are not to be read before the first step.

    Raises:
      FileNotFoundError: There is no such file or folder.
      ImportError: The package is missing.
      ValueError: The dataset cannot be read, has no such split, or is empty; or
        its first row is malformed.
    """
    self.starts = (0,) if is_streamed else None
    self._name = f"{path} ({split})"
    mapped = (x for x in (fields or {}).values() if isinstance(x, str))
    rows = _opened(path, split, is_on_hub, {*_TEXTS, *mapped})
    if not len(rows):
      raise ValueError(f"{self._name} has no records; need at least 1.")
    self._rows = _undecoded(rows, images)
    # Columns are the fields of all rows, so a name that is not among them is
    # misspelt: the first row shows it.
    self._convert = formats.with_columns(
      formats.conversion(format, fields, domain_key, images),
      *(format, fields, (domain_key, *images)),
    )
    self._fields = fields
    self[0]

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: int) -> Record:
    row = self._rows[int(index)]
    row = formats.without_nulls(row, self._fields)
    try:
      return sources.sized(self._convert(sources.check(row)))
    except ValueError as error:
      raise ValueError(f"{self._name}, row {index}: {error}") from error


def _opened(path: str, split: str, is_on_hub: bool, texts: set[str]) -> Any:
  """The rows of a split; of CSV, these fields are text."""
  user = "config.data.source='datasets'"
  datasets = optional.package("datasets", "hf", user)
  datasets.disable_progress_bars()
  try:
    if is_on_hub:
      return _of_hub(datasets, path, split)
    return _of_disk(datasets, path, split, texts)
  except (FileNotFoundError, ValueError) as error:
    if str(error).startswith("config.data"):
      raise
    raise _unreadable(path, split, error) from error
  except Exception as error:  # The package raises errors of its readers too.
    raise _unreadable(path, split, error.__cause__ or error) from error


def _unreadable(path: str, split: str, error: BaseException) -> ValueError:
  # The package ends without a word where a file has no row.
  reason = f"{error!s:.400}".rstrip(".") or "it has no row"
  return ValueError(
    f"config.data.source='datasets': {path} with the split {split!r} cannot be"
    f" read: {type(error).__name__}: {reason}. Needed are"
    f" {', '.join(_READERS)} files that the package `datasets` opens, or a"
    " dataset on the hub; the splits are config.data.train_split and"
    " eval_split."
  )


def _of_hub(datasets: Any, name: str, split: str) -> Any:
  if (match := _ON_HUB.fullmatch(name)) is None:
    raise ValueError(
      f"config.data.name={name!r}: need 'owner/name', 'owner/name:subset' or"
      " 'owner/name:subset@revision'."
    )
  repository, subset, revision = match.groups()
  return datasets.load_dataset(
    repository, subset, split=split, revision=revision
  )


def _of_disk(datasets: Any, path: str, split: str, texts: set[str]) -> Any:
  if "://" in path:
    raise ValueError(
      f"config.data.source='datasets': {path} is not on a disk of this machine,"
      " where rows are mapped into memory. Copy it here, as `gcloud storage cp`"
      " does, and set config.data.train_path (and eval_path) to the copy."
    )
  place = pathlib.Path(path).expanduser()
  if place.is_dir():
    if any((place / name).exists() for name in _SAVED):
      return _saved(datasets, place, split)
    return datasets.load_dataset(os.fspath(place), split=split)
  if not place.exists():
    raise FileNotFoundError(
      f"config.data.train_path (or eval_path): no file or folder {path}. A name"
      " on the hub is config.data.name, with an empty train_path."
    )
  ending = place.suffix.lower()
  reader = _READERS.get(ending)
  if reader is None:
    raise ValueError(
      f"config.data.train_path (or eval_path): {path} ends in none of"
      f" {', '.join(_READERS)}; rename it, or name a folder."
    )
  more: dict[str, Any] = {}
  if reader == "csv":
    more = {
      "converters": dict.fromkeys(sorted(texts), str),
      "delimiter": "\t" if ending == ".tsv" else ",",
      "keep_default_na": False,
      "na_values": [""],
    }
  return datasets.load_dataset(
    reader,
    data_files=glob.escape(os.fspath(place)),
    # The package calls the split of a file so.
    split=re.sub(r"^[^\[]*", "train", split),
    **more,
  )


def _saved(datasets: Any, place: pathlib.Path, split: str) -> Any:
  """The rows of a folder that `save_to_disk` has written."""
  dataset = datasets.load_from_disk(os.fspath(place))
  name, bracket, part = split.partition("[")
  if hasattr(dataset, "column_names") and not isinstance(dataset, dict):
    rows = dataset
  elif name not in dataset:
    raise ValueError(
      f"config.data.train_split (or eval_split)={split!r}: {place} has the"
      f" splits {sorted(dataset)}; name one of them."
    )
  else:
    rows = dataset[name]
  if not bracket:
    return rows
  bounds = re.fullmatch(r"(\d*):(\d*)\]", part)
  if bounds is None:
    raise ValueError(
      f"config.data.train_split (or eval_split)={split!r}: of a folder of"
      " save_to_disk, need a slice in rows, as 'train[100:200]'."
    )
  start, stop = (int(x) if x else None for x in bounds.groups())
  return rows.select(range(len(rows))[start:stop])


def _undecoded(rows: Any, images: Sequence[str]) -> Any:
  """The rows with the bytes of images instead of decoded images."""
  for name in images:
    feature = rows.features.get(name)
    inner = getattr(feature, "feature", feature)  # Element of a list.
    if type(inner).__name__ != "Image":
      continue
    raw_feature = type(inner)(decode=False)
    changed = raw_feature if inner is feature else type(feature)(raw_feature)
    rows = rows.cast_column(name, changed)
  return rows

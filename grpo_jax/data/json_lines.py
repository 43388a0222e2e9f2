"""A line of JSON and the record on it, or an error that says what is wrong."""

from __future__ import annotations

import json
import reprlib
from typing import Any

from grpo_jax.data.formats import Conversion, Record

# Lists and objects within each other: the next reader may follow them with a
# call for each.
_MAX_DEPTH = 64
# Characters of a text of a record. To tokenize a million takes about a second,
# and what is longer is a file in the place of a prompt.
_MAX_TEXT = 2**22


def record(line: bytes, convert: Conversion) -> Record | None:
  """The record on a line of UTF-8; None if the line is empty.

  Raises:
    ValueError: The line has no JSON object, or one that is too deep, too long,
      or not what `convert` takes.
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
    ValueError: It is none; or as in `check`.
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
  """The value, if it is neither too deep nor has half a surrogate pair.

  Raises:
    ValueError: It is, or has one, which no tokenizer and no file takes.
  """
  level: list[Any] = [raw]
  depth = 0
  while level:
    if (depth := depth + 1) > _MAX_DEPTH:
      raise _too_deep(reprlib.repr(raw))
    found: dict[int, Any] = {}  # Each once: in memory one may be in itself.
    for outer in level:
      inner = [*outer, *outer.values()] if isinstance(outer, dict) else outer
      for value in inner:
        if isinstance(value, str):
          value.encode()
        elif isinstance(value, (dict, list, tuple)):
          found[id(value)] = value
    level = [*found.values()]
  return raw


def sized(record: Record) -> Record:
  """The record, if none of its texts is too long."""
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

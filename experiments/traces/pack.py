"""Runs as compressed columns that fit into a number of bytes.

The texts are one JSON, the numbers of tokens one block of bytes. Both are
compressed. The bytes of a column of 32-bit numbers are sorted by their place in
the number, since gzip compresses exponents better if they stand together.
Numbers do not lose a bit.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.traces import filters, source
from grpo_jax.training.runtime import traces

# Steps of metrics that a page has. More than a screen has columns.
_MAX_STEPS = 4000
# Numbers of tokens compress to no less than this part of their bytes.
_COMPRESSION = 4
# Of the bytes, for texts; the other ones are for numbers of tokens.
_TEXTS = 0.6


class _Shares(NamedTuple):
  """Shares of groups: those that are there, and those with all numbers."""

  groups: float
  numbers: float


def pack(runs: Sequence[source.Run], max_bytes: int) -> dict[str, str]:
  """Packs runs for `data.js`.

  If there are too many bytes, groups are left out until the texts have three
  fifths of them, and then numbers of tokens. The rest is spread evenly over the
  run, and the page says how much is missing.

  Args:
    runs: One or two runs.
    max_bytes: The most bytes that the result has as text.

  Raises:
    ValueError: Not even the metrics fit.
  """
  least = _size(_pack(runs, _Shares(0.0, 0.0)))
  if least > max_bytes:
    raise ValueError(
      f"traces: the metrics alone take {least} bytes, more than the {max_bytes}"
      " of the page; pass a larger --megabytes."
    )
  raw = sum(_raw_bytes(run.groups) for run in runs)
  shares = _Shares(1.0, min(1.0, max_bytes * _COMPRESSION / max(raw, 1)))
  while True:
    packed = _pack(runs, shares)
    if _size(packed) <= max_bytes:
      return packed
    shares = _fewer(shares, packed, least, max_bytes)


def _size(packed: dict[str, str]) -> int:
  return sum(len(text) for text in packed.values())


def _fewer(
  shares: _Shares, packed: dict[str, str], least: int, max_bytes: int
) -> _Shares:
  """Returns smaller shares, which probably fit.

  Args:
    shares: Shares of `packed`, which does not fit.
    packed: Packed texts and numbers.
    least: Number of bytes without any group.
    max_bytes: Largest number of bytes of both.
  """
  texts, numbers = len(packed["texts"]), len(packed["numbers"])
  room = _TEXTS * (max_bytes - least)
  if texts - least > room:
    groups = 0.95 * shares.groups * room / (texts - least)
    return shares._replace(groups=groups if groups > 1e-4 else 0.0)
  wanted = 0.95 * shares.numbers * (max_bytes - texts) / numbers
  return shares._replace(numbers=wanted if wanted > 1e-4 else 0.0)


def _raw_bytes(groups: Sequence[traces.Group]) -> int:
  return sum(
    len(row.ids) * 4 * (1 + len(row.values))
    for group in groups
    for row in group.rows
  )


def _pack(runs: Sequence[source.Run], shares: _Shares) -> dict[str, str]:
  blocks: list[bytes] = []
  content = {
    "filters": [list(x[:3]) for x in filters.FILTERS],
    "runs": [_run(run, shares, blocks) for run in runs],
  }
  # ASCII: no line separator of JavaScript, no half of a surrogate pair.
  text = json.dumps(content, separators=(",", ":"), allow_nan=False)
  return {
    "texts": _compressed(text.encode()),
    "numbers": _compressed(b"".join(blocks)),
  }


def _compressed(content: bytes) -> str:
  return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()


def _spread(number: int, share: float) -> np.ndarray:
  """Marks a share of things, spread evenly; [number] bool."""
  at = np.arange(number)
  return np.floor((at + 1) * share) > np.floor(at * share)


def _run(
  run: source.Run, shares: _Shares, blocks: list[bytes]
) -> dict[str, Any]:
  """A run as JSON; appends the bytes of its numbers to `blocks`."""
  is_kept = _spread(len(run.groups), shares.groups)
  groups = [x for x, kept in zip(run.groups, is_kept, strict=True) if kept]
  has_numbers = _spread(len(groups), shares.numbers)
  columns = _Columns(run.groups)
  for group, full in zip(groups, has_numbers, strict=True):
    columns.add(group, bool(full))
  traced = [i for i, x in enumerate(groups) if any(r.tokens for r in x.rows)]
  return {
    "name": run.name,
    "algorithm": run.algorithm,
    "metrics": _metrics(run, {group.step for group in groups}),
    "alarms": [[x.step, x.rule, x.text] for x in run.alarms],
    "doubts": list(run.doubts),
    "leftOut": {
      "groups": len(run.groups) - len(groups),
      "numbers": sum(not has_numbers[i] for i in traced),
    },
    **columns.content(),
    "arrays": columns.write(blocks),
  }


def _metrics(run: source.Run, steps: set[int]) -> dict[str, Any]:
  """Columns of metrics; long runs have some of the steps."""
  lines = run.metrics
  if len(lines) > _MAX_STEPS:
    steps = steps | {alarm.step for alarm in run.alarms}
    is_kept = _spread(len(lines), _MAX_STEPS / len(lines))
    lines = tuple(
      line
      for line, kept in zip(lines, is_kept, strict=True)
      if kept or line["step"] in steps
    )
  names = sorted({name for line in lines for name in line} - {"step", "phase"})
  return {
    "steps": [line["step"] for line in lines],
    "phases": [line["phase"] for line in lines],
    "series": {n: [_short(line.get(n)) for line in lines] for n in names},
  }


def _short(value: float | None) -> float | None:
  """Writes a number in the fewest digits that float32 needs."""
  if value is None or not math.isfinite(value):
    return None
  with np.errstate(over="ignore"):
    single = np.float32(value)
  return float(str(single)) if float(single) == value else value


class _Columns:
  """Groups, rows and tokens as columns.

  Args:
    groups: All groups that may be added, for the names in them.
  """

  def __init__(self, groups: Sequence[traces.Group]):
    rows = [row for group in groups for row in group.rows]
    self._components = sorted({name for row in rows for name in row.components})
    self._dtypes = {n: x.dtype for row in rows for n, x in row.values.items()}
    self._names = sorted(self._dtypes)
    self._rules = sorted({rule for group in groups for rule in group.chosen})
    self._prompts: dict[str, int] = {}
    self._vocabulary: dict[tuple[int, str], int] = {}
    self._groups: list[list[Any]] = []
    self._rows: list[list[Any]] = []
    self._tokens: list[int] = []
    self._values: dict[str, list[np.ndarray]] = {x: [] for x in self._names}

  def add(self, group: traces.Group, has_numbers: bool) -> None:
    """Adds a group, with or without its numbers of tokens."""
    self._groups.append(
      [
        group.step,
        group.phase,
        group.split,
        group.prompt_id,
        group.record,
        self._prompts.setdefault(group.prompt, len(self._prompts)),
        [self._rules.index(rule) for rule in group.chosen],
        len(self._rows),
        len(group.rows),
        filters.score(group),
        [list(group.images), list(group.box)],
      ]
    )
    for row in group.rows:
      self._rows.append(self._row(row, group, has_numbers))

  def _row(
    self, row: traces.TraceRow, group: traces.Group, has_numbers: bool
  ) -> list[Any]:
    size = len(row.tokens)
    first, names = -1, 0
    text: str | int = row.text
    if has_numbers and size:
      first = len(self._tokens)
      self._tokens += [
        self._vocabulary.setdefault(pair, len(self._vocabulary))
        for pair in zip(row.ids.tolist(), row.tokens, strict=True)
      ]
      for place, name in enumerate(self._names):
        known = row.values.get(name)
        names |= (known is not None) << place
        self._values[name].append(
          np.zeros(size, self._dtypes[name]) if known is None else known
        )
      # A text is most often that of all tokens, or of all but the end token.
      for count in (size, size - 1):
        if row.text == "".join(row.tokens[:count]):
          text = count
          break
    return [
      row.sample,
      row.context,
      _finite(row.reward),
      None if row.correct is None else int(row.correct),
      int(row.terminated),
      row.cut,
      [_finite(row.components.get(name)) for name in self._components],
      row.opening,
      row.error,
      [source.call_texts(call) for call in row.calls],
      filters.bits(row, group),
      text,
      first,
      size,
      names,
    ]

  def content(self) -> dict[str, Any]:
    """The fields of the JSON."""
    return {
      "components": self._components,
      "values": self._names,
      "rules": self._rules,
      "prompts": list(self._prompts),
      "vocabulary": [list(pair) for pair in self._vocabulary],
      "groups": self._groups,
      "rows": self._rows,
    }

  def write(self, blocks: list[bytes]) -> list[dict[str, Any]]:
    """Writes the arrays' bytes; returns their types and places."""
    arrays = {"tokens": np.asarray(self._tokens, np.int32)}
    if self._tokens:
      for name, parts in self._values.items():
        arrays[name] = np.concatenate(parts)
    found = []
    start = sum(len(block) for block in blocks)
    for name, x in arrays.items():
      block = _planes(x)
      found.append(
        {"name": name, "kind": x.dtype.kind, "start": start, "size": len(x)}
      )
      blocks.append(block)
      start += len(block)
    return found


def _planes(x: np.ndarray) -> bytes:
  """The bytes of numbers [n], sorted by their place in the number."""
  if x.dtype.kind == "b":
    return x.astype(np.uint8).tobytes()
  wide = x.astype("<f4" if x.dtype.kind == "f" else "<i4")
  return wide.view(np.uint8).reshape(-1, 4).T.tobytes()


def _finite(value: float | None) -> float | None:
  return None if value is None or not math.isfinite(value) else float(value)

"""Boxes of objects in images: read from text, and compared.

A box is (x1, y1, x2, y2) with x1 < x2 and y1 < y2; any other has no area, is
like nothing, and counts as a box all the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax import strict_json

Box = tuple[float, float, float, float]

# Characters of a list of boxes; a longer answer has none.
MAX_CHARS = 20_000
# Boxes that are compared: as many as COCO's evaluation takes.
MAX_BOXES = 100
# Of a coordinate; products of larger ones would lose their digits.
MAX_COORDINATE = 1e6
# The thresholds of COCO's mean average precision.
THRESHOLDS = tuple(0.5 + 0.05 * i for i in range(10))
_RECALLS = np.linspace(0.0, 1.0, 101)
_NOWHERE: Box = (0.0, 0.0, 0.0, 0.0)

_NUMBER = r"[ \t\n]{0,8}(-?\d{1,12}(?:\.\d{1,12})?)[ \t\n]{0,8}"
# Every part is bounded, so that brackets and digits without end cost nothing.
_BOX = re.compile(rf"\[{_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER}\]")
_FENCED = re.compile(r"```(?:json)?(.*?)```", re.DOTALL)


class Detection(NamedTuple):
  """A box, and what it is said to be.

  Attributes:
    box: Its corners; `_NOWHERE` where what was written is no box.
    label: Of the object; empty if there is none.
  """

  box: Box
  label: str = ""


def box_of(values: Any) -> Box | None:
  """Four numbers as a box; None where they are none, or too large."""
  if not isinstance(values, list | tuple) or len(values) != 4:
    return None
  found = []
  for value in values:
    if isinstance(value, bool) or not isinstance(value, int | float):
      return None
    if not abs(value) <= MAX_COORDINATE:  # Also NaN.
      return None
    found.append(float(value))
  return found[0], found[1], found[2], found[3]


def boxes_in(text: str) -> list[Box | None]:
  """All lists of four numbers in a text; None for those too large."""
  if len(text) > MAX_CHARS:
    return []
  return [box_of([float(x) for x in m.groups()]) for m in _BOX.finditer(text)]


def iou(a: Box, b: Box) -> float:
  """Area of the intersection over that of the union; 0 without an area.

  In [0, 1]; 1 only for the same box.
  """
  wide = min(a[2], b[2]) - max(a[0], b[0])
  tall = min(a[3], b[3]) - max(a[1], b[1])
  if wide <= 0 or tall <= 0:
    return 0.0
  areas = [max(x[2] - x[0], 0.0) * max(x[3] - x[1], 0.0) for x in (a, b)]
  shared = wide * tall
  union = sum(areas) - shared
  found = shared / union if union > 0 else 0.0
  return min(found, 1.0) if math.isfinite(found) else 0.0


def detections_in(text: str) -> list[Detection]:
  """The list of objects that a text has as JSON, alone or between ``` marks.

      [{"bbox_2d": [10, 20, 110, 220], "label": "cat"}, …]

  An entry that has no box is one that is nowhere. A text without such a list
  has none at all.
  """
  if len(text) > MAX_CHARS:
    return []
  fenced = _FENCED.search(text)
  try:
    found = strict_json.loads(fenced[1] if fenced else text)
  except (ValueError, RecursionError):
    return []
  return detections_of(found)


def detections_of(values: Any) -> list[Detection]:
  """The objects of a list; see `detections_in`."""
  if isinstance(values, dict):
    values = [values]
  if not isinstance(values, list):
    return []
  if values and box_of(values) is not None:
    values = [{"bbox_2d": values}]
  found = []
  for entry in values:
    label, given = "", entry
    if isinstance(entry, dict):
      given = entry.get("bbox_2d", entry.get("box"))
      said = entry.get("label", "")
      label = said.strip() if isinstance(said, str) else ""
    found.append(Detection(box_of(given) or _NOWHERE, label))
  return found


def average_precision(
  found: Sequence[Detection],
  gold: Sequence[Detection],
  thresholds: Sequence[float] = THRESHOLDS,
) -> float:
  """COCO's mean average precision of one image, over labels and thresholds.

  All objects that were found are equally sure, so their order is that in which
  they were written. Those with a label that is not among the gold ones do not
  count. Of each label the first 100 are looked at.

  Returns:
    In [0, 1]; 0 where nothing was found, or nothing is to be found.

  Source: Lin et al., "Microsoft COCO", arXiv:1405.0312; its evaluation
  interpolates precision at 101 recalls.
  """
  values = []
  for label in dict.fromkeys(one.label for one in gold):
    ours = [x.box for x in found if x.label == label][:MAX_BOXES]
    theirs = [x.box for x in gold if x.label == label]
    table = _table(ours, theirs)
    values += [_precision(table, least) for least in thresholds]
  return float(np.mean(values)) if values else 0.0


def _table(ours: Sequence[Box], theirs: Sequence[Box]) -> np.ndarray:
  """The index of each of our boxes with each of theirs."""
  made = [[iou(a, b) for b in theirs] for a in ours]
  return np.array(made, float).reshape(len(ours), len(theirs))


def _precision(table: np.ndarray, least: float) -> float:
  """Average precision at one threshold of the index."""
  count, size = table.shape
  if not count:
    return 0.0
  free = np.ones(size, bool)
  hits = np.zeros(count)
  for place in range(count):
    usable = np.where(free, table[place], -1.0)
    # Of equal ones the last, as COCO's evaluation takes it.
    best = size - 1 - int(np.argmax(usable[::-1]))
    if usable[best] >= min(least, 1 - 1e-10):
      free[best] = False
      hits[place] = 1.0
  right = np.cumsum(hits)
  recall = right / size
  precision = right / np.arange(1, count + 1)
  # The best precision at this recall or a larger one.
  precision = np.maximum.accumulate(precision[::-1])[::-1]
  places = np.searchsorted(recall, _RECALLS, side="left")
  padded = np.append(precision, 0.0)
  return float(padded[np.minimum(places, count)].mean())


class Matched(NamedTuple):
  """Objects that were found, in pairs with gold ones.

  Attributes:
    indices: The index of each pair.
    right_labels: Pairs with the same label.
  """

  indices: list[float]
  right_labels: int


def matched(
  found: Sequence[Detection], gold: Sequence[Detection], least: float
) -> Matched:
  """Pairs the nearest boxes first, whatever their labels are.

  Args:
    found: At most `MAX_BOXES` of them are looked at.
    gold: What is to be found.
    least: The index of a pair is at least this.
  """
  found = found[:MAX_BOXES]
  table = _table([x.box for x in found], [x.box for x in gold])
  indices, right = [], 0
  while table.size and (best := float(table.max())) >= max(least, 1e-12):
    row, column = divmod(int(table.argmax()), table.shape[1])
    indices.append(best)
    right += found[row].label == gold[column].label
    table[row, :] = -1.0
    table[:, column] = -1.0
  return Matched(indices, right)

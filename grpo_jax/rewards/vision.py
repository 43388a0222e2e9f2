"""Rewards for answers to questions about images: boxes, counts, choices.

Each reads the final answer of a completion (`answers.py`; without tags and
boxes the whole text is the answer) and compares it with the record's `answer`,
or with another field of its extras:

    config.rewards.functions = ("box_iou", "box_format")
    config.rewards.options = {"box_iou": {"field": "box"}}

A box is (x1, y1, x2, y2) with x1 < x2 and y1 < y2. Any other four numbers have
no area and match nothing, but count as a box all the same. Gold boxes are lists
of four numbers, or text with one. Gold objects are lists of {"bbox_2d": [x1,
y1, x2, y2], "label": "cat"}, or text with one as JSON. A model that sees a
resized image writes pixels of that image, so the gold boxes have to be in the
same pixels.

Sources: Shen et al., "VLM-R1", arXiv:2504.07615, and its code; R1-V,
github.com/Deep-Agent/R1-V (counting).
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax import strict_json
from grpo_jax.rewards import answers, gym, registry

Box = tuple[float, float, float, float]

# Characters of a list of boxes; a longer answer has none.
MAX_CHARS = 20_000
# Most boxes that are compared, the same number as in COCO's evaluation.
MAX_BOXES = 100
# Products of larger coordinates would lose digits.
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
  """A box with a label.

  Attributes:
    box: Corners of the box; `_NOWHERE` if what was written is not a box.
    label: Label of the object; empty if it has none.
  """

  box: Box
  label: str = ""


def box_of(values: Any) -> Box | None:
  """Returns four numbers as a box; None for other or too large values."""
  if not isinstance(values, list | tuple) or len(values) != 4:
    return None
  numbers = []
  for value in values:
    if isinstance(value, bool) or not isinstance(value, int | float):
      return None
    if not abs(value) <= MAX_COORDINATE:  # Also NaN.
      return None
    numbers.append(float(value))
  return numbers[0], numbers[1], numbers[2], numbers[3]


def boxes_in(text: str) -> list[Box | None]:
  """Returns all lists of four numbers in a text; too large a box is None."""
  if len(text) > MAX_CHARS:
    return []
  return [box_of([float(x) for x in m.groups()]) for m in _BOX.finditer(text)]


def iou(a: Box, b: Box) -> float:
  """Area of the intersection over that of the union; 0 without an area.

  The value is in [0, 1], and 1 only for the same box.
  """
  wide = min(a[2], b[2]) - max(a[0], b[0])
  tall = min(a[3], b[3]) - max(a[1], b[1])
  if wide <= 0 or tall <= 0:
    return 0.0
  areas = [max(x[2] - x[0], 0.0) * max(x[3] - x[1], 0.0) for x in (a, b)]
  shared = wide * tall
  union = sum(areas) - shared
  ratio = shared / union if union > 0 else 0.0
  return min(ratio, 1.0) if math.isfinite(ratio) else 0.0


def detections_in(text: str) -> list[Detection]:
  """Returns the objects that a text lists as JSON, alone or between ``` marks.

      [{"bbox_2d": [10, 20, 110, 220], "label": "cat"}, …]

  An entry without a box counts as an object that is nowhere. A text without
  such a list has no objects.
  """
  if len(text) > MAX_CHARS:
    return []
  fenced = _FENCED.search(text)
  try:
    values = strict_json.loads(fenced[1] if fenced else text)
  except (ValueError, RecursionError):
    return []
  return detections_of(values)


def detections_of(values: Any) -> list[Detection]:
  """Returns the objects of a list; see `detections_in`."""
  if isinstance(values, dict):
    values = [values]
  if not isinstance(values, list):
    return []
  if values and box_of(values) is not None:
    values = [{"bbox_2d": values}]
  detections = []
  for entry in values:
    label, box = "", entry
    if isinstance(entry, dict):
      box = entry.get("bbox_2d", entry.get("box"))
      name = entry.get("label", "")
      label = name.strip() if isinstance(name, str) else ""
    detections.append(Detection(box_of(box) or _NOWHERE, label))
  return detections


def average_precision(
  detections: Sequence[Detection],
  gold: Sequence[Detection],
  thresholds: Sequence[float] = THRESHOLDS,
) -> float:
  """COCO's mean average precision of one image, over labels and thresholds.

  All detections have the same confidence, so they are ranked in the order in
  which they were written. Detections with a label that no gold object has do
  not count. Only the first 100 detections of each label count.

  Returns:
    A number in [0, 1]; 0 without detections or without gold objects.

  Source: Lin et al., "Microsoft COCO", arXiv:1405.0312; its evaluation
  interpolates precision at 101 recalls.
  """
  values = []
  for label in dict.fromkeys(item.label for item in gold):
    boxes = [x.box for x in detections if x.label == label][:MAX_BOXES]
    gold_boxes = [x.box for x in gold if x.label == label]
    table = _table(boxes, gold_boxes)
    values += [_precision(table, least) for least in thresholds]
  return float(np.mean(values)) if values else 0.0


def _table(boxes: Sequence[Box], gold: Sequence[Box]) -> np.ndarray:
  """Returns the IoU of each box with each gold box."""
  rows = [[iou(a, b) for b in gold] for a in boxes]
  return np.array(rows, float).reshape(len(boxes), len(gold))


def _precision(table: np.ndarray, least: float) -> float:
  """Returns the average precision at one threshold of the IoU."""
  count, size = table.shape
  if not count:
    return 0.0
  free = np.ones(size, bool)
  hits = np.zeros(count)
  for place in range(count):
    usable = np.where(free, table[place], -1.0)
    # The last of equal ones, as in COCO's evaluation.
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


def matched(
  detections: Sequence[Detection], gold: Sequence[Detection], least: float
) -> tuple[list[float], int]:
  """IoU of each pair, and the number of pairs with the same label.

  The nearest of the first `MAX_BOXES` boxes are paired first, whatever their
  labels are; `least` is the least IoU.
  """
  detections = detections[:MAX_BOXES]
  table = _table([x.box for x in detections], [x.box for x in gold])
  indices, right = [], 0
  while table.size and (best := float(table.max())) >= max(least, 1e-12):
    row, column = divmod(int(table.argmax()), table.shape[1])
    indices.append(best)
    right += detections[row].label == gold[column].label
    table[row, :] = -1.0
    table[:, column] = -1.0
  return indices, right


def _of_answers(score: Callable[..., float]) -> Callable[..., list[float]]:
  """Makes a reward function of the score of one final answer.

  Args:
    score: (answer, gold, field, options by name) -> the score. `gold` is the
      value of the extras' `field`, an option of the reward function. A
      completion without an answer has the score 0.
  """

  def of_row(
    completion: str, extra: dict, *, field: str = "answer", **options: Any
  ) -> float:
    if field not in extra:
      raise KeyError(
        f"the record has no {field!r}; its extras have {sorted(extra)}. Name"
        " the field in config.rewards.options."
      )
    answer = gym.answer_of(completion)
    if answer is None:
      return 0.0
    return float(score(answer, extra[field], field, **options))

  *usual, field, _ = inspect.signature(of_row).parameters.values()
  _, _, _, *own = inspect.signature(score).parameters.values()
  vars(of_row)["__signature__"] = inspect.Signature([*usual, *own, field])
  return registry.of_rows(functools.wraps(score, updated=())(of_row))


@_of_answers
def box_iou(
  answer: str, gold: Any, field: str, *, threshold: float | None = None
) -> float:
  """Intersection over union of the box in the answer and the gold box.

  A box is four numbers in brackets. An answer with two boxes that differ has 0:
  otherwise it would be paid for guesses. Deviation: VLM-R1 takes the first box.

  Args:
    answer, gold, field: See `_of_answers`.
    threshold: With a threshold, the reward is 1.0 for a larger IoU, else 0.0.

  Returns:
    A number in [0, 1]; 0 for a box without an area.

  Raises:
    ValueError: The gold box is not a box.
  """
  right = _gold_box(gold, field)
  boxes = {*boxes_in(answer)}
  box = boxes.pop() if len(boxes) == 1 else None
  index = 0.0 if box is None else iou(box, right)
  return index if threshold is None else float(index > threshold)


def _gold_box(gold: Any, field: str) -> Box:
  boxes = boxes_in(gold) if isinstance(gold, str) else [box_of(gold)]
  if len(boxes) != 1 or boxes[0] is None:
    raise ValueError(
      f"the gold box {field}={gold!r:.80} is none; needs four numbers"
      " [x1, y1, x2, y2]."
    )
  return boxes[0]


def _gold_objects(gold: Any, field: str) -> list[Detection]:
  boxes = detections_in(gold) if isinstance(gold, str) else detections_of(gold)
  if not boxes or any(iou(x.box, x.box) < 1 for x in boxes):
    raise ValueError(
      f"the gold objects {field}={gold!r:.80} are none; needs a list of"
      " {'bbox_2d': [x1, y1, x2, y2], 'label': …}, each with an area."
    )
  return boxes


@_of_answers
def detection_map(
  answer: str,
  gold: Any,
  field: str,
  *,
  threshold: float | None = None,
  length_factor: bool = True,
) -> float:
  """COCO's mean average precision of the objects in the answer.

      mAP · min(1, gold objects / objects in the answer)

  The objects are JSON, alone or between ``` marks. The factor lowers the reward
  of answers that name a hundred boxes: average precision hardly depends on
  boxes behind the right ones.

  Args:
    answer, gold, field: See `_of_answers`.
    threshold: One threshold of the IoU, in place of the mean over 0.5, 0.55, …,
      0.95.
    length_factor: If True, the factor is applied.

  Returns:
    A number in [0, 1].

  Raises:
    ValueError: The record has no gold objects.
  """
  right = _gold_objects(gold, field)
  detections = detections_in(answer)
  if not detections:
    return 0.0
  thresholds = THRESHOLDS if threshold is None else (threshold,)
  value = average_precision(detections, right, thresholds)
  factor = min(1.0, len(right) / len(detections)) if length_factor else 1.0
  return value * factor


@_of_answers
def detection_score(
  answer: str,
  gold: Any,
  field: str,
  *,
  position: float = 0.7,
  label: float = 0.0,
  completeness: float = 0.3,
  threshold: float = 0.5,
) -> float:
  """A weighted mean of the scores for position, label and completeness.

      position      Σ index of the pairs / gold objects
      label         pairs with the same label / gold objects
      completeness  1 − (gold objects without a pair / gold objects
                         + objects without a pair / objects in the answer) / 2

  The index is the IoU. The nearest boxes are paired first, with an index of at
  least `threshold`. The objects are JSON, as in `detection_map`.

  Args:
    answer, gold, field: See `_of_answers`.
    position, label, completeness: Weights, not negative and not all 0; they are
      divided by their sum.
    threshold: The least IoU of a pair.

  Returns:
    A number in [0, 1]; 0 for an answer without objects.

  Raises:
    ValueError: The record has no gold objects; or a weight is negative, or all
      weights are 0.
  """
  weights = (position, label, completeness)
  if min(weights) < 0 or not sum(weights) > 0:
    raise ValueError(
      f"detection_score: the weights are {weights}; needs numbers from 0"
      " on, and one above."
    )
  right = _gold_objects(gold, field)
  detections = detections_in(answer)
  if not detections:
    return 0.0
  indices, num_same = matched(detections, right, threshold)
  count = len(indices)
  missed = (len(right) - count) / len(right)
  alarms = (len(detections) - count) / len(detections)
  parts = (
    sum(indices) / len(right),
    num_same / len(right),
    1.0 - (missed + alarms) / 2,
  )
  total = sum(w * x for w, x in zip(weights, parts, strict=True))
  return total / sum(weights)


_WHOLE = re.compile(r"(?<![\d.,])-?\d{1,12}(?![\d]|[.,]\d)")


@_of_answers
def counting(answer: str, gold: Any, field: str) -> float:
  """1.0 if the answer has one whole number, the gold number; else 0.0.

  The number may have words around it, but no other number. The gold answer is a
  whole number, or its digits.

  Raises:
    ValueError: The gold number is not a number.
  """
  right, _ = _number(gold, field)
  if len(answer) > answers.MAX_CHARS:
    return 0.0
  numbers = _WHOLE.findall(answer)
  return float(len(numbers) == 1 and int(numbers[0]) == right)


@_of_answers
def numeric(
  answer: str,
  gold: Any,
  field: str,
  *,
  relative: float = 0.0,
  absolute: float = 0.0,
) -> float:
  """1.0 if the answer is the gold number, or near enough, else 0.0.

      |answer − gold| ≤ absolute + relative · |gold|

  Numbers are read by `answers.quantity`. If the gold number has a unit, the
  answer has the same or none.

  Raises:
    ValueError: The gold number is not a number.
  """
  right, unit = _number(gold, field)
  number = answers.quantity(answer, unit)
  if number is None or number.value is None:
    return 0.0
  if unit and number.unit not in ("", unit):
    return 0.0
  return float(abs(number.value - right) <= absolute + relative * abs(right))


def _number(gold: Any, field: str) -> tuple[Any, str]:
  """Returns the gold number and its unit."""
  number = answers.quantity(str(gold))
  if number is None or number.value is None:
    raise ValueError(f"the gold number {field}={gold!r:.80} is none.")
  return number.value, number.unit


# A letter at the beginning of the answer, such as "(B)", "B." or "B:".
_FIRST = re.compile(r"\(?([A-Z])(?:[).:,]|$)")
_ALONE = re.compile(r"(?<![A-Za-z])([A-Z])(?![A-Za-z'’])")


@_of_answers
def choice(answer: str, gold: Any, field: str) -> float:
  """1.0 if the answer chooses the gold letter, else 0.0.

  The chosen letter is the one that the answer begins with, as in "B. A cat" or
  "(B)", or else the only capital letter that stands alone. An answer with
  several letters has 0. The gold answer is a letter, or an answer with one.

  Raises:
    ValueError: The gold answer has no letter.
  """
  right = _letter(str(gold))
  if right is None:
    raise ValueError(
      f"the gold answer {field}={gold!r:.80} has no letter to choose."
    )
  return float(_letter(answer) == right)


def _letter(answer: str) -> str | None:
  if len(answer) > answers.MAX_CHARS:
    return None
  text = answer.strip()
  if first := _FIRST.match(text):
    return first[1]
  letters = {*_ALONE.findall(text)}
  return letters.pop() if len(letters) == 1 else None


_YES_NO = re.compile(r"\b(yes|no)\b")


@_of_answers
def yes_no(answer: str, gold: Any, field: str) -> float:
  """1.0 if the answer says yes or no as the gold answer does, else 0.0.

  Capital letters do not matter. An answer with both words has 0. Deviation:
  VLM-R1 takes the first of them, even inside another word, such as "no" in
  "know". The gold answer is a text with one of the words, or true or false.

  Raises:
    ValueError: The gold answer has neither word, or both.
  """
  if isinstance(gold, bool):
    gold = "yes" if gold else "no"
  right = {*_YES_NO.findall(str(gold).lower())}
  if len(right) != 1:
    raise ValueError(
      f"the gold answer {field}={gold!r:.80} says neither yes nor no."
    )
  return float({*_YES_NO.findall(answer.lower())} == right)


_BETWEEN = re.compile(r"</think>\s*<answer>")
_FOUR = re.compile(r"\[\d+,\s*\d+,\s*\d+,\s*\d+\]")


@registry.of_rows
def box_format(completion: str) -> float:
  r"""1.0 if a thought is followed by an answer with a box in JSON, else 0.0.

      <think>.*?</think>\s*<answer>.*?\{.*\[\d+,\s*\d+,\s*\d+,\s*\d+\].*\}.*?</answer>

  anywhere in the completion, with `.` matching newlines. The box itself may be
  wrong. Linear in the length of the completion.

  Source: VLM-R1, `format_reward_rec`.
  """
  # Searched by hand, each part at its first place after the one before: the
  # time of the expression above grows with the fifth power of a text of tags.
  place = completion.find("<think>")
  if place < 0:
    return 0.0
  between = _BETWEEN.search(completion, place + len("<think>"))
  if between is None:
    return 0.0
  place = completion.find("{", between.end())
  box = _FOUR.search(completion, place) if place >= 0 else None
  if box is None:
    return 0.0
  place = completion.find("}", box.end())
  return float(place >= 0 and completion.find("</answer>", place) >= 0)

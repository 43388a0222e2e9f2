"""Filters of the completions and groups to show.

A filter is decided here, once, for the page and the terminal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from grpo_jax.training.runtime import traces


class Filter(NamedTuple):
  """A question about a completion, within its group."""

  name: str  # As --filter takes it.
  label: str
  meaning: str
  holds: Callable[[traces.TraceRow, traces.Group], bool]


def _wrong_but_rewarded(row: traces.TraceRow, group: traces.Group) -> bool:
  if row.reward is None or row.correct is not False:
    return False
  rewards = _rewards(group.rows)
  if min(rewards) == max(rewards):
    return row.reward > 0.0
  return row.reward > _mean(rewards)


def _disagreeing(row: traces.TraceRow, group: traces.Group) -> bool:
  """True if the row is best for one component and worst for another."""
  is_best = is_worst = False
  for name, value in row.components.items():
    others = [x.components.get(name) for x in group.rows]
    known = [x for x in others if x is not None]
    if value is None or min(known) == max(known):
      continue
    is_best |= value == max(known)
    is_worst |= value == min(known)
  return is_best and is_worst


FILTERS = (
  Filter(
    "wrong-rewarded",
    "wrong but rewarded",
    "not correct, yet the reward is above the mean of its group, or above 0"
    " where all rewards of the group are equal",
    _wrong_but_rewarded,
  ),
  Filter(
    "cut-off",
    "cut off",
    "the completion has no end",
    lambda row, _: not row.terminated,
  ),
  Filter(
    "unscored",
    "unscored",
    "no verifier gave a reward",
    lambda row, _: row.reward is None,
  ),
  Filter(
    "clipped",
    "clipped",
    "the loss would push a token no further",
    lambda row, _: bool(np.any(row.values.get("clipped", False))),
  ),
  Filter(
    "intercepted",
    "intercepted",
    "a call was blocked",
    lambda row, _: any(call.get("blocked") for call in row.calls),
  ),
  Filter(
    "disagreeing",
    "components disagree",
    "best of its group for one component, and worst for another",
    _disagreeing,
  ),
  Filter(
    "error",
    "error",
    "a verifier or a session failed",
    lambda row, _: bool(row.error),
  ),
)


def bits(row: traces.TraceRow, group: traces.Group) -> int:
  """Bit i is set if `FILTERS[i]` holds."""
  return sum(x.holds(row, group) << i for i, x in enumerate(FILTERS))


def score(group: traces.Group) -> float | None:
  """Share of correct completions, or their mean reward if that is unknown.

  None if no row was scored.
  """
  right = [float(row.correct) for row in group.rows if row.correct is not None]
  found = right or _rewards(group.rows)
  return _mean(found) if found else None


def regressed(groups: Sequence[traces.Group], since: int) -> list[bool]:
  """Marks the groups that score less than their prompt did at a step.

  Args:
    groups: Groups in the order of steps.
    since: A step. A prompt is compared with its last group up to it.

  Returns:
    For each group, whether it is later than `since` and has a lower `score`.
  """
  before: dict[tuple[str, int | str], float] = {}
  found = []
  for group in groups:
    value = score(group)
    if value is not None and group.step <= since:
      before[key(group)] = value
    found.append(
      value is not None
      and group.step > since
      and value < before.get(key(group), -math.inf)
    )
  return found


def key(group: traces.Group) -> tuple[str, int | str]:
  """A key that all groups of a prompt share: its record, or its text."""
  return group.split, group.record if group.record >= 0 else group.prompt


def has_text(row: traces.TraceRow, group: traces.Group, text: str) -> bool:
  """True if prompt, completion, error or calls have a text, in any case."""
  calls = [str(value) for call in row.calls for value in call.values()]
  parts = [group.prompt, row.opening, row.text, row.error, *calls]
  return any(text.lower() in part.lower() for part in parts)


def _rewards(rows: Iterable[traces.TraceRow]) -> list[float]:
  return [row.reward for row in rows if row.reward is not None]


def _mean(values: Sequence[float]) -> float:
  return sum(values) / len(values)

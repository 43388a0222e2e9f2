"""Which groups of a step are traced, and which held-out prompts.

| rule              | chooses                                                |
|-------------------|--------------------------------------------------------|
| named             | prompts of `config.log.trace_prompts`, all that come   |
| largest spread    | the group whose rewards differ most                    |
| regressed         | the held-out prompt that has lost most reward since    |
|                   | the last evaluation                                    |
| worst, best       | the group of the row with the least, the most reward   |
| most clipped      | the group with the most clipped tokens                 |
| random            | others, by a key of (seed, step), as many as are left; |
|                   | of held-out prompts the same each time, by the seed    |

Where several are equal, the order of the random ones decides. A step that has
raised an alarm is traced too, and then all of its groups are named "alarm".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Numbers:
  """What the rules read of B rows, of which each group has as many.

  Attributes:
    reward: Of each row; anything where it is not scored.
    scored: Rows with a verdict; of a rollout with contexts the last one.
    clipped: Clipped tokens of each row; None where nothing is.
    lost: Reward that each row had more at the time before; None the first time.
  """

  reward: np.ndarray  # [B] float32
  scored: np.ndarray  # [B] bool
  clipped: np.ndarray | None = None  # [B] int32
  lost: np.ndarray | None = None  # [B] float32


def choose(
  numbers: Numbers,
  size: int,
  count: int,
  named: Collection[int],
  key: Sequence[int],
  is_alarm: bool = False,
) -> dict[int, tuple[str, ...]]:
  """The groups, the most important first, with the rules that chose each.

  Args:
    numbers: The numbers of the rows.
    size: Rows of each group.
    count: Groups at most, beside those that are named.
    named: Groups that are chosen whatever they are.
    key: Of the random order, whole numbers from 0.
    is_alarm: Whether the step has raised an alarm.
  """
  order = np.random.default_rng(tuple(key)).permutation(
    len(numbers.reward) // size
  )
  found: dict[int, list[str]] = {int(group): ["named"] for group in named}
  limit = len(found) + count
  for rule, score in _scores(numbers, size):
    best = max(order.tolist(), key=lambda group: score[group])
    if score[best] == -np.inf or (best not in found and len(found) == limit):
      continue
    found.setdefault(best, []).append(rule)
  for group in order.tolist():
    if len(found) < limit and group not in found:
      found[group] = ["random"]
  alarm = ["alarm"] if is_alarm else []
  return {group: (*rules, *alarm) for group, rules in found.items()}


def _scores(numbers: Numbers, size: int) -> list[tuple[str, np.ndarray]]:
  """Scores [P] of groups by each rule; −inf where a rule finds nothing."""

  def over(reduce: Any, values: np.ndarray) -> np.ndarray:
    return reduce(values.reshape(-1, size), axis=1)

  inf = np.float64(np.inf)
  reward = numbers.reward.astype(np.float64)
  most = over(np.max, np.where(numbers.scored, reward, -inf))
  least = over(np.min, np.where(numbers.scored, reward, inf))
  found = []
  if size > 1:
    found.append(("largest spread", _if(most > least, most - least)))
  if numbers.lost is not None:
    lost = over(np.max, np.where(numbers.scored, numbers.lost, -inf))
    found.append(("regressed", _if(lost > 0, lost)))
  found += [("worst", -least), ("best", most)]
  if numbers.clipped is not None:
    clipped = over(np.sum, numbers.clipped.astype(np.float64))
    found.append(("most clipped", _if(clipped > 0, clipped)))
  return found


def _if(mask: np.ndarray, values: np.ndarray) -> np.ndarray:
  with np.errstate(invalid="ignore"):
    return np.where(mask & np.isfinite(values), values, -np.inf)


def is_named(names: Sequence[str], number: int, prompt: str) -> bool:
  """Whether a config names a prompt, by its number or by a part of its text."""
  return any(
    name == str(number) or (not name.isdecimal() and name in prompt)
    for name in names
  )

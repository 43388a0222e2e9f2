"""Claims of an experiment, and the rules of the checks that decide them.

    CLAIMS = table("C1 A is better than B.", difference("accuracy", "a", "b"))

A claim is a text with its rules. A rule makes a check from the scores of arms.
A claim is confirmed if all of its checks hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from experiments.sweeps.statistics import Check, Conclusion, check, minus

# (arm, what is measured, …) -> a number for each seed [S]; None while the arm
# is missing.
Scores = Callable[..., np.ndarray | None]
Rule = Callable[[Any], Check]  # Of `Scores`.


def rule(
  text: str,
  needed: str,
  one: tuple[str, ...],
  other: tuple[str, ...] | float | None = None,
) -> Rule:
  """Rule about a score, or about its difference from another, seed by seed.

  `one` and `other` are arguments of scores, or `other` is a number, and
  `needed` is the condition on the interval, as in `statistics.check`.
  """

  def made(of: Scores) -> Check:
    values = of(*one)
    if other is not None:
      known = of(*other) if isinstance(other, tuple) else other
      values = minus(values, known)
    return check(text, needed, (1, values))

  return made


def change(
  text: str, arm: str, after: str, before: str, needed: str = "above"
) -> Rule:
  """Rule about the difference of two scores of one arm."""
  return rule(text, needed, (arm, after), (arm, before))


def unpaired(
  text: str, needed: str, one: tuple[str, ...], other: tuple[str, ...]
) -> Rule:
  """Rule about the difference of two scores with seeds of their own."""
  return lambda of: check(text, needed, (1, of(*one)), (-1, of(*other)))


def difference(
  what: str, one: str, other: str, needed: str = "above", shown: str = ""
) -> Rule:
  """Rule about the difference of two arms; `shown` stands for `what`."""
  text = f"{shown or what}, `{one}` − `{other}`"
  return rule(text, needed, (one, what), (other, what))


def table(*parts: str | Rule) -> dict[str, tuple[Any, ...]]:
  """Claims by name, for `conclude`; each "NAME TEXT" is before its rules."""
  claims: dict[str, tuple[Any, ...]] = {}
  for part in parts:
    if isinstance(part, str):
      name, _, text = part.partition(" ")
      claims[name] = (text,)
    else:
      claims[name] += (part,)
  return claims


def conclude(
  claims: Mapping[str, tuple[Any, ...]], of: Scores
) -> list[Conclusion]:
  """Makes all checks for which numbers exist."""
  return [
    Conclusion(name, claim, tuple(make(of) for make in rules))
    for name, (claim, *rules) in claims.items()
  ]

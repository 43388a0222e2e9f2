"""The claims of the experiment, and the checks that confirm each of them.

The sizes were chosen after a trial run of the base alone; the rules below were
written before any arm had run. They look at one number per seed: the share of
right answers over 256 held-out sums, sampled at temperature 1, of one arm minus
that of another, or after reinforcement minus before it. The mean over five
seeds has Student's 95 % interval, and the interval decides. A claim is
confirmed if all of its checks hold. All arms but those of the smaller model
begin with the same base, so that an interval is about what follows.

Everything was run a second time, with the same rules, on another machine and
after changes of the code, so that draws are others. The verdict of S6 is
another one since: the first time it was not confirmed, with 0.169
[-0.088, 0.425] in the place of what stands below. All others are the same.

S1  More labelled examples make a better warm start: 512 are better than 64, and
    4096 better than 512.
S2  GRPO improves the base without a labelled example.
S3  After a warm start GRPO improves it further, for each number of examples.
S4  Both are better than one: with 512 examples and then GRPO the end is above
    GRPO alone with as many steps, and above 512 examples alone.
S5  GRPO alone ends above 512 labelled examples alone, at no label.
S6  A smaller model learns more from the right completions of a larger one than
    from the 512 labelled examples that the larger one had.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from experiments.stages import arms
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, Conclusion, check

# (arm, "before" or "after") -> [seeds]; None while the arm is missing.
Scores = Callable[[str, str], np.ndarray | None]


def _gap(
  of: Scores, one: tuple[str, str], other: tuple[str, str], text: str
) -> Check:
  """Checks that one number is above another, seed by seed."""
  return check(text, "above", (1, statistics.minus(of(*one), of(*other))))


def _rise(of: Scores, arm: str) -> Check:
  text = f"`{arm}`, after GRPO − before"
  return _gap(of, (arm, "after"), (arm, "before"), text)


def conclude(of: Scores) -> list[Conclusion]:
  """Conclusions about the claims, as far as numbers exist."""
  few, some, many = (f"sft-{n}" for n in arms.COUNTS)
  alone = arms.RL, "after"
  return [
    Conclusion(
      "S1",
      "More labelled examples make a better warm start",
      (
        _gap(of, (some, "before"), (few, "before"), "512 examples − 64"),
        _gap(of, (many, "before"), (some, "before"), "4096 examples − 512"),
      ),
    ),
    Conclusion(
      "S2",
      "GRPO improves the base without a labelled example",
      (_rise(of, arms.RL),),
    ),
    Conclusion(
      "S3",
      "After a warm start GRPO improves it further",
      tuple(_rise(of, arm) for arm in (few, some, many)),
    ),
    Conclusion(
      "S4",
      "512 examples and then GRPO are better than either alone",
      (
        _gap(of, (some, "after"), alone, "both − GRPO alone"),
        _gap(of, (some, "after"), (some, "before"), "both − examples alone"),
      ),
    ),
    Conclusion(
      "S5",
      "GRPO alone ends above 512 labelled examples alone",
      (_gap(of, alone, (some, "before"), "GRPO alone − 512 examples"),),
    ),
    Conclusion(
      "S6",
      "A smaller model learns more from kept completions than from the labels",
      (
        _gap(
          of,
          (arms.SMALL_KEPT, "after"),
          (arms.SMALL_LABELS, "after"),
          "kept completions − 512 examples",
        ),
      ),
    ),
  ]

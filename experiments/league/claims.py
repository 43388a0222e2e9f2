"""The rules of the league, and the checks of its claims.

Sizes were chosen after trials of two seeds of GRPO on each task; the rules
below were written before any other algorithm had been run. "Accuracy" is the
share of right answers to 512 held-out problems at temperature 1 after 6144
completions, of which those by which a critic learns alone are a part. The
*default* learning rate is 3e-4 for all. The *best* of a seed is that of 1e-4,
3e-4 and 9e-4 with the highest mean accuracy of the other four seeds, on the
same task. A run whose loss is no longer finite has accuracy 0.

The place in the table is by the interquartile mean over all seeds and tasks at
the best rates, with the bootstrap interval of `experiments.comparison`, and the
probability of improvement is that over GRPO. Neither says that two algorithms
differ. That is said by the *verdict*: differences to GRPO of the mean over
tasks, seed by seed, by Student's t, with Holm's correction for all algorithms
of the league. Below 0.05 it is "above" or "below", and else "open".

A check takes the mean over tasks of each seed. Student's 95 % interval over
seeds decides whether the check holds. A claim is confirmed if all of its checks
hold.

L1  All algorithms learn: each ends above its warm start, at its best rates.
R1  A choice among three learning rates pays: over the algorithms, the mean of
    accuracy at the best rates − at the default rate is above 0.
C1  PPO, whose critic takes its part of the completions, ends not below GRPO, at
    the best rates.
W1  REINFORCE, without groups, ends below GRPO, at the best rates.
E1  The wider clip range of DAPO leaves more entropy than that of GRPO, at the
    default rate.
K1  Pass@k training leaves more entropy than GRPO, at the default rate.
K2  And it ends below GRPO.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from experiments.comparison import aggregates
from experiments.league import arms
from experiments.league.results import Results
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, check

LEVEL = 0.05


def _learn(of: Results) -> Iterator[Check]:
  for name, entry in arms.ENTRIES.items():
    change = statistics.minus(
      of.scores(name, "after", "best"), of.scores(name, "before", "best")
    )
    yield check(f"{entry.shown}, after − before", "above", (1, change))


def gain(of: Results) -> np.ndarray | None:  # [S]
  """Mean gain over all algorithms of the best rates over the default one.

  None while an algorithm is missing.
  """
  if len(of.complete) < len(arms.ENTRIES):
    return None
  best, default = (
    np.mean([of.scores(name, "after", x) for name in arms.ENTRIES], axis=0)
    for x in ("best", "default")
  )
  return best - default


def _rates(of: Results) -> Iterator[Check]:
  yield check("accuracy, best − default rate", "above", (1, gain(of)))


def _against(
  name: str, what: str, which: str, needed: str, of: Results
) -> Iterator[Check]:
  values = statistics.minus(
    of.scores(name, what, which), of.scores(arms.BASELINE, what, which)
  )
  noun = "accuracy" if what == "after" else what
  shown = arms.ENTRIES[name].shown
  yield check(f"{noun} of {shown} − GRPO, {which} rate", needed, (1, values))


CLAIMS: dict[str, tuple[str, Callable[[Results], Iterator[Check]]]] = {
  "L1": ("All algorithms learn.", _learn),
  "R1": ("A choice among three learning rates pays.", _rates),
  "C1": (
    "PPO is not below GRPO.",
    functools.partial(_against, "ppo", "after", "best", "not below"),
  ),
  "W1": (
    "REINFORCE is below GRPO.",
    functools.partial(_against, "reinforce", "after", "best", "below"),
  ),
  "E1": (
    "DAPO leaves more entropy than GRPO.",
    functools.partial(_against, "dapo", "entropy", "default", "above"),
  ),
  "K1": (
    "Pass@k training leaves more entropy than GRPO.",
    functools.partial(_against, "passk", "entropy", "default", "above"),
  ),
  "K2": (
    "Pass@k training is below GRPO.",
    functools.partial(_against, "passk", "after", "best", "below"),
  ),
}
conclude = functools.partial(statistics.conclude, CLAIMS)


def verdicts(of: Results) -> dict[str, str]:
  """ "above", "below" or "open", of each algorithm that has ended on all tasks.

  The correction is for all comparisons of the league, made or not. So a verdict
  about a part of the league stays when the rest is there, unless it is "open".
  """
  base = of.scores(arms.BASELINE, "after", "best")
  if base is None:
    return {}
  names = [name for name in of.complete if name != arms.BASELINE]
  found = [
    statistics.contrast([(1, of.scores(name, "after", "best") - base)])
    for name in names
  ]
  missing = len(arms.ENTRIES) - 1 - len(names)
  adjusted = aggregates.holm([*(x.p for x in found), *[1.0] * missing])
  return {
    name: "open"
    if p >= LEVEL
    else "above"
    if contrast.estimate > 0
    else "below"
    for name, contrast, p in zip(names, found, adjusted, strict=False)
  }

"""The claims of the experiment, and the checks that confirm each of them.

Settings and thresholds were chosen after trial runs of single arms, and before
arms were compared. The rules look at one number per seed, at the end of
training. Arms are compared seed by seed, because a seed means the same warm
start: the mean of the differences has Student's 95 % interval, which of five
seeds is approximate. A claim is confirmed if all of its checks hold.

E2   Summaries must be trained with the rest: `joint` is above `frozen` and
     above 0.8, and `frozen` is below 0.6; guessing is right in 0.5.
E3   Token-level loss and cross-segment discount matter: `joint` is above both
     ablations. Contexts of MEMCHAIN are about equally long, so that tokens and
     contexts weigh nearly the same: a task of unequal ones would tell more.
E4   The gap between PPO and GRPO grows with the horizon: Spearman's correlation
     of horizon and gap, of each seed, is above 0 on average.
E12  A guard closes a leak, and a dummy observation is better than the end of
     the episode: `none` hacks more than `two_stage`, whose accuracy without the
     leak is above that of `none` and of `abort`.
E14  Credit by state is better in several turns: `gagpo` is above `grpo`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from scipy import stats

from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, Conclusion, check

# (arm, metric, place among the values of what is varied) -> [seeds] or None.
Scores = Callable[..., np.ndarray | None]


def _above(
  text: str, one: np.ndarray | None, other: np.ndarray | None
) -> Check:
  """Checks that one arm is above another, seed by seed."""
  return check(text, "above", (1, statistics.minus(one, other)))


def _joint(of: Scores, values: Sequence[float]) -> Iterator[Check]:
  del values
  joint, frozen = of("joint"), of("frozen")

  def level(number: float) -> tuple[float, np.ndarray]:
    return -number, np.ones(2)

  yield _above("`joint` − `frozen`", joint, frozen)
  yield check("`joint` − 0.8", "above", (1, joint), level(0.8))
  yield check("`frozen` − 0.6", "below", (1, frozen), level(0.6))


def _ablations(of: Scores, values: Sequence[float]) -> Iterator[Check]:
  del values
  for arm in ("without-token-loss", "without-discount"):
    yield _above(f"`joint` − `{arm}`", of("joint"), of(arm))


def _trend(of: Scores, values: Sequence[float]) -> Iterator[Check]:
  scores = [
    [of(arm, place=place) for place in range(len(values))]
    for arm in ("ppo", "grpo")
  ]
  text, needed = "Spearman's ρ of horizon and `ppo` − `grpo`", "above"
  if any(x is None for row in scores for x in row):
    yield check(text, needed, (1, None))
    return
  ppo, grpo = np.array(scores)  # each [values, S]
  rhos = trend(np.array(values), ppo - grpo)
  yield check(text, needed, (1, rhos))


def trend(
  places: np.ndarray,  # [N]
  gaps: np.ndarray,  # [N, S]
) -> np.ndarray:  # [S]
  """Spearman's correlation of place and gap; 0 where gaps are equal."""
  return np.array(
    [
      stats.spearmanr(places, gap).statistic if np.ptp(gap) else 0.0
      for gap in gaps.T
    ]
  )


def _interceptor(of: Scores, values: Sequence[float]) -> Iterator[Check]:
  del values
  yield _above(
    "hacked, `none` − `two_stage`",
    of("none", "hacked"),
    of("two_stage", "hacked"),
  )
  for arm in ("none", "abort"):
    yield _above(
      f"accuracy without the leak, `two_stage` − `{arm}`",
      of("two_stage"),
      of(arm),
    )


def _states(of: Scores, values: Sequence[float]) -> Iterator[Check]:
  del values
  yield _above("`gagpo` − `grpo`", of("gagpo"), of("grpo"))


CLAIMS: Mapping[str, tuple[str, Callable[..., Iterator[Check]]]] = {
  "E2": (
    "Trained with the rest, summaries carry the fact; written by a policy that"
    " is not trained to write them, they carry chance.",
    _joint,
  ),
  "E3": (
    "A loss over tokens and the discount across contexts both make CompactionRL"
    " better.",
    _ablations,
  ),
  "E4": ("The gap between PPO and GRPO grows with the horizon.", _trend),
  "E12": (
    "A guard closes the leak, and a dummy observation is better than the end of"
    " the episode.",
    _interceptor,
  ),
  "E14": ("GAGPO is better than GRPO in several turns.", _states),
}


def conclude(name: str, of: Scores, values: Sequence[float]) -> Conclusion:
  """Makes the checks of an experiment for which numbers exist."""
  claim, checks = CLAIMS[name]
  return Conclusion(name, claim, tuple(checks(of, values)))


def spread(values: np.ndarray) -> str:
  """Mean and 95 % interval by Student's t, of at least two values."""
  return statistics.text(statistics.contrast([(1, values)]), 3)

"""The claims of the experiment, and the checks that confirm each of them.

Sizes were chosen after a trial of seed 0 of GRPO without errors; the rules
below were written then, before any run but that and the warm starts. They look
at the share of right answers, by the verifier without errors, to 512 held-out
prompts at temperature 1: of the warm start, and after 10 240 completions. Arms
are compared seed by seed, with the same warm start. The *slope* of a seed is
that of the least squares line through its accuracies at the end over the five
probabilities from 0 to 0.4. The mean over seeds has Student's 95 % interval,
and the interval decides. A claim is confirmed if all of its checks hold.

L1  Without errors each of the four algorithms ends above the warm start.
S1  GRPO's slope is below 0: the more errors, the less is learned.
S2  So is that of Dr. GRPO.
S3  So is that of RLOO.
S4  So is that of PPO.
G1  With 20 % of errors GRPO ends above the warm start.
G2  With 40 % it still does.
D1  With 40 % Dr. GRPO ends above GRPO: a group in which a few errors are all
    that differs weighs less without a division by the deviation.
R1  With 40 % RLOO ends above GRPO, for the same reason.
P1  With 40 % PPO ends above GRPO: its critic has many prompts to average over.
P2  PPO loses less than GRPO from no errors to 40 %.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from experiments.flips import arms
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, check

# (arm, "before" or "after") -> accuracy [seeds]; None while it is missing.
Scores = Callable[[str, str], np.ndarray | None]


def slope(of: Scores, algorithm: str) -> np.ndarray | None:  # [S]
  """Accuracy per unit of probability; None while an arm is missing."""
  found = [of(f"{algorithm}-{n}", "after") for n in arms.PERCENT]
  known = [values for values in found if values is not None]
  if len(known) < len(found):
    return None
  return np.polyfit(np.array(arms.PERCENT) / 100, np.stack(known), 1)[0]


def _improves(names: tuple[str, ...], of: Scores) -> Iterator[Check]:
  for name in names:
    change = statistics.minus(of(name, "after"), of(name, "before"))
    yield check(f"`{name}`, after − before", "above", (1, change))


def _falls(algorithm: str, of: Scores) -> Iterator[Check]:
  yield check(f"slope of `{algorithm}`", "below", (1, slope(of, algorithm)))


def _better(algorithm: str, of: Scores) -> Iterator[Check]:
  values = statistics.minus(
    of(f"{algorithm}-40", "after"), of("grpo-40", "after")
  )
  yield check(f"`{algorithm}-40` − `grpo-40`", "above", (1, values))


def _loses_less(of: Scores) -> Iterator[Check]:
  ppo, grpo = (
    statistics.minus(of(f"{name}-40", "after"), of(f"{name}-0", "after"))
    for name in ("ppo", "grpo")
  )
  yield check(
    "(`ppo-40` − `ppo-0`) − (`grpo-40` − `grpo-0`)",
    "above",
    (1, statistics.minus(ppo, grpo)),
  )


CLAIMS: dict[str, tuple[str, Callable[[Scores], Iterator[Check]]]] = {
  "L1": (
    "Without errors all four algorithms learn.",
    functools.partial(_improves, tuple(f"{x}-0" for x in arms.ALGORITHMS)),
  ),
  **{
    f"S{place}": (
      f"The more errors, the less {shown} learns.",
      functools.partial(_falls, name),
    )
    for place, (name, shown) in enumerate(arms.ALGORITHMS.items(), 1)
  },
  "G1": (
    "With 20 % of errors GRPO learns.",
    functools.partial(_improves, ("grpo-20",)),
  ),
  "G2": (
    "With 40 % of errors GRPO learns.",
    functools.partial(_improves, ("grpo-40",)),
  ),
  "D1": (
    "With 40 % Dr. GRPO is better than GRPO.",
    functools.partial(_better, "dr_grpo"),
  ),
  "R1": (
    "With 40 % RLOO is better than GRPO.",
    functools.partial(_better, "rloo"),
  ),
  "P1": (
    "With 40 % PPO is better than GRPO.",
    functools.partial(_better, "ppo"),
  ),
  "P2": ("PPO loses less by errors than GRPO.", _loses_less),
}
conclude = functools.partial(statistics.conclude, CLAIMS)

"""The claims of the experiment, and the checks that confirm each of them.

The rules below were written after trials of seed 0 of `base`, and before any
arm but `uniform` had been run. That one did not learn from a teacher without
errors, whom `base` imitated for 1000 steps: 0.173 of its answers were right
before, and 0.146 after. So there was nothing to compare, and the teacher was
made to forget carries, and imitated for longer; no rule was changed. They look
at the share of right answers to 512 held-out prompts at temperature 1, as many
of each number of digits. The *area* of a seed is the mean height of its
accuracy over generated completions, from the warm start to the end, by
trapezoids. "Live" is the share of groups of a step whose rewards differ, over
all steps. Arms are compared seed by seed, with the same warm start, the same
pool of prompts and as many generated completions. The mean over seeds has
Student's 95 % interval, and the interval decides. A claim is confirmed if all
of its checks hold.

B1  Prompts drawn alike are learned from: `uniform` ends above the warm start.
C1  ADS has a larger area than `uniform`.
C2  So has `frontier`.
C3  So has `easy_to_hard`.
C4  So has `target`.
C5  So has SPO, with one completion of each prompt.
C6  ADS has a larger area than `frontier`, which needs no clusters.
G1  ADS has more live groups than `uniform`.
G2  So has `frontier`.
G3  So has `target`.
H1  `easy_to_hard` pays for easy prompts on the hardest: its accuracy at four
    digits at the end is below that of `uniform`.
H2  `frontier` does not: its accuracy at four digits is not below.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from experiments.curricula import arms, results
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, check

# (arm, what) -> [seeds]; None while the arm is missing.
Scores = Callable[[str, str], np.ndarray | None]
_AREA = f"area/{results.ALL}"
_HARDEST = f"end/{arms.DOMAINS[-1]}"


def _learns(of: Scores) -> Iterator[Check]:
  after, before = (
    of("uniform", f"{x}/{results.ALL}") for x in ("end", "start")
  )
  change = statistics.minus(after, before)
  yield check("`uniform`, end − start", "above", (1, change))


def _compared(
  what: str, needed: str, one: str, other: str, of: Scores
) -> Iterator[Check]:
  values = statistics.minus(of(one, what), of(other, what))
  yield check(f"{what}, `{one}` − `{other}`", needed, (1, values))


def _against(
  what: str, one: str, needed: str = "above", other: str = "uniform"
):
  return functools.partial(_compared, what, needed, one, other)


CLAIMS: dict[str, tuple[str, Callable[[Scores], Iterator[Check]]]] = {
  "B1": ("Prompts drawn alike are learned from.", _learns),
  "C1": ("ADS is better than `uniform`.", _against(_AREA, "ads")),
  "C2": ("`frontier` is better.", _against(_AREA, "frontier")),
  "C3": ("`easy_to_hard` is better.", _against(_AREA, "easy_to_hard")),
  "C4": ("`target` is better.", _against(_AREA, "target")),
  "C5": ("SPO is better.", _against(_AREA, "spo")),
  "C6": (
    "ADS is better than `frontier`.",
    _against(_AREA, "ads", other="frontier"),
  ),
  "G1": ("ADS has more live groups than `uniform`.", _against("live", "ads")),
  "G2": ("`frontier` has more.", _against("live", "frontier")),
  "G3": ("`target` has more.", _against("live", "target")),
  "H1": (
    "`easy_to_hard` is worse at four digits.",
    _against(_HARDEST, "easy_to_hard", "below"),
  ),
  "H2": (
    "`frontier` is not.",
    _against(_HARDEST, "frontier", "not below"),
  ),
}
conclude = functools.partial(statistics.conclude, CLAIMS)

"""The claims of the experiment, and the checks that confirm each of them.

The rules below were written before any arm but `base` had been run. Known were
single runs of EDGE on this task in other sizes, with corrections and without,
in which those with corrections learned less. "Entropy" is that of the
distributions that tokens are drawn from, nats per token; a *window* is the mean
over a tenth of the steps. The *rebound* of a seed is its last window over its
least one, if that is neither the first nor the last window; else 1. "pass@1"
and "pass@16" are of 256 held-out problems, of which 16 answers each are drawn
at temperature 1, after the last step. Arms are compared seed by seed, with the
same start. The mean over five seeds has Student's 95 % interval, and the
interval decides. A claim is confirmed if all of its checks hold.

E1  GRPO's entropy falls: its last window − its first one is below 0.
E2  And does not come back: its rebound − 1.2 is not above 0.
B1  With clip-higher it does: rebound − 1.2 is above 0.
B2  So it does with GTPO.
B3  So it does with GRPO-S.
B4  So it does with EDGE.
B5  So it does with EDGE and corrections.
B6  So it does with an entropy bonus.
P1  pass@16 is higher than GRPO's with GTPO: the difference is above 0.
P2  So it is with GRPO-S.
P3  So it is with EDGE.
P4  So it is with EDGE and corrections.
C1  Corrections remove most groups without a signal early: of the groups that
    were dead before, in the first window of `edge-gec`, the share that was made
    live − 0.5 is above 0.
C2  They pay: pass@1 of `edge-gec` − `edge` is above 0.
C3  To train hints pays: pass@1 of `edge-gec-trained` − `edge-gec` is above 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, check

# (arm, what) -> [seeds]; None while the arm is missing.
Scores = Callable[[str, str], np.ndarray | None]
REBOUND = 1.2
MOST = 0.5


def _difference(of: Scores, what: str, one: str, other: str) -> Check:
  values = statistics.minus(of(one, what), of(other, what))
  return check(f"{what}, `{one}` − `{other}`", "above", (1, values))


def _falls(of: Scores) -> Iterator[Check]:
  yield check("fall of `grpo`", "below", (1, of("grpo", "growth")))


def _rebounds(arm: str, needed: str, of: Scores) -> Iterator[Check]:
  values = statistics.minus(of(arm, "rebound"), REBOUND)
  yield check(f"rebound of `{arm}` − {REBOUND}", needed, (1, values))


def _more(what: str, one: str, other: str, of: Scores) -> Iterator[Check]:
  yield _difference(of, what, one, other)


def _made_live(of: Scores) -> Iterator[Check]:
  values = statistics.minus(of("edge-gec", "made_live"), MOST)
  yield check(f"made live of `edge-gec` − {MOST}", "above", (1, values))


_REBOUNDS = {
  "clip-higher": "clip-higher",
  "gtpo": "GTPO",
  "grpo_s": "GRPO-S",
  "edge": "EDGE",
  "edge-gec": "EDGE and corrections",
  "bonus": "an entropy bonus",
}
_PASSES = ("gtpo", "grpo_s", "edge", "edge-gec")
CLAIMS: dict[str, tuple[str, Callable[[Scores], Iterator[Check]]]] = {
  "E1": ("GRPO's entropy falls.", _falls),
  "E2": (
    "GRPO's entropy does not come back.",
    functools.partial(_rebounds, "grpo", "not above"),
  ),
  **{
    f"B{place}": (
      f"Entropy comes back with {shown}.",
      functools.partial(_rebounds, arm, "above"),
    )
    for place, (arm, shown) in enumerate(_REBOUNDS.items(), 1)
  },
  **{
    f"P{place}": (
      f"pass@16 is higher than GRPO's with {_REBOUNDS[arm]}.",
      functools.partial(_more, "pass@16", arm, "grpo"),
    )
    for place, arm in enumerate(_PASSES, 1)
  },
  "C1": ("Corrections remove most groups without a signal early.", _made_live),
  "C2": (
    "Corrections pay.",
    functools.partial(_more, "pass@1", "edge-gec", "edge"),
  ),
  "C3": (
    "To train hints pays.",
    functools.partial(_more, "pass@1", "edge-gec-trained", "edge-gec"),
  ),
}
conclude = functools.partial(statistics.conclude, CLAIMS)

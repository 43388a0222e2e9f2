"""The claims of the experiment, and the checks that confirm each of them.

The rules below were written before any arm had been run with the seeds that are
shown, 0 to 5, and none was changed. The task, the model and the rate are those
of the experiment on old completions (`experiments/staleness`), of which it is
known that a gap of sampler and trainer costs accuracy; steps are 160 and not
96, so that what accumulates can be seen. No trial was made but the smallest
size, which shows that the code runs.

"Accuracy" is the share of right answers to 512 held-out problems, one answer
each, drawn at temperature 1 by kernels as they are. The *end* is its mean over
the last four of 16 evaluations; the *start* is what the arm began with. Arms
are compared seed by seed, with the same start and the same draws. The mean over
six seeds has Student's 95 % interval, and the interval decides. A claim is
confirmed if all of its checks hold.

L1  There is something to learn: `exact-none`, end − start, is above 0.
G1  float8 is further from the trainer than int8: the mean distance of
    log-probs, `float8-none` − `int8-none`, is above 0.
Z1  A correction costs nothing where nothing is rounded: `exact-tis` −
    `exact-none` is not below 0.
A1  int8 without a correction loses less than 0.02: `int8-none` − `exact-none`
    + 0.02 is above 0.
A2  So does float8: `float8-none` − `exact-none` + 0.02 is above 0.
T1  With truncated weights both lose less than 0.02: `int8-tis` and
    `float8-tis`, − `exact-none` + 0.02, are above 0.
B1  Truncated weights help with int8: `int8-tis` − `int8-none` is above 0.
B2  They help with float8: `float8-tis` − `float8-none` is above 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, check

# (arm, what) -> [seeds]; None while the arm is missing.
Scores = Callable[[str, str], np.ndarray | None]
EXACT = "exact-none"
MARGIN = 0.02  # Of accuracy.


def _learns(of: Scores) -> Iterator[Check]:
  values = statistics.minus(of(EXACT, "end"), of(EXACT, "start"))
  yield check(f"accuracy of `{EXACT}`, end − start", "above", (1, values))


def _is_further(of: Scores) -> Iterator[Check]:
  one, other = "float8-none", "int8-none"
  values = statistics.minus(of(one, "gap"), of(other, "gap"))
  yield check(f"gap, `{one}` − `{other}`", "above", (1, values))


def _compared(
  arms: tuple[str, ...], other: str, needed: str, of: Scores
) -> Iterator[Check]:
  for one in arms:
    values = statistics.minus(of(one, "end"), of(other, "end"))
    yield check(f"accuracy, `{one}` − `{other}`", needed, (1, values))


def _loses_little(arms: tuple[str, ...], of: Scores) -> Iterator[Check]:
  for one in arms:
    values = statistics.minus(of(one, "end"), of(EXACT, "end"))
    values = statistics.minus(values, -MARGIN)
    text = f"accuracy, `{one}` − `{EXACT}` + {MARGIN}"
    yield check(text, "above", (1, values))


CLAIMS: dict[str, tuple[str, Callable[[Scores], Iterator[Check]]]] = {
  "L1": ("There is something to learn.", _learns),
  "G1": ("float8 is further from the trainer than int8.", _is_further),
  "Z1": (
    "A correction costs nothing where nothing is rounded.",
    functools.partial(_compared, ("exact-tis",), EXACT, "not below"),
  ),
  "A1": (
    "int8 without a correction loses less than 0.02.",
    functools.partial(_loses_little, ("int8-none",)),
  ),
  "A2": (
    "float8 without a correction loses less than 0.02.",
    functools.partial(_loses_little, ("float8-none",)),
  ),
  "T1": (
    "With truncated weights both lose less than 0.02.",
    functools.partial(_loses_little, ("int8-tis", "float8-tis")),
  ),
  "B1": (
    "Truncated weights help with int8.",
    functools.partial(_compared, ("int8-tis",), "int8-none", "above"),
  ),
  "B2": (
    "Truncated weights help with float8.",
    functools.partial(_compared, ("float8-tis",), "float8-none", "above"),
  ),
}
conclude = functools.partial(statistics.conclude, CLAIMS)

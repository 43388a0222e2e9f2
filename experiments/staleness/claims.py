"""The claims of the experiment, and the checks that confirm each of them.

The rules below were written before any arm had been run with the seeds that are
shown, 0 to 5, and none was changed. Seeds 100 and 101 were for trials, of which
nothing is shown: `none-s0` at a learning rate of 1e-3 on a teacher in error
every second time, where accuracy fell on policy too; then `none-s0`, `none-s16`
and `tis-s16` at 3e-4 on the teacher that is shown, and `none-s16` at 6e-4. At
3e-4 `none-s0` rose, `none-s16` fell, and `tis-s16` fell and came back; so that
rate was taken.

"Accuracy" is the share of right answers to 512 held-out problems, one answer
each, drawn at temperature 1. The *end* is its mean over the last four of 16
evaluations; the *start* is what the arm began with. Arms are compared seed by
seed, with the same start. The mean over six seeds has Student's 95 % interval,
and the interval decides. A claim is confirmed if all of its checks hold. `c` is
each of `tis`, `dis`, `mis`, `opsm` and `reject`.

L1  On policy there is something to learn: `none-s0`, end − start, is above 0.
A1  One update costs nothing: `none-s1` − `none-s0` is not below 0.
A2  Four updates cost accuracy: `none-s4` − `none-s0` is below 0.
A3  Sixteen cost more: `none-s16` − `none-s4` is below 0.
Z1  Corrections cost nothing where nothing is old: `c-s0` − `none-s0` is not
    below 0, for each c.
B1  Truncated weights help after 16 updates: `tis-s16` − `none-s16` is above 0.
B2  So does the mask of tokens: `dis-s16` − `none-s16` is above 0.
B3  So does the mask of completions: `mis-s16` − `none-s16` is above 0.
B4  So does it to leave bad completions out: `opsm-s16` − `none-s16` is above 0.
B5  So does it to leave out all that has moved: `reject-s16` − `none-s16` is
    above 0.
R1  After four updates corrections make up for all of it: `c-s4` − `none-s0` is
    not below 0, for each c.
R2  So they do after 16: `c-s16` − `none-s0` is not below 0, for each c.
D1  To mask tokens is better than to truncate their weights: `dis-s16` −
    `tis-s16` is above 0 (SAO, arXiv:2607.07508, has the mask).
D2  To mask completions is better than that: `mis-s16` − `tis-s16` is above 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from experiments.staleness import arms
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, check

# (arm, what) -> [seeds]; None while the arm is missing.
Scores = Callable[[str, str], np.ndarray | None]
FRESH = "none-s0"
_CORRECTIONS = tuple(name for name in arms.CORRECTIONS if name != "none")


def _difference(one: str, other: str, needed: str, of: Scores) -> Check:
  values = statistics.minus(of(one, "end"), of(other, "end"))
  return check(f"accuracy, `{one}` − `{other}`", needed, (1, values))


def _learns(of: Scores) -> Iterator[Check]:
  values = statistics.minus(of(FRESH, "end"), of(FRESH, "start"))
  yield check(f"accuracy of `{FRESH}`, end − start", "above", (1, values))


def _compared(one: str, other: str, needed: str, of: Scores) -> Iterator[Check]:
  yield _difference(one, other, needed, of)


def _each(staleness: int, of: Scores) -> Iterator[Check]:
  for name in _CORRECTIONS:
    arm = arms.name_of(name, staleness)
    yield _difference(arm, FRESH, "not below", of)


_HELPS = {
  "tis": "Truncated weights help after 16 updates.",
  "dis": "The mask of tokens helps after 16 updates.",
  "mis": "The mask of completions helps after 16 updates.",
  "opsm": "To leave bad completions out helps after 16 updates.",
  "reject": "To leave out all that has moved helps after 16 updates.",
}
CLAIMS: dict[str, tuple[str, Callable[[Scores], Iterator[Check]]]] = {
  "L1": ("On policy there is something to learn.", _learns),
  "A1": (
    "One update costs nothing.",
    functools.partial(_compared, "none-s1", FRESH, "not below"),
  ),
  "A2": (
    "Four updates cost accuracy.",
    functools.partial(_compared, "none-s4", FRESH, "below"),
  ),
  "A3": (
    "Sixteen updates cost more than four.",
    functools.partial(_compared, "none-s16", "none-s4", "below"),
  ),
  "Z1": (
    "Corrections cost nothing where nothing is old.",
    functools.partial(_each, 0),
  ),
  **{
    f"B{place}": (
      claim,
      functools.partial(_compared, f"{name}-s16", "none-s16", "above"),
    )
    for place, (name, claim) in enumerate(_HELPS.items(), 1)
  },
  "R1": (
    "After four updates corrections make up for all of it.",
    functools.partial(_each, 4),
  ),
  "R2": (
    "After 16 updates corrections make up for all of it.",
    functools.partial(_each, 16),
  ),
  "D1": (
    "To mask tokens is better than to truncate their weights.",
    functools.partial(_compared, "dis-s16", "tis-s16", "above"),
  ),
  "D2": (
    "To mask completions is better than to truncate weights of tokens.",
    functools.partial(_compared, "mis-s16", "tis-s16", "above"),
  ),
}
conclude = functools.partial(statistics.conclude, CLAIMS)

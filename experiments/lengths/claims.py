"""The claims of the experiment, and the checks that confirm each of them.

The task and its sizes were chosen after trials of seed 0 of `base` and of
`grpo`, in which lengths grew; the rules below were written before any other arm
had been run. "Length" is the mean number of tokens, and "accuracy" the share of
right answers, of the completions that are drawn in the last 20 steps of an arm,
before any is left out. ELR is the share of the growth of `all` that an arm has
not: (`all` − arm) / (`all` − start), where the start is the mean over the first
5 steps. Arms are compared seed by seed, with the same prompts and the same
start. The mean over five seeds has Student's 95 % interval, and the interval
decides. A claim is confirmed if all of its checks hold.

G1  A reward that likes length by a bug of 0.02 makes GRPO's completions longer:
    the growth of `all` and that of `grpo` are above 0.
G2  GFPO takes back more than three tenths of the growth, by the shortest 8 of
    16, and is as often right: ELR − 0.3 is above 0, and its accuracy minus that
    of `all` is not below 0.
G3  The same of the shortest 8 of 24.
G4  The same of the shortest 4 of 16.
G5  The same of reward per token.
G6  The same of a number that adapts to the difficulty.
G7  The fewer are kept of those drawn, the shorter: ELR of 8 of 24 is above that
    of 8 of 16, and so is that of 4 of 16.
G8  Reward per token is better than length: its ELR is above that of the
    shortest 8 of 16.
G9  Dr. GRPO, which does not divide by the deviation, grows less from the bug:
    the length of `dr_grpo` − `grpo` is below 0.
G10 GRPO makes wrong answers longer even without the bug, as it divides by
    lengths: the growth of wrong completions in `grpo-mended` is above 0.
G11 Dr. GRPO does so less: the same growth in `dr_grpo-mended` is smaller.

The last two were added when all others were known, and G2 to G6 had failed:
does GFPO fail because of the bug, which its kept completions share, or because
it never trains on a long wrong completion? Their rules were written before
their two arms were run.

G12 Without the bug the shortest 8 of 16 are shorter: the length of
    `shortest-mended` − `all-mended` is below 0.
G13 And as often right: the same of accuracies is not below 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from experiments.lengths import arms
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, check

# (arm, what) -> [seeds]; None while the arm is missing.
Scores = Callable[[str, str], np.ndarray | None]
REQUIRED = 0.3  # Of the growth.


def _difference(of: Scores, what: str, one: str, other: str, needed: str):
  values = statistics.minus(of(one, what), of(other, what))
  return check(f"{what}, `{one}` − `{other}`", needed, (1, values))


def _grows(of: Scores) -> Iterator[Check]:
  for arm in ("all", "grpo"):
    yield check(f"growth of `{arm}`", "above", (1, of(arm, "growth/length")))


def _shortens(arm: str, of: Scores) -> Iterator[Check]:
  excess = statistics.minus(of(arm, "elr"), REQUIRED)
  yield check(f"ELR of `{arm}` − {REQUIRED}", "above", (1, excess))
  yield _difference(of, "accuracy", arm, "all", "not below")


def _fewer(of: Scores) -> Iterator[Check]:
  for arm in ("shortest-8of24", "shortest-4of16"):
    yield _difference(of, "elr", arm, "shortest-8of16", "above")


def _efficient(of: Scores) -> Iterator[Check]:
  yield _difference(of, "elr", "efficiency", "shortest-8of16", "above")


def _undivided(of: Scores) -> Iterator[Check]:
  yield _difference(of, "length", "dr_grpo", "grpo", "below")


def _wrong_grow(of: Scores) -> Iterator[Check]:
  yield check(
    "growth of wrong completions, `grpo-mended`",
    "above",
    (1, of("grpo-mended", "growth/wrong")),
  )


def _wrong_grow_less(of: Scores) -> Iterator[Check]:
  yield _difference(
    of, "growth/wrong", "dr_grpo-mended", "grpo-mended", "below"
  )


def _mended(what: str, needed: str, of: Scores) -> Iterator[Check]:
  yield _difference(of, what, "shortest-mended", "all-mended", needed)


_TEXTS = {
  "shortest-8of16": "The shortest 8 of 16",
  "shortest-8of24": "The shortest 8 of 24",
  "shortest-4of16": "The shortest 4 of 16",
  "efficiency": "The 8 of 16 with the most reward per token",
  "adaptive": "The shortest, fewer of easy prompts,",
}
CLAIMS: dict[str, tuple[str, Callable[[Scores], Iterator[Check]]]] = {
  "G1": ("A reward that likes length makes GRPO's completions longer.", _grows),
  **{
    f"G{2 + place}": (
      f"{_TEXTS[arm]} take back more than {REQUIRED} of the growth, as often"
      " right.",
      functools.partial(_shortens, arm),
    )
    for place, arm in enumerate(arms.FILTERED)
  },
  "G7": ("The fewer are kept of those drawn, the shorter.", _fewer),
  "G8": ("Reward per token is better than length.", _efficient),
  "G9": ("Dr. GRPO grows less from the bug.", _undivided),
  "G10": ("GRPO makes wrong answers longer without the bug.", _wrong_grow),
  "G11": ("Dr. GRPO does so less.", _wrong_grow_less),
  "G12": (
    "Without the bug the shortest 8 of 16 are shorter.",
    functools.partial(_mended, "length", "below"),
  ),
  "G13": (
    "Without the bug they are as often right.",
    functools.partial(_mended, "accuracy", "not below"),
  ),
}
conclude = functools.partial(statistics.conclude, CLAIMS)

"""Rollouts by rounded kernels, and a correction for them.

The rules below were written before any arm had been run with the seeds that are
shown, 0 to 5, and none was changed. The task, the model and the rate are those
of the experiment on old completions (`staleness`), of which it is
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
import pathlib
from typing import Any

import ml_collections

from experiments.science import arms, pages, staleness
from experiments.science.arms import Arm, Size
from experiments.science.claims import Rule, change, difference, table
from experiments.sweeps import statistics
from grpo_jax.training.monitor import style

BASE = "base"
# Short name -> config.sampling.weights_dtype.
KERNELS = {"exact": "model", "int8": "int8", "float8": "float8_e4m3fn"}
CORRECTIONS = {
  "none": Arm(
    "nothing: what rounded kernels drew is taken for the policy's own",
    settings={"sampling.uncorrected": True},
  ),
  "tis": staleness.CORRECTIONS["tis"],
}
# Name -> the settings of the arm.
ARMS: dict[str, dict[str, Any]] = {
  BASE: {},
  **{
    f"{kernels}-{correction}": {
      "sampling.weights_dtype": KERNELS[kernels],
      **CORRECTIONS[correction].settings,
    }
    for kernels in KERNELS
    for correction in CORRECTIONS
  },
}
SIZES = {
  "full": Size(6, 200, 160, 8, 512),
  "smoke": Size(2, 10, 4, 2, 16),
}
GROUP_SIZE, LEARNING_RATE = staleness.GROUP_SIZE, staleness.LEARNING_RATE
ALL = arms.Arms(ARMS, SIZES, BASE)
sweep, follows_on = ALL.sweep, ALL.follows_on


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on."""
  name, size = ALL.parsed(argument)
  return arms.changed(staleness.on_brackets(size, name == BASE), ARMS[name])


of_run = functools.partial(
  staleness.of_run,
  logged={
    "weight": "policy_weight/mean",
    "gap": "sampler_gap/mean",
    "largest": "sampler_gap/max",
    "kl": "sampler_gap/kl",
    "entropy": "entropy/mean",
  },
)


class Results(staleness.Results):
  """The arms that have ended."""

  names, base = tuple(ARMS), BASE


EXACT = "exact-none"
MARGIN = 0.02  # Of accuracy.


def _loses_little(arm: str) -> Rule:
  def made(of):
    lost = statistics.minus(of(arm, "end"), of(EXACT, "end"))
    text = f"accuracy, `{arm}` − `{EXACT}` + {MARGIN}"
    return statistics.check(text, "above", (1, statistics.minus(lost, -MARGIN)))

  return made


CLAIMS = table(
  "L1 There is something to learn.",
  change(f"accuracy of `{EXACT}`, end − start", EXACT, "end", "start"),
  "G1 float8 is further from the trainer than int8.",
  difference("gap", "float8-none", "int8-none"),
  "Z1 A correction costs nothing where nothing is rounded.",
  staleness.compared("exact-tis", EXACT, "not below"),
  "A1 int8 without a correction loses less than 0.02.",
  _loses_little("int8-none"),
  "A2 float8 without a correction loses less than 0.02.",
  _loses_little("float8-none"),
  "T1 With truncated weights both lose less than 0.02.",
  *map(_loses_little, ("int8-tis", "float8-tis")),
  "B1 Truncated weights help with int8.",
  staleness.compared("int8-tis", "int8-none"),
  "B2 Truncated weights help with float8.",
  staleness.compared("float8-tis", "float8-none"),
)
CONFIRMED = "L1 G1 Z1"


def numbers(results: Results) -> dict[str, Any]:
  """Tables of the page."""
  rows = (
    [
      f"`{name}`",
      *results.accuracies(name),
      *(results.mean(name, what, ".2g") for what in ("gap", "largest", "kl")),
      results.mean(name, "weight", ".4f"),
    ]
    for name in results.arms
  )
  head = ("arm", "start", "least", "end", "gap", "largest", "KL", "weight")
  kernels = ([f"`{name}`", f"`{kind}`"] for name, kind in KERNELS.items())
  return {
    "kernels": pages.table(
      ("kernels", "`config.sampling.weights_dtype`"), kernels
    ),
    "corrections": pages.texts(CORRECTIONS, "what it does", "correction"),
    "ends": pages.table(head, rows),
  }


_TITLES = {"none": "No correction", "tis": "TIS"}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws accuracy over steps, a panel for each correction."""
  canvas, grid = style.panels(
    1, len(_TITLES), style.PAGE, 2.4, sharex=True, sharey=True
  )
  every = grid.ravel()
  for axes, (correction, title) in zip(every, _TITLES.items(), strict=True):
    axes.set_title(title)
    named = {kernels: f"{kernels}-{correction}" for kernels in KERNELS}
    staleness.accuracies(axes, results, named, SIZES["full"].steps)
    axes.set_xlabel("step")
  every[0].set_ylabel("right answers, held out")
  style.shared_legend(canvas, every)
  style.save(canvas, path)

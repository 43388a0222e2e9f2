"""Sums with filler: algorithms that learn to write more than they need.

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

import dataclasses
import pathlib
from typing import Any

import ml_collections
import numpy as np

from experiments.science import arms, pages
from experiments.science.arms import Arm, Size
from experiments.science.claims import difference, rule, table
from experiments.sweeps import figures
from grpo_jax.configs import add_filler
from grpo_jax.training.monitor import style

BASE = "base"
_MENDED = {"rewards.weights": (1.0, 0.0)}  # The reward without its bug.


def _gfpo(num_kept: int, group_size: int, text: str, **settings: Any) -> Arm:
  # The paper's KL and entropy bonus are the same in no other arm.
  settings |= {"num_kept": num_kept, "entropy_coef": 0.0}
  own = {f"algorithm.{name}": value for name, value in settings.items()}
  return Arm(text, "gfpo", own | {"rl.group_size": group_size})


def _mended(arm: Arm, text: str) -> Arm:
  return arm._replace(text=text, settings={**arm.settings, **_MENDED})


ARMS = {
  BASE: Arm("imitates a wordy teacher; all other arms go on from its policy"),
  "all": _gfpo(
    8,
    8,
    "GFPO's loss without a filter, on all 8 completions: this is GRPO with a"
    " mean over tokens",
  ),
  "shortest-8of16": _gfpo(8, 16, "GFPO: the 8 shortest of 16"),
  "shortest-8of24": _gfpo(8, 24, "GFPO: the 8 shortest of 24"),
  "shortest-4of16": _gfpo(4, 16, "GFPO: the 4 shortest of 16"),
  "efficiency": _gfpo(
    *(8, 16, "GFPO: the 8 of 16 with the most reward per token"),
    metric="efficiency",
  ),
  "adaptive": _gfpo(
    8,
    16,
    "GFPO: the 8, 6 or 4 shortest of 16, fewer if the prompt is easy",
    metric="adaptive",
  ),
  "grpo": Arm("GRPO: a mean over the tokens of each of 8 completions"),
  "dr_grpo": Arm(
    "Dr. GRPO: divides neither by the length nor by the deviation", "dr_grpo"
  ),
}
FILTERED = tuple(ARMS)[2:7]
ARMS |= {
  "grpo-mended": _mended(ARMS["grpo"], "GRPO without the bug of the reward"),
  "dr_grpo-mended": _mended(
    ARMS["dr_grpo"], "Dr. GRPO without the bug of the reward"
  ),
  "all-mended": _mended(ARMS["all"], "`all` without the bug of the reward"),
  "shortest-mended": _mended(
    ARMS["shortest-8of16"],
    "GFPO: the 8 shortest of 16, without the bug of the reward",
  ),
}
SIZES = {
  "full": Size(5, 400, 100, 16),
  "smoke": Size(2, 10, 4, 2),
}
ALL = arms.Arms(ARMS, SIZES, BASE)
sweep, follows_on = ALL.sweep, ALL.follows_on


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on."""
  name, size = ALL.parsed(argument)
  config = add_filler.get_config(ARMS[name].algorithm)
  config.phases = ("sft", "rl") if name == BASE else ("rl",)
  config.sft.steps = size.imitation
  config.rl.steps = 0 if name == BASE else size.steps
  config.rl.num_prompts = size.num_prompts
  config.rl.group_size = 8
  # The numbers are those of completions that are drawn in training.
  config.eval.num_prompts = config.eval.batch_size = 16
  config.eval.every = 0
  return arms.changed(config, ARMS[name].settings)


# Name here -> name of the metric in the log.
DRAWN = {
  "accuracy": "accuracy",
  "length": "length/mean",
  "right": "length/correct",
  "wrong": "length/incorrect",
}
FIRST, LAST = 5, 20  # steps


def of_run(lines: list[dict[str, Any]]) -> dict[str, list[float | None]]:
  """The numbers of one run, from its log.

  In each step the accuracy and the mean lengths of all, of right and of wrong
  completions, as drawn and before any was left out.
  """
  drawn = [line for line in lines if DRAWN["length"] in line]
  return {name: arms.column(drawn, key) for name, key in DRAWN.items()}


def excess_length_reduction(
  start: np.ndarray, baseline: np.ndarray, other: np.ndarray
) -> np.ndarray:
  """Share of the growth of a baseline's lengths that another arm avoids.

      ELR = (L_baseline − L_other) / (L_baseline − L_start)

  Args:
    start: Mean length before reinforcement, tokens [S].
    baseline: Mean length of the baseline at the end [S].
    other: Mean length of the other arm at the end [S].

  Returns:
    [S]; 0 where the other arm is as long as the baseline, 1 where it is as
    short as the start, above 1 below; NaN where the baseline has not grown.

  Source: Shrivastava et al., "Sample More to Think Less" (GFPO),
  arXiv:2508.09726, Section 4.
  """
  growth = baseline - start
  grown = growth > 0
  return np.where(
    grown, (baseline - other) / np.where(grown, growth, 1), np.nan
  )


class Results(arms.Recorded):
  """The arms that have ended."""

  names = tuple(ARMS)

  def start(self, arm: str, what: str) -> np.ndarray:
    """Mean over the first `FIRST` steps [S]."""
    return np.nanmean(self.series(arm, what)[:, :FIRST], axis=1)

  def end(self, arm: str, what: str) -> np.ndarray:
    """Mean over the last `LAST` steps [S]."""
    return np.nanmean(self.series(arm, what)[:, -LAST:], axis=1)

  def score(self, arm: str, what: str) -> np.ndarray | None:
    """Returns a score of each seed [S].

    It is a name in `DRAWN` at the end; "growth/length" and the like, that minus
    the value at the start; or "elr" against `all`, None while that is missing.
    """
    if arm == BASE:
      return None
    if what == "elr":
      if "all" not in self._found:
        return None
      return excess_length_reduction(
        self.start("all", "length"),
        self.end("all", "length"),
        self.end(arm, "length"),
      )
    kind, _, name = what.rpartition("/")
    last = self.end(arm, name)
    return last - self.start(arm, name) if kind else last


REQUIRED = 0.3  # Of the growth.
_FILTERS = (
  "The shortest 8 of 16",
  "The shortest 8 of 24",
  "The shortest 4 of 16",
  "The 8 of 16 with the most reward per token",
  "The shortest, fewer of easy prompts,",
)
CLAIMS = table(
  "G1 A reward that likes length makes GRPO's completions longer.",
  *(
    rule(f"growth of `{arm}`", "above", (arm, "growth/length"))
    for arm in ("all", "grpo")
  ),
  *(
    part
    for place, (arm, text) in enumerate(zip(FILTERED, _FILTERS, strict=True), 2)
    for part in (
      f"G{place} {text} take back more than {REQUIRED} of the growth, as often"
      " right.",
      rule(f"ELR of `{arm}` − {REQUIRED}", "above", (arm, "elr"), REQUIRED),
      difference("accuracy", arm, "all", "not below"),
    )
  ),
  "G7 The fewer are kept of those drawn, the shorter.",
  difference("elr", "shortest-8of24", "shortest-8of16"),
  difference("elr", "shortest-4of16", "shortest-8of16"),
  "G8 Reward per token is better than length.",
  difference("elr", "efficiency", "shortest-8of16"),
  "G9 Dr. GRPO grows less from the bug.",
  difference("length", "dr_grpo", "grpo", "below"),
  "G10 GRPO makes wrong answers longer without the bug.",
  rule(
    "growth of wrong completions, `grpo-mended`",
    *("above", ("grpo-mended", "growth/wrong")),
  ),
  "G11 Dr. GRPO does so less.",
  difference("growth/wrong", "dr_grpo-mended", "grpo-mended", "below"),
  "G12 Without the bug the shortest 8 of 16 are shorter.",
  difference("length", "shortest-mended", "all-mended", "below"),
  "G13 Without the bug they are as often right.",
  difference("accuracy", "shortest-mended", "all-mended", "not below"),
)
CONFIRMED = "G1 G9 G13"
REFUTED = "G2 G3 G4 G5 G6 G8 G10"


def numbers(results: Results) -> dict[str, Any]:
  """Tables and numbers of the page."""
  columns = {
    "accuracy": pages.scored(results, "accuracy"),
    "tokens": pages.scored(results, "length", 2),
    "ELR": pages.scored(results, "elr", 2),
    "growth, right": pages.scored(results, "growth/right", 2),
    "wrong": pages.scored(results, "growth/wrong", 2),
    "minutes": results.minutes,
  }
  return {
    "arms": pages.texts(ARMS),
    "ends": pages.by_arm(results.arms, columns),
    **{f"of_{x}": _growth(results, f"{x}-mended") for x in ("all", "shortest")},
  }


def _growth(results: Results, arm: str) -> str | None:
  values = results.scores(arm, "growth/wrong")
  return None if values is None else pages.cell(values, 2)


_SMOOTHED = 10  # Steps of a mean, for the eye.


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws lengths over steps, accuracy over length, right and wrong."""
  canvas, grid = style.panels(1, 3, style.PAGE, 2.8)
  over, end, wrong = grid[0]
  looks = style.looks(("all", "grpo", "dr_grpo", *FILTERED))
  for arm, look in looks.items():
    if arm not in results.arms:
      continue
    _curve(over, results.series(arm, "length"), look, arm)
    lengths, accuracy = results.end(arm, "length"), results.end(arm, "accuracy")
    end.plot(
      lengths, accuracy, look.marker, color=look.colour, alpha=0.4, ms=2.5
    )
    end.plot(lengths.mean(), accuracy.mean(), look.marker, color=look.colour)
  for name in ("grpo", "dr_grpo"):
    arm = f"{name}-mended"
    for what, dashes in zip(("right", "wrong"), style.DASHES, strict=False):
      if arm in results.arms:
        look = dataclasses.replace(looks[name], dashes=dashes)
        _curve(wrong, results.series(arm, what), look, f"{name}, {what}")
  style.label(over, "All that is drawn", "step", "tokens")
  style.label(end, "In the last steps", "tokens", "accuracy")
  style.label(wrong, "The reward has no bug", "step", "tokens")
  if wrong.get_legend_handles_labels()[0]:
    wrong.legend()
  style.shared_legend(canvas, [over], columns=4)
  style.save(canvas, path)


def _curve(
  axes, values: np.ndarray, look: style.FigureStyle, label: str
) -> None:
  """Means over seeds [S, steps] of a few steps each, with their interval."""
  num = values.shape[1] // _SMOOTHED
  if not num:
    return
  parts = values[:, : num * _SMOOTHED].reshape(len(values), num, _SMOOTHED)
  values = np.nanmean(parts, axis=-1)
  steps = (np.arange(num) + 0.5) * _SMOOTHED
  figures.curve(axes, steps, values, look, label)

"""Record of an arm, and the numbers computed from it.

`ARM.json` has for each seed and step the accuracy and the mean lengths of all,
of right and of wrong completions, as drawn and before any was left out. The
file also has the seconds of all seeds together. The start of an arm is the mean
over its first `FIRST` steps, and the end is the mean over its last `LAST`.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.lengths import arms
from experiments.sweeps import arms as sweeps_lib

# Name here -> name of the metric in the log.
DRAWN = {
  "accuracy": "accuracy",
  "length": "length/mean",
  "right": "length/correct",
  "wrong": "length/incorrect",
}
FIRST, LAST = 5, 20  # steps


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


def of_run(lines: list[dict[str, Any]]) -> dict[str, list[float | None]]:
  """The numbers of one run, from its log."""
  drawn = [line for line in lines if DRAWN["length"] in line]
  return {
    name: [None if row[key] is None else round(row[key], 4) for row in drawn]
    for name, key in DRAWN.items()
  }


class Results(sweeps_lib.Recorded):
  """The arms that have ended, by name."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder, arms.ARMS)

  @property
  def num_seeds(self) -> int:
    return min(len(one["seeds"]) for one in self._found.values())

  def drawn(self, arm: str, what: str) -> np.ndarray:
    """Values of `DRAWN` in each step [S, steps]; NaN if there were none."""
    seeds = self._found[arm]["seeds"]
    return np.array([seed[what] for seed in seeds], float)

  def start(self, arm: str, what: str) -> np.ndarray:
    """Mean at the beginning of the run [S]."""
    return np.nanmean(self.drawn(arm, what)[:, :FIRST], axis=1)

  def end(self, arm: str, what: str) -> np.ndarray:
    """Mean at the end of the run [S]."""
    return np.nanmean(self.drawn(arm, what)[:, -LAST:], axis=1)

  def scores(self, arm: str, what: str) -> np.ndarray | None:
    """Returns a score of each seed [S]; None while an arm is missing.

    Args:
      arm: Its name.
      what: Name in `DRAWN`, for its value at the end; "growth/length" and the
        like, for that minus the value at the start; or "elr" against `all`.
    """
    if arm not in self._found or arm == "base":
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

"""Record of an arm, and the numbers computed from it.

`ARM.json` has for each seed the share of right answers to held-out prompts, of
all and of each number of digits, before the first step and after every 20
steps; and the share of groups in each step whose rewards differ. The file also
has the seconds of all seeds together.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.curricula import arms
from experiments.sweeps import arms as sweeps_lib

ALL = "all"
_ACCURACY = {
  ALL: "eval/accuracy",
  **{name: f"eval/domain/{name}/accuracy" for name in arms.DOMAINS},
}
_DEAD = "dead_groups"


def of_run(lines: list[dict[str, Any]]) -> dict[str, Any]:
  """The numbers of one run, from its log."""
  measured = [line for line in lines if _ACCURACY[ALL] in line]
  found: dict[str, Any] = {
    name: [round(line[key], 4) for line in measured]
    for name, key in _ACCURACY.items()
  }
  found["live"] = [round(1 - x[_DEAD], 4) for x in lines if _DEAD in x]
  return found


class Results(sweeps_lib.Recorded):
  """The arms that have ended, by name."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder, arms.ARMS)

  def series(self, arm: str, what: str) -> np.ndarray:  # [S, N]
    """Values of a series by evaluation, or for "live" by step.

    Args:
      arm: Name of the arm.
      what: "all" or a number of digits, for accuracies of held-out prompts;
        "live", the share of groups whose rewards differ.
    """
    return np.array([seed[what] for seed in self._found[arm]["seeds"]], float)

  def completions(self, arm: str) -> np.ndarray:  # [N]
    """Numbers of completions that were drawn until each evaluation [N]."""
    size = arms.SIZES["full"]
    return np.arange(self.series(arm, ALL).shape[1]) * size.every * size.batch

  def scores(self, arm: str, what: str) -> np.ndarray | None:  # [S]
    """Returns a score of each seed [S]; None while an arm is missing.

    Args:
      arm: Its name.
      what: "area/NAME", the mean height of an accuracy over completions, by
        trapezoids; "start/NAME" and "end/NAME", that accuracy then; or "live",
        the mean over all steps, or None if no prompt has a group.
    """
    if arm not in self._found or (what == "live" and arm == "spo"):
      return None
    if what == "live":
      return self.series(arm, what).mean(axis=1)
    kind, _, name = what.partition("/")
    values = self.series(arm, name)
    if kind == "area":
      middle = (values[:, 1:] + values[:, :-1]) / 2
      return middle.mean(axis=1)
    return values[:, 0 if kind == "start" else -1]

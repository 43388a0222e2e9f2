"""Record of an arm, and the numbers computed from it.

`ARM.json` has for each seed the accuracy on held-out problems at each
evaluation, and means of a few numbers over twelfths of the steps. The file also
has the seconds of all seeds together.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.rounding import arms
from experiments.sweeps import arms as sweeps_lib

# Name here -> name of the metric in the log.
LOGGED = {
  "weight": "policy_weight/mean",
  "gap": "sampler_gap/mean",
  "largest": "sampler_gap/max",
  "kl": "sampler_gap/kl",
  "entropy": "entropy/mean",
}
_EVALUATED = "eval/accuracy"
WINDOW = 4  # Evaluations of the end.
PARTS = 12  # Of the steps.


def of_run(lines: list[dict[str, Any]]) -> dict[str, list[float]]:
  """The numbers of one run, from its log; those of the phase "rl"."""
  rows = [line for line in lines if line["phase"] == "rl"]
  steps = [row for row in rows if "tokens/generated" in row]
  found = {
    name: [
      _rounded(np.mean(part))
      for part in np.array_split([row[key] for row in steps], PARTS)
      if part.size
    ]
    for name, key in LOGGED.items()
    if steps and key in steps[0]
  }
  found["held_out"] = [
    _rounded(row[_EVALUATED]) for row in rows if _EVALUATED in row
  ]
  return found


def _rounded(value: float) -> float:
  return float(f"{value:.4g}")


class Results(sweeps_lib.Recorded):
  """The arms that have ended, by name."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder, arms.ARMS)

  @property
  def arms(self) -> list[str]:
    """Names of the arms without `base`, with which all others began."""
    return [name for name in self._found if name != arms.BASE]

  def logged(self, arm: str, what: str) -> np.ndarray | None:
    """Values of `LOGGED` by part, or "held_out" by evaluation [S, N].

    None if the arm lacks the number.
    """
    seeds = self._found[arm]["seeds"]
    if what not in seeds[0]:
      return None
    return np.array([seed[what] for seed in seeds], float)

  def mean(self, arm: str, what: str) -> float:
    """Mean of a number in `LOGGED` over steps and seeds; NaN without any."""
    values = self.logged(arm, what)
    return float("nan") if values is None else float(np.nanmean(values))

  def scores(self, arm: str, what: str) -> np.ndarray | None:
    """Returns a score of each seed [S]; None while the arm is missing.

    Args:
      arm: Its name.
      what: The accuracy at the "start" or the "end", or the "least" one; or
        the mean "gap" of all steps.
    """
    if arm not in self._found:
      return None
    if what == "gap":
      found = self.logged(arm, what)
      return None if found is None else found.mean(axis=1)
    values = self.logged(arm, "held_out")
    assert values is not None
    if what == "start":
      return values[:, 0]
    if what == "least":
      return values.min(axis=1)
    return values[:, -WINDOW:].mean(axis=1)

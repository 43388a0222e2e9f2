"""Record of an arm, and the numbers computed from it.

`ARM.json` has for each seed the share of right answers to held-out prompts,
judged by the verifier without errors, before the first step and after every 20
steps. The file also has the seconds of all seeds together.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.flips import arms
from experiments.sweeps import arms as sweeps_lib

_ACCURACY = "eval/accuracy"


def of_run(lines: list[dict[str, Any]]) -> list[float]:
  """Accuracies of one run, from its log; those of the phase "rl"."""
  return [
    round(line[_ACCURACY], 4)
    for line in lines
    if line["phase"] == "rl" and _ACCURACY in line
  ]


class Results(sweeps_lib.Recorded):
  """The arms that have ended, by name."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder, arms.ARMS)

  def accuracy(self, arm: str) -> np.ndarray:
    """Accuracies before the policy's first step and after every 20 [S, N]."""
    return np.array(self._found[arm]["seeds"], float)

  def completions(self, arm: str) -> np.ndarray:
    """Numbers of completions that were drawn until each evaluation [N]."""
    num = self.accuracy(arm).shape[1]
    steps = arms.STEPS - arms.EVERY * np.arange(num)[::-1]
    return steps * arms.BATCH

  def scores(self, arm: str, when: str) -> np.ndarray | None:
    """Accuracy "before" or "after" [S]; None while the arm is missing."""
    if arm not in self._found:
      return None
    return self.accuracy(arm)[:, 0 if when == "before" else -1]

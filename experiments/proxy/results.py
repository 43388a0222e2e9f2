"""Record of an arm, and the numbers computed from it.

`ARM.json` has for each seed the means of rollouts (`CURVES`) at every fifth
step of the policy. It has the means of held-out prompts before the first
iteration and after each one. The file also has the seconds of all seeds
together.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.proxy import arms
from experiments.sweeps import arms as sweeps_lib

# Name here -> name in the log of a step.
CURVES = {
  "accuracy": "reward/accuracy",
  "ascending": "reward/ascending",
  "f1": "reward/f1",
  "score": "reward/reward_model",
  "agreement": "reward_model/accuracy",
}
_HELD_OUT = {
  "accuracy": "eval/accuracy",
  "ascending": "eval/reward/ascending",
  "f1": "eval/reward/f1",
}
EVERY = 5  # Steps between numbers that are kept.


def of_run(lines: list[dict[str, Any]]) -> dict[str, Any]:
  """Numbers of a run.

  Args:
    lines: Lines of its log.
  """
  lines = [line for line in lines if line["phase"] == "rl"]
  steps = [line for line in lines if "reward/mean" in line]
  length = len(steps) // arms.ITERATIONS
  scores = np.array([line[CURVES["score"]] for line in steps])
  # The evaluation at the start of a phase repeats that at the end of the last.
  seen = [line for line in lines if _HELD_OUT["accuracy"] in line]
  seen = seen[:1] + [line for line in seen if "reward/mean" in line]
  kept = [0, *range(EVERY - 1, len(steps), EVERY)]
  return {
    "steps": [at + 1 for at in kept],
    "curves": {
      name: [_rounded(steps[at].get(key)) for at in kept]
      for name, key in CURVES.items()
    },
    "held_out": {
      name: [_rounded(line[key]) for line in seen]
      for name, key in _HELD_OUT.items()
    },
    # Of each iteration, in which the reward model is the same.
    "gains": [
      _rounded(scores[at + length - 1] - scores[at])
      for at in range(0, len(steps), length)
    ],
  }


def _rounded(value: float | None) -> float | None:
  return None if value is None else round(float(value), 4)


class Results(sweeps_lib.Recorded):
  """The arms that have ended, by name."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder, arms.ARMS)

  def num_seeds(self, arm: str) -> int:
    return len(self._found[arm]["seeds"])

  def curve(self, arm: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps [N] and values [S, N]; NaN if a value is missing."""
    seeds = self._found[arm]["seeds"]
    values = [seed["curves"][name] for seed in seeds]
    return np.array(seeds[0]["steps"]), np.array(values, float)

  def held_out(self, arm: str, name: str) -> np.ndarray:
    """Values [S, 1 + iterations]: before, and after each."""
    seeds = self._found[arm]["seeds"]
    if name == "gap":
      return self.held_out(arm, "ascending") - self.held_out(arm, "accuracy")
    return np.array([seed["held_out"][name] for seed in seeds], float)

  def opinion(self, arm: str) -> np.ndarray:
    """Rise of the score in each iteration [S, iterations], nats."""
    return np.array([seed["gains"] for seed in self._found[arm]["seeds"]])

  def scores(self, arm: str, what: str, when: str) -> np.ndarray | None:
    """Returns a score of each seed [S]; None while the arm is missing.

    Args:
      arm: Its name.
      what: "opinion", "gap", or the name of a held-out mean.
      when: "before" or "after"; ignored for "opinion".
    """
    if arm not in self._found:
      return None
    if what == "opinion":
      return self.opinion(arm).mean(axis=1)
    return self.held_out(arm, what)[:, 0 if when == "before" else -1]

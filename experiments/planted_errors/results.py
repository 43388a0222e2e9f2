"""Record of an arm, and the numbers computed from it.

`taught.json` has for each seed the accuracy of its credits in locating errors,
and their correlations. The `ARM.json` of every other arm has the shares of
right answers to held-out prompts, before the first step of the policy and after
every 20 steps. Each file has the seconds of all seeds together.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

import grpo_jax
from experiments.planted_errors import arms, errors, values
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import cells as cells_lib
from grpo_jax.training.runtime import log

NUM_PROBLEMS = 512  # With a planted error.
NUM_COMPARED = 128  # Workings whose prefixes are completed.
NUM_SAMPLES = 64  # Completions from each prefix.
_ACCURACY = "eval/accuracy"


def collected(folder: pathlib.Path) -> dict[str, Any] | None:
  """The numbers of an arm's runs; None while a run has not ended.

  Args:
    folder: The folder of the sweep, which has the name of the arm, with one
      for each seed in it.
  """
  found = []
  for name in cells_lib.read_manifest(folder):
    if cells_lib.read_result(folder / name) is None:
      return None
    if folder.name == arms.MEASURED:
      found.append(measured(folder / name, seed=len(found)))
    else:
      found.append(accuracies(log.read_lines(folder / name / log.METRICS)))
  return {"seeds": found}


def measured(workdir: pathlib.Path, seed: int) -> dict[str, Any]:
  """Accuracy and correlations of the credits of a run."""
  rng = np.random.default_rng(seed)
  operands = values.held_out(rng, arms.LEVEL, NUM_PROBLEMS)
  wrong = rng.integers(arms.LEVEL, size=NUM_PROBLEMS)
  with grpo_jax.load(workdir) as run:
    given = errors.workings(operands, wrong, arms.LEVEL)
    credits = errors.found(run, given).credits
    return {
      **errors.located(credits, wrong, arms.LEVEL),
      "correlation": values.compared(
        run, arms.LEVEL, NUM_COMPARED, NUM_SAMPLES, seed
      ),
    }


def accuracies(lines: list[dict[str, Any]]) -> list[float]:
  """Accuracies of a run in the phase "rl", from its log."""
  return [
    round(line[_ACCURACY], 4)
    for line in lines
    if line["phase"] == "rl" and _ACCURACY in line
  ]


class Results(sweeps_lib.Recorded):
  """The arms that have ended, by name."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder, (arms.MEASURED, *arms.LEARNERS))

  @property
  def learners(self) -> list[str]:
    return [name for name in self._found if name in arms.LEARNERS]

  def accuracy(self, arm: str) -> np.ndarray:
    """Accuracies before the policy's first step and after every 20 [S, N]."""
    return np.array(self._found[arm]["seeds"], float)

  def completions(self, arm: str) -> np.ndarray:
    """Numbers of completions that were drawn until each evaluation [N]."""
    num = self.accuracy(arm).shape[1]
    return (arms.STEPS - arms.EVERY * np.arange(num)[::-1]) * arms.BATCH

  def scores(self, arm: str, what: str) -> np.ndarray | None:  # [S]
    """Returns a score of each seed [S]; None while an arm is missing.

    Args:
      arm: Its name.
      what: "located"; "located/K", with the error in the segment K; "r/NAME",
        a correlation; "after", the accuracy at the end; or "area", the mean
        accuracy over the completions that were drawn.
    """
    if arm not in self._found:
      return None
    seeds = self._found[arm]["seeds"]
    kind, _, name = what.partition("/")
    if kind == "located":
      return np.array(
        [
          s["located_by_step"][int(name)] if name else s["located"]
          for s in seeds
        ]
      )
    if kind == "r":
      return np.array([s["correlation"][name] for s in seeds])
    accuracy = self.accuracy(arm)
    if what == "after":
      return accuracy[:, -1]
    x = self.completions(arm)
    # PPO's policy stands still at first: what it had before counts until then.
    x, accuracy = np.insert(x, 0, 0), np.insert(accuracy, 0, accuracy[:, 0], 1)
    return np.trapezoid(accuracy, x, axis=1) / x[-1]

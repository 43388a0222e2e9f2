"""Record of an arm, and the numbers computed from it.

A run is a seed and a learning rate. `ARM.json` has for each run: the share of
right answers to held-out problems before the first step and after the last, the
mean length of the answers after the last step, the entropy of the last steps,
the number of generated completions, and the seconds of its steps. The file also
has the seconds of the whole arm, with compilation and evaluations.

The best learning rate of a seed is chosen by the other seeds: it is the rate
with their highest mean accuracy. So no reported number takes part in its own
choice.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.comparison.runs import Run
from experiments.comparison.scores import Comparison, Estimate
from experiments.league import arms
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import cells as cells_lib
from grpo_jax.training.runtime import log

RATE = "rl.optimizer.learning_rate"
LAST = 8  # Steps of which the entropy is a mean.
WHATS = ("before", "after", "length", "entropy", "completions", "seconds")
WHICH = ("default", "best")
DEFAULT = arms.FACTORS.index(1.0)
_GENERATED = "completions/generated"
# Order of equally good rates: the default, then the lower one.
_PREFERRED = sorted(
  range(len(arms.FACTORS)), key=lambda i: (i != DEFAULT, arms.FACTORS[i])
)


def chosen(accuracy: np.ndarray) -> np.ndarray:  # [S, F] -> [S]
  """Chooses the learning rate of each seed by the mean accuracy of the others.

  If means are equal, the default is chosen, or otherwise the lower rate.

  Args:
    accuracy: Accuracy at the end, of each seed and learning rate.

  Raises:
    ValueError: There is only one seed, so there is no other to choose by.
  """
  if len(accuracy) < 2:
    raise ValueError(
      f"league: {len(accuracy)} seed; needed are two, as the learning rate of"
      " one is chosen by the others."
    )
  ordered = accuracy[:, _PREFERRED]
  others = (ordered.sum(axis=0) - ordered) / (len(ordered) - 1)
  # Sums in another order may differ in the last bit, and are no reason.
  return np.array(_PREFERRED)[np.round(others, 9).argmax(axis=1)]


def generated(
  lines: Sequence[Mapping[str, Any]], algorithm: str, group_size: int
) -> int:
  """Number of completions that a run drew, greedy ones too, from its log.

  Args:
    lines: Lines of metrics.jsonl.
    algorithm: Its name; some draw greedy completions beside the others.
    group_size: Completions of a prompt.
  """
  total = 0
  for line in lines:
    drawn = round(line.get(_GENERATED, 0))
    total += drawn + arms.num_greedy(algorithm, drawn // group_size)
  return total


def of_run(
  folder: pathlib.Path, name: str, share: int
) -> dict[str, Any] | None:
  """Numbers of a run; None while it has not ended.

  A run whose loss was no longer finite ends without a right answer.

  Args:
    folder: Its folder.
    name: The arm.
    share: Runs of its program, which share the seconds of a step.
  """
  algorithm, _ = arms.split(name)
  result = cells_lib.read_result(folder)
  error = cells_lib.last_error(folder) if result is None else ""
  if result is None and not is_divergence(error):
    return None
  lines = log.read_lines(folder / log.METRICS)
  times = log.read_lines(folder / log.TIMINGS)
  steps = [line for line in lines if "entropy/mean" in line]
  evaluated = [line for line in lines if "eval/accuracy" in line]
  first, last = evaluated[0], evaluated[-1]
  entropy = [line["entropy/mean"] for line in steps[-LAST:]]
  seconds = sum(x["time/step_s"] - x["time/compile_s"] for x in times) / share
  found = {
    "before": round(first["eval/accuracy"], 4),
    "after": round(last["eval/accuracy"], 4) if result else 0.0,
    "length": round(last["eval/length"], 3),
    "entropy": round(float(np.mean(entropy)), 4),
    "completions": generated(
      lines, algorithm, arms.ENTRIES[algorithm].group_size
    ),
    "seconds": round(seconds, 2),
  }
  return found | ({"error": error} if error else {})


def is_divergence(error: str) -> bool:
  """True if the message is about a loss or a gradient that is not finite."""
  return error.startswith("phase ") and (
    " is nan" in error or " is inf" in error
  )


def collected(name: str, folder: pathlib.Path) -> dict[str, Any] | None:
  """The numbers of an arm, for `arms.record`; None while a run has not ended.

  Args:
    name: The arm.
    folder: The folder of its sweep.
  """
  manifest = cells_lib.read_manifest(folder)
  runs = []
  for cell, overrides in manifest.items():
    found = of_run(folder / cell, name, len(manifest))
    if found is None:
      return None
    factor = overrides[RATE] / arms.RATE
    runs.append({"seed": overrides["seed"], "factor": round(factor, 3)} | found)
  return {"runs": runs}


class Results(sweeps_lib.Recorded):
  """The arms that have ended, by name."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder, arms.ARMS)
    self._folder = folder
    self._values = {
      name: _values(one["runs"]) for name, one in self._found.items()
    }
    self._comparisons: dict[str, Comparison] = {}

  @property
  def algorithms(self) -> list[str]:
    """Algorithms that have ended on a task, in the order of the league."""
    known = {arms.split(name)[0] for name in self.arms}
    return [name for name in arms.ENTRIES if name in known]

  @property
  def complete(self) -> list[str]:
    """Names of the algorithms that have ended on all tasks."""
    return [
      name
      for name in self.algorithms
      if all(f"{name}-{task}" in self._found for task in arms.TASKS)
    ]

  @property
  def num_seeds(self) -> int:
    return min(len(one["after"]) for one in self._values.values())

  def every(self, arm: str, what: str) -> np.ndarray:
    """Values of `WHATS` for each seed and learning rate [S, F]."""
    return self._values[arm][what]

  def rates(self, arm: str, which: str) -> np.ndarray:
    """The learning rate of each seed, as a place in `arms.FACTORS` [S].

    Args:
      arm: Its name.
      which: "default", or "best", which the other seeds choose.
    """
    accuracy = self.every(arm, "after")
    if which == "best":
      return chosen(accuracy)
    return np.full(len(accuracy), DEFAULT)

  def of_arm(self, arm: str, what: str, which: str) -> np.ndarray | None:
    """Value of `WHATS` for each seed [S]; None while the arm is missing."""
    if arm not in self._found:
      return None
    values, rates = self.every(arm, what), self.rates(arm, which)
    return values[np.arange(len(values)), rates]

  def scores(self, algorithm: str, what: str, which: str) -> np.ndarray | None:
    """Mean over tasks, of each seed [S]; None while a task is missing."""
    found = [self.of_arm(f"{algorithm}-{x}", what, which) for x in arms.TASKS]
    known = [values for values in found if values is not None]
    return np.mean(known, axis=0) if len(known) == len(found) else None

  def comparison(self, which: str) -> Comparison:
    """Compares all algorithms with GRPO, at one choice of learning rates."""
    if which not in self._comparisons:
      runs = [
        Run(self._folder, algorithm, task, algorithm, seed, float(x), "", {})
        for algorithm in self.algorithms
        for task in arms.TASKS
        if (values := self.of_arm(f"{algorithm}-{task}", "after", which))
        is not None
        for seed, x in enumerate(values)
      ]
      names = {name: arms.ENTRIES[name].shown for name in self.algorithms}
      self._comparisons[which] = Comparison(
        runs, "accuracy", self.algorithms[0], names
      )
    return self._comparisons[which]

  def improvement(self, algorithm: str) -> Estimate | None:
    """Probability of improvement over GRPO at the best rates; None: unknown."""
    if arms.BASELINE not in self.complete:
      return None
    return self.comparison("best").improvement(algorithm)

  def by_rate(self, algorithm: str) -> np.ndarray | None:  # [F]
    """Mean accuracy over tasks and seeds; None while a task is missing."""
    if algorithm not in self.complete:
      return None
    every = [self.every(f"{algorithm}-{x}", "after") for x in arms.TASKS]
    return np.mean(every, axis=(0, 1))

  def ranked(self) -> list[str]:
    """Algorithms by the interquartile mean at their best rates.

    Those without all tasks come last.
    """

    def place(name: str) -> float:
      found = self.comparison("best").aggregate(name, "IQM")
      return 1.0 if found is None else -found.value

    return sorted(self.algorithms, key=place)

  def other_starts(self) -> list[str]:
    """Arms whose start differs in accuracy from the first arm of their task."""
    first: dict[str, np.ndarray] = {}
    found = []
    for arm in self.arms:
      before = self.every(arm, "before")
      known = first.setdefault(arms.split(arm)[1], before)
      if known.shape != before.shape or (known != before).any():
        found.append(arm)
    return found

  def completions(self) -> tuple[int, int]:
    """The smallest and the largest number of completions of a run."""
    every = [self.every(arm, "completions") for arm in self.arms]
    return int(min(x.min() for x in every)), int(max(x.max() for x in every))

  def diverged(self) -> dict[str, int]:
    """Number of runs with a loss that was not finite, by arm with such runs."""
    counts = {
      arm: sum("error" in run for run in self._found[arm]["runs"])
      for arm in self.arms
    }
    return {arm: count for arm, count in counts.items() if count}


def _values(runs: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
  """Returns name of a quantity -> [S, F] values over the runs of an arm."""
  seeds = sorted({run["seed"] for run in runs})
  factors = sorted({run["factor"] for run in runs})
  by_place = {(run["seed"], run["factor"]): run for run in runs}
  return {
    what: np.array(
      [[by_place[s, f][what] for f in factors] for s in seeds], float
    )
    for what in WHATS
  }

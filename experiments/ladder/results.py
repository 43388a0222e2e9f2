"""Record of an arm, and the numbers computed from it.

`ARM.json` has for each seed and step the number of completions drawn, and the
statistics of these before any was left out. The file also has the seconds of
all seeds together. The final score of an arm is the mean over its last `WINDOW`
steps. At equal completions it is the mean over `WINDOW` steps before the step
in which the arm has drawn as many completions as `grpo` draws in all.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.ladder import arms
from experiments.sweeps import arms as sweeps_lib

# Name here -> names of the metric in the log, of which the first one counts.
LOGGED = {
  "accuracy": ("drawn/accuracy", "accuracy"),
  "completions": ("completions/generated",),
  "tokens": ("tokens/generated",),
  "entropy": ("entropy/mean",),
  "truncated": ("truncated",),
  "length": ("length/mean",),
  "dead": ("dead_groups",),
  "age": ("staleness/mean",),
}
WINDOW = 10  # steps
REFERENCE = "grpo"  # As many completions as this arm has drawn.


def of_run(lines: list[dict[str, Any]]) -> dict[str, list[float | None]]:
  """The numbers of one run, from its log; those of the phase "rl"."""
  steps = [line for line in lines if "completions/generated" in line]
  return {
    name: [_rounded(_first(line, keys)) for line in steps]
    for name, keys in LOGGED.items()
  }


def _first(line: dict[str, Any], keys: tuple[str, ...]) -> float | None:
  return next((line[key] for key in keys if key in line), None)


def _rounded(value: float | None) -> float | None:
  return None if value is None else round(value, 4)


class Results(sweeps_lib.Recorded):
  """The arms that have ended, by name."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder, arms.ARMS)

  def logged(self, arm: str, what: str) -> np.ndarray:
    """Values of `LOGGED` in each step [S, steps]; missing ones are NaN."""
    return np.array([seed[what] for seed in self._found[arm]["seeds"]], float)

  def drawn(self, arm: str) -> np.ndarray:
    """Completions drawn until the end of each step [S, steps]."""
    return np.cumsum(self.logged(arm, "completions"), axis=1)

  def end(self, arm: str, what: str) -> np.ndarray:
    """Values of `LOGGED` after as many updates as all arms take [S]."""
    return self.logged(arm, what)[:, -WINDOW:].mean(axis=1)

  def at_equal_completions(self, arm: str, what: str) -> np.ndarray:
    """Values after as many completions as `REFERENCE` has drawn [S]."""
    total = self.drawn(REFERENCE)[:, -1]
    values, drawn = self.logged(arm, what), self.drawn(arm)
    found = []
    for seed, most in enumerate(total):
      steps = max(int((drawn[seed] <= most).sum()), 1)
      found.append(values[seed, max(steps - WINDOW, 0) : steps].mean())
    return np.array(found)

  def scores(self, arm: str, what: str) -> np.ndarray | None:
    """Returns a score of each seed [S]; None while an arm is missing.

    Args:
      arm: Its name.
      what: A name in `LOGGED` at the end; "start/accuracy" and the like in the
        first `WINDOW` steps; "equal/accuracy" and the like at equal
        completions; "drawn", the number of completions in all.
    """
    needed = {arm, REFERENCE} if what.startswith("equal/") else {arm}
    if not needed <= self._found.keys():
      return None
    when, _, name = what.rpartition("/")
    if what == "drawn":
      return self.drawn(arm)[:, -1]
    if when == "start":
      return self.logged(arm, name)[:, :WINDOW].mean(axis=1)
    if when == "equal":
      return self.at_equal_completions(arm, name)
    return self.end(arm, name)

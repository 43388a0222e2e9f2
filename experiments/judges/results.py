"""Record of an arm, and the numbers computed from it.

`ARM.json` has for each seed the verdicts and the right answers of each step of
reinforcement. It has the accuracy of held-out prompts before reinforcement and
every 25 steps: of sorting, and of judging if the policy judges itself. The file
also has the seconds of all seeds together. The file of a judge has the seconds
alone.
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import numpy as np

from experiments.judges import arms
from experiments.sweeps import arms as sweeps_lib

_LAST = 10  # Steps of which the opinion is the mean.


def of_run(lines: list[dict[str, Any]]) -> dict[str, list[float | None]]:
  """The numbers of one run, from its log."""
  lines = [line for line in lines if line["phase"] == "rl"]
  steps = [line for line in lines if "reward/accuracy" in line]
  seen = [line for line in lines if "eval/accuracy" in line]
  # At the start of a phase there is an evaluation without a step.
  seen = seen[:1] + [line for line in seen if "reward/accuracy" in line]

  def column(rows, name, other=""):
    values = [row.get(name, row.get(other)) for row in rows]
    return [None if x is None else round(x, 4) for x in values]

  return {
    "verdicts": column(steps, "reward/judge"),
    "right": column(steps, "reward/accuracy"),
    "accuracy": column(seen, "eval/domain/sort/accuracy", "eval/accuracy"),
    "judgement": column(seen, "eval/domain/verdict/accuracy"),
  }


class Results(sweeps_lib.Recorded):
  """Results of the arms that have ended."""

  def __init__(self, folder: pathlib.Path):
    """Reads the files ARM.json of a folder."""
    super().__init__(folder, arms.ARMS)

  def column(self, arm: str, name: str) -> np.ndarray:  # [S, N]
    """Values of all seeds; NaN if a value is missing."""
    rows = [seed[name] for seed in self._found[arm]["seeds"]]
    return np.array(rows, float)

  def score(self, arm: str, what: str) -> np.ndarray | None:  # [S]
    """Returns a score of each seed [S]; see `claims.Scores`."""
    if arm not in self._found:
      return None
    column = functools.partial(self.column, arm)
    opinion = column("verdicts")[:, -_LAST:].mean(axis=1)
    return {
      "early": lambda: column("accuracy")[:, 1],
      "accuracy": lambda: column("accuracy")[:, -1],
      "opinion": lambda: opinion,
      "gap": lambda: opinion - column("right")[:, -_LAST:].mean(axis=1),
      "before": lambda: column("judgement")[:, 0],
      "judgement": lambda: column("judgement")[:, -1],
    }[what]()

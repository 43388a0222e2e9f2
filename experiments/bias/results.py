"""Record of an arm, and the numbers computed from it.

`ARM.json` has for each seed the held-out bias and the share of "unknown" at
each evaluation; the step that is kept; and the reason why the run was halted.
The step kept is the last one or, if a guard halted the run, that of the
checkpoint before. The file also has the seconds of all seeds together.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.bias import arms
from experiments.sweeps import arms as sweeps_lib
from grpo_jax.training.monitor import guards
from grpo_jax.training.runtime import checkpoints, log

_BIAS, _RIGHT = "eval/reward/biased", "eval/accuracy"


def collected(folder: pathlib.Path) -> dict[str, Any] | None:
  """The numbers of an arm's runs; None while a run has not ended.

  Args:
    folder: The folder of the sweep, with one for each seed in it.
  """
  seeds = [_of_seed(folder / f"seed={n}") for n in range(arms.NUM_SEEDS)]
  if any(seed is None for seed in seeds):
    return None
  return {"seeds": seeds}


def _of_seed(workdir: pathlib.Path) -> dict[str, Any] | None:
  lines = []
  if (workdir / guards.AUDIT).exists():
    lines = log.read_lines(workdir / guards.AUDIT)
  halted = lines[-1]["why"][-1] if lines and _halts(lines[-1]) else ""
  if not halted and not (workdir / log.RESULT).exists():
    return None
  rows = log.read_lines(workdir / log.METRICS)
  seen = [row for row in rows if _BIAS in row]
  store = checkpoints.Checkpoints(workdir / "checkpoints", keep=1)
  kept = store.latest_step()
  store.close()
  start = seen[0]["step"]
  assert kept is not None
  return {
    "steps": [row["step"] - start for row in seen],
    "biased": [round(row[_BIAS], 5) for row in seen],
    "unknown": [round(row[_RIGHT], 5) for row in seen],
    "kept": kept - start,
    "halted": halted,
  }


def _halts(line: dict[str, Any]) -> bool:
  return line["verdict"] == "halt"


class Results(sweeps_lib.Recorded):
  """The arms that have ended, by name."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder, arms.ARMS)
    seeds = [seed for arm in self._found for seed in self.seeds(arm)]
    # Of a run that went to its end, which not every arm has.
    self._every = max((seed["steps"] for seed in seeds), key=len, default=[])

  def seeds(self, arm: str) -> list[dict[str, Any]]:
    """The record of each seed of an arm."""
    return self._found[arm]["seeds"]

  def curve(
    self, arm: str, field: str = "biased"
  ) -> tuple[np.ndarray, np.ndarray]:
    """Steps [N] and values [S, N]; of a halted run its last checkpoint's."""
    every = np.array(self._every)
    rows = []
    for seed in self.seeds(arm):
      known = dict(zip(seed["steps"], seed[field], strict=True))
      kept = seed["kept"]
      rows.append([known[step if step <= kept else kept] for step in every])
    return every, np.array(rows)

  def scores(self, arm: str, what: str) -> np.ndarray | None:
    """Returns a score of each seed [S]; None while the arm is missing.

    Args:
      arm: Its name.
      what: "rise", the bias of the kept step − that before; "mean", the mean
        over the steps; "before" and "after"; "unknown", its share at the end.
    """
    if arm not in self._found:
      return None
    _, bias = self.curve(arm)
    if what == "unknown":
      return self.curve(arm, "unknown")[1][:, -1]
    return {
      "rise": bias[:, -1] - bias[:, 0],
      "mean": bias.mean(axis=1),
      "before": bias[:, 0],
      "after": bias[:, -1],
    }[what]

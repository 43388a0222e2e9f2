"""Record of an arm, and the numbers computed from it.

`ARM.json` has for each seed: in each step the entropy, the accuracy before
corrections and shares of groups; the accuracy on held-out problems as logged;
and pass@k of held-out problems in the middle and at the end. The file also has
the seconds of all seeds together. `base.json` has the pass@k with which all
other arms began.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.entropy import arms
from experiments.sweeps import arms as sweeps_lib
from grpo_jax import api
from grpo_jax.training.runtime import log

# What is logged of a step, by what it is called here; of several names the
# first one that there is.
LOGGED = {
  "entropy": ("entropy/mean",),
  "accuracy": ("correction/draft_accuracy", "accuracy"),
  "dead": ("correction/draft_dead_groups", "dead_groups"),
  "made_live": ("correction/made_live",),
}
_EVALUATED = "eval/accuracy"
SAMPLES = 16
PASSES = ("pass@1", "pass@16")
WINDOWS = 10


def windows(values: np.ndarray) -> np.ndarray:  # [S, steps] -> [S, WINDOWS]
  """Means over tenths of the steps."""
  parts = np.array_split(values, WINDOWS, axis=1)
  return np.stack([np.nanmean(part, axis=1) for part in parts], axis=1)


def rebound(values: np.ndarray) -> np.ndarray:  # [S, WINDOWS] -> [S]
  """The last window over the least, if that is an inner one; else 1."""
  least = values.argmin(axis=1)
  inner = (least > 0) & (least < values.shape[1] - 1)
  return np.where(inner, values[:, -1] / values.min(axis=1), 1.0)


def of_run(lines: Sequence[dict[str, Any]]) -> dict[str, list[float | None]]:
  """The numbers of one run, from its log."""
  rows = [line for line in lines if line["phase"] == "rl"]
  steps = [row for row in rows if LOGGED["entropy"][0] in row]
  found: dict[str, list[float | None]] = {}
  for name, keys in LOGGED.items():
    key = next((key for key in keys if key in steps[0]), None)
    if key is not None:
      found[name] = [
        None if row[key] is None else round(row[key], 5) for row in steps
      ]
  found["held_out"] = [
    round(row[_EVALUATED], 4) for row in rows if _EVALUATED in row
  ]
  return found


def passes(
  workdir: pathlib.Path, step: int | None, num_prompts: int
) -> list[float]:
  """Returns `PASSES` of a checkpoint on held-out problems.

  Args:
    workdir: Folder of the run.
    step: Step of the checkpoint; None: the last one.
    num_prompts: Number of problems.
  """
  with api.load(workdir, step=step) as run:
    said = run.evaluate(num_prompts, temperature=1.0, num_samples=SAMPLES)
  return [round(said[f"eval/{name}"], 4) for name in PASSES]


def collected(folder: pathlib.Path, size: arms.Size) -> dict[str, Any] | None:
  """Returns the numbers of an arm's runs; None while a run has not ended.

  Args:
    folder: The folder of the sweep, which has the name of the arm, with one
      for each seed in it.
    size: Amounts of computation.
  """
  seeds = []
  for seed in range(size.num_seeds):
    workdir = folder / f"seed={seed}"
    if not (workdir / log.RESULT).exists():
      return None
    found: dict[str, Any] = {}
    steps: tuple[int | None, ...] = (None,)
    if folder.name != arms.BASE:
      lines = log.read_lines(workdir / log.METRICS)
      found |= of_run(lines)
      steps = size.steps // 2, None
    found["passes"] = [
      passes(workdir, step, size.num_held_out) for step in steps
    ]
    seeds.append(found)
  return {"seeds": seeds}


class Results(sweeps_lib.Recorded):
  """The arms that have ended, by name."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder, arms.ARMS)

  @property
  def arms(self) -> list[str]:
    """Names of the arms without `base`, with which all others began."""
    return [name for name in self._found if name != arms.BASE]

  def logged(self, arm: str, what: str) -> np.ndarray | None:
    """Returns values of `LOGGED` by step, or "held_out" by evaluation [S, N].

    NaN if there was nothing to average; None if the arm lacks the number.
    """
    seeds = self._found[arm]["seeds"]
    if what not in seeds[0]:
      return None
    return np.array([seed[what] for seed in seeds], float)

  def passes(self, arm: str, what: str) -> np.ndarray:
    """Pass@k before the first step, in the middle and at the end [S, 3]."""
    every = [
      np.array([seed["passes"] for seed in self._found[name]["seeds"]], float)
      for name in (arms.BASE, arm)
    ]
    return np.concatenate(every, axis=1)[:, :, PASSES.index(what)]

  def scores(self, arm: str, what: str) -> np.ndarray | None:
    """Returns a score of each seed [S]; None while the arm is missing.

    Args:
      arm: Its name.
      what: "rebound", or "growth" of the entropy from the first window to the
        last; "made_live", the share of dead groups of the first window; or one
        of `PASSES` at the end.
    """
    if arm not in self._found:
      return None
    if what in PASSES:
      return self.passes(arm, what)[:, -1]
    if what == "made_live":
      made, dead = (self.logged(arm, name) for name in (what, "dead"))
      assert made is not None
      assert dead is not None
      return windows(made)[:, 0] / np.maximum(windows(dead)[:, 0], 1e-9)
    entropy = self.logged(arm, "entropy")
    assert entropy is not None
    means = windows(entropy)
    return rebound(means) if what == "rebound" else means[:, -1] - means[:, 0]

r"""Trains the missing arms of the experiment on four domains.

    python -m experiments.experts.run --root=runs/experts \
        --results=benchmarks/experts
    python -m experiments.experts.report --results=benchmarks/experts --out=docs

Each arm is a sweep of five seeds in one program, and leaves ARM.json. Arms
follow on others, in the order of `arms.py`. Arms that have ended are left
alone. --arms takes a regular expression: other arms wait.

Exit status: 0 all arms have ended, 1 an arm has failed, 143 stopped.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.experts import arms as arms_lib
from experiments.experts import results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import commands
from grpo_jax import api
from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.evaluation import interference

_TRAINING = commands.Training("experts", arms_lib.SIZES)


def main(argv: Sequence[str]) -> int:
  """Runs the missing arms, one after another."""
  del argv
  return _TRAINING.go_through(arms_lib.ARMS, _run_arm)


def _run_arm(root: pathlib.Path, out: pathlib.Path, name: str) -> int:
  """Runs the sweep of an arm and records its numbers; returns the status."""
  size = arms_lib.SIZES[_TRAINING.size]
  return sweeps_lib.record(
    out,
    root / name,
    _TRAINING.config(name),
    arms_lib.follows_on(name, root),
    functools.partial(_collected, size),
  )


def _collected(
  size: arms_lib.Size, folder: pathlib.Path
) -> dict[str, Any] | None:
  """The numbers of an arm's runs; None while a run has not ended."""
  found = sweeps_lib.collected(results.of_run, folder)
  if found is not None and folder.name in arms_lib.MEASURED:
    found |= {"cosines": _cosines(folder, size)}
  return found


def _cosines(
  folder: pathlib.Path, size: arms_lib.Size
) -> list[list[list[Any]]]:
  """Cosines between gradients by seed; None where they are unknown."""
  found = []
  for seed in range(size.num_seeds):
    with api.load(folder / f"seed={seed}") as run:
      cosines = interference.measure(
        run.loaded, num_prompts=size.gradient_prompts, seed=seed
      ).cosines
    rounded = np.round(cosines, 5).tolist()
    found.append([[None if x != x else x for x in row] for row in rounded])
  return found


if __name__ == "__main__":
  flags_lib.run(main)

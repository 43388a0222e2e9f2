r"""Trains the missing arms of the experiment on the choice of prompts.

    python -m experiments.curricula.run --root=runs/curricula \
        --results=benchmarks/curricula
    python -m experiments.curricula.report --results=benchmarks/curricula \
        --out=docs

Each arm is a sweep of five seeds in one program, and leaves ARM.json. All
follow on `base`, which is run first; `ads` clusters the prompts by the hidden
states of that policy. Arms that have ended are left alone, and the same command
continues a stopped arm. --arms takes a regular expression: other arms wait.

Exit status: 0 all arms have ended, 1 an arm has failed, 143 stopped.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence

from experiments.curricula import arms as arms_lib
from experiments.curricula import results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_TRAINING = commands.Training("curricula", arms_lib.SIZES)


def main(argv: Sequence[str]) -> int:
  """Runs the missing arms, one after another."""
  del argv
  return _TRAINING.go_through(arms_lib.ARMS, _run_arm)


def _run_arm(root: pathlib.Path, out: pathlib.Path, name: str) -> int:
  """Runs the sweep of an arm and records its numbers; returns the status."""
  folder, size = root / name, arms_lib.SIZES[_TRAINING.size]
  config = _TRAINING.config(name)
  if name == arms_lib.BASE:
    return sweeps_lib.sweep(folder, config)
  is_there = (out / f"{name}.json").exists()
  if name == "ads" and not is_there and (status := _embed(root, size)):
    return status
  return sweeps_lib.record(
    out,
    folder,
    config,
    arms_lib.follows_on(name, root),
    functools.partial(sweeps_lib.collected, results.of_run),
  )


def _embed(root: pathlib.Path, size: arms_lib.Size) -> int:
  """Clusters the prompts of each seed for which this is missing."""
  for seed in range(size.num_seeds):
    start = root / arms_lib.BASE / f"seed={seed}"
    out = start / arms_lib.CLUSTERS
    if out.exists():
      continue
    status = sweeps_lib.timed(
      root / "ads",
      *("experiments.embed", f"--workdir={start}", f"--out={out}"),
      *arms_lib.embedding(size),
    )
    if status:
      return status
  return 0


if __name__ == "__main__":
  flags_lib.run(main)

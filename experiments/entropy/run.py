r"""Trains the missing arms of the experiment on entropy.

    python -m experiments.entropy.run --root=runs/entropy \
        --results=benchmarks/entropy
    python -m experiments.entropy.report --results=benchmarks/entropy --out=docs

Each arm is a sweep of five seeds in one program, and leaves ARM.json. All
follow on `base`. Arms that have ended are left alone, and the same command
continues a stopped arm. --arms takes a regular expression: other arms wait.

Exit status: 0 all arms have ended, 1 an arm has failed, 143 stopped.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence

from experiments.entropy import arms as arms_lib
from experiments.entropy import results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_TRAINING = commands.Training("entropy", arms_lib.SIZES)


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
    functools.partial(results.collected, size=size),
  )


if __name__ == "__main__":
  flags_lib.run(main)

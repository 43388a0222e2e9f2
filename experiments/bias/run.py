r"""Trains the missing arms of the experiment on one flipped example.

    python -m experiments.bias.run --root=runs/bias --results=benchmarks/bias
    python -m experiments.bias.report --results=benchmarks/bias --out=docs

Each arm is a sweep of five seeds in one program, 1 to 2 minutes on 2 CPU cores
that do nothing else, and leaves ARM.json. Arms that have ended are left alone.
--arms takes a regular expression: other arms wait.

Exit status: 0 all arms have ended, 1 an arm has failed, 143 stopped.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from experiments.bias import arms as arms_lib
from experiments.bias import results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_TRAINING = commands.Training("bias")


def main(argv: Sequence[str]) -> int:
  """Runs the missing arms, one after another."""
  del argv
  return _TRAINING.go_through(arms_lib.ARMS, _run_arm)


def _run_arm(root: pathlib.Path, out: pathlib.Path, name: str) -> int:
  """Runs the sweep of an arm and records its numbers; returns the status."""
  return sweeps_lib.record(
    out, root / name, _TRAINING.config(name), (), results.collected
  )


if __name__ == "__main__":
  flags_lib.run(main)

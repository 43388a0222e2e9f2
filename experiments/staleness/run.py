r"""Trains the missing arms of the experiment on staleness.

    python -m experiments.staleness.run --root=runs/staleness \
        --results=benchmarks/staleness
    python -m experiments.staleness.report --results=benchmarks/staleness \
        --out=docs

Each arm is a sweep of six seeds in one program, and leaves ARM.json. All follow
on `base`. Arms that have ended are left alone, and the same command continues a
stopped arm. --arms takes a regular expression: other arms wait.

Exit status: 0 all arms have ended, 1 an arm has failed, 143 stopped.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence

from experiments.staleness import arms as arms_lib
from experiments.staleness import results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_TRAINING = commands.Training("staleness", arms_lib.SIZES)


def main(argv: Sequence[str]) -> int:
  """Runs the missing arms, one after another."""
  del argv
  return _TRAINING.go_through(arms_lib.ARMS, _run_arm)


def _run_arm(root: pathlib.Path, out: pathlib.Path, name: str) -> int:
  """Runs the sweep of an arm and records its numbers; returns the status."""
  return sweeps_lib.record(
    out,
    root / name,
    _TRAINING.config(name),
    arms_lib.follows_on(name, root),
    functools.partial(sweeps_lib.collected, results.of_run),
  )


if __name__ == "__main__":
  flags_lib.run(main)

"""Trains the missing arms of the experiment on judges.

    python -m experiments.judges.run --root=runs/judges \
        --results=benchmarks/judges
    python -m experiments.judges.report --results=benchmarks/judges --out=docs

Each arm is a sweep of five seeds in one program, and leaves ARM.json. Policies
follow on judges, which come first. Arms that have ended are left alone.
--arms takes a regular expression: other arms wait.

Exit status: 0 all arms have ended, 1 an arm has failed, 143 stopped.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence

from experiments.judges import arms as arms_lib
from experiments.judges import results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_TRAINING = commands.Training("judges")


def main(argv: Sequence[str]) -> int:
  """Runs the missing arms, one after another."""
  del argv
  return _TRAINING.go_through(arms_lib.ARMS, _run_arm)


def _run_arm(root: pathlib.Path, out: pathlib.Path, name: str) -> int:
  """Runs the sweep of an arm and records its numbers; returns the status."""
  overrides = arms_lib.follows_on(name, root)
  collected = functools.partial(sweeps_lib.collected, results.of_run)
  return sweeps_lib.record(
    out, root / name, _TRAINING.config(name), overrides, collected
  )


if __name__ == "__main__":
  flags_lib.run(main)

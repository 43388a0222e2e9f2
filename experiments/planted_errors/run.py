r"""Trains and measures the missing arms of the experiment on planted errors.

    python -m experiments.planted_errors.run --root=runs/planted_errors \
        --results=benchmarks/planted_errors
    python -m experiments.planted_errors.report \
        --results=benchmarks/planted_errors --out=docs

Each arm is a sweep of five seeds in one program, and leaves ARM.json, but for
`start`, which the learners follow on. Arms that have ended are left alone, and
the same command continues a stopped arm. --arms takes a regular expression:
other arms wait.

Exit status: 0 all arms have ended, 1 an arm has failed, 143 stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.planted_errors import arms as arms_lib
from experiments.planted_errors import results
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_TRAINING = commands.Training("planted_errors")


def main(argv: Sequence[str]) -> int:
  """Runs the missing arms, one after another."""
  del argv
  return _TRAINING.follow_on(
    arms_lib.ARMS,
    arms_lib.BASE,
    arms_lib.follows_on,
    results.collected,
  )


if __name__ == "__main__":
  flags_lib.run(main)

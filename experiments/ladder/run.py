r"""Trains the missing arms of the ladder of DAPO.

    python -m experiments.ladder.run --root=runs/ladder \
        --results=benchmarks/ladder
    python -m experiments.ladder.report --results=benchmarks/ladder --out=docs

Each arm is a sweep of five seeds in one program, and leaves ARM.json, but for
`base`, which all others follow on. Arms that have ended are left alone, and the
same command continues a stopped arm. --arms takes a regular expression: other
arms wait.

Exit status: 0 all arms have ended, 1 an arm has failed, 143 stopped.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from experiments.ladder import arms as arms_lib
from experiments.ladder import results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_TRAINING = commands.Training("ladder", arms_lib.SIZES)


def main(argv: Sequence[str]) -> int:
  """Runs the missing arms, one after another."""
  del argv
  return _TRAINING.follow_on(
    arms_lib.ARMS,
    arms_lib.BASE,
    arms_lib.follows_on,
    functools.partial(sweeps_lib.collected, results.of_run),
  )


if __name__ == "__main__":
  flags_lib.run(main)

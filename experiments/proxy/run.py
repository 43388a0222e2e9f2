r"""Trains the missing arms of the experiment on a reward that is learned.

    python -m experiments.proxy.run --root=runs/proxy --results=benchmarks/proxy
    python -m experiments.proxy.report --results=benchmarks/proxy --out=docs

Each arm is a sweep of ten seeds in one program, six minutes on a CPU core that
is left alone, and leaves ARM.json.
Arms that have ended are left alone.
--arms takes a regular expression: other arms wait.

Exit status: 0 all arms have ended, 1 an arm has failed, 143 stopped.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence

from experiments.proxy import arms as arms_lib
from experiments.proxy import results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_TRAINING = commands.Training("proxy")


def main(argv: Sequence[str]) -> int:
  """Runs the missing arms, one after another."""
  del argv
  return _TRAINING.go_through(arms_lib.ARMS, _run_arm)


def _run_arm(root: pathlib.Path, out: pathlib.Path, name: str) -> int:
  """Runs the sweep of an arm and records its numbers; returns the status."""
  collected = functools.partial(sweeps_lib.collected, results.of_run)
  return sweeps_lib.record(
    out, root / name, _TRAINING.config(name), (), collected
  )


if __name__ == "__main__":
  flags_lib.run(main)

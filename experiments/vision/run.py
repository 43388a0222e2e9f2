r"""Trains whatever is missing of the experiment on images.

    python -m experiments.vision.run --root=runs/vision \
        --results=benchmarks/vision
    python -m experiments.vision.report --results=benchmarks/vision --out=docs

Each arm is a sweep of five seeds in one program, and leaves ARM.json, but for
`base`, which all others follow on. What has ended is left alone. --arms takes a
regular expression: others wait.

Exit status: 0 all has ended, 1 something has failed, 143 stopped.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence

from experiments import flags as flags_lib
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import commands
from experiments.vision import arms as arms_lib
from experiments.vision import results

_TRAINING = commands.Training("vision")


def main(argv: Sequence[str]) -> int:
  """Runs what is missing, one after another."""
  del argv
  return _TRAINING.go_through(arms_lib.ARMS, _run_arm)


def _run_arm(root: pathlib.Path, out: pathlib.Path, name: str) -> int:
  """Runs the sweep of an arm, and writes its numbers; the exit status."""
  folder, config = root / name, _TRAINING.config(name)
  if name == arms_lib.BASE:
    return sweeps_lib.sweep(folder, config)
  overrides = arms_lib.follows_on(name, root)
  collected = functools.partial(sweeps_lib.collected, results.of_run)
  return sweeps_lib.record(out, folder, config, overrides, collected)


if __name__ == "__main__":
  flags_lib.run(main)

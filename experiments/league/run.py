r"""Trains the missing arms of the league.

    python -m experiments.league.run --root=runs/league \
        --results=benchmarks/league
    python -m experiments.league.report --results=benchmarks/league --out=docs

Each arm, an algorithm on a task, is a sweep of five seeds and three learning
rates in one program, and leaves ARM.json. The warm start of a task is trained
where an arm first needs it. Arms that have ended are left alone, and the same
command continues a stopped arm. --arms takes a regular expression: other arms
wait. Once its numbers are recorded, the checkpoints of an arm are deleted.

Exit status: 0 all arms have ended, 1 an arm has failed, 143 stopped.
"""

from __future__ import annotations

import functools
import pathlib
import shutil
from collections.abc import Sequence

from experiments.league import arms as arms_lib
from experiments.league import problems, results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_TRAINING = commands.Training("league", arms_lib.SIZES)


def main(argv: Sequence[str]) -> int:
  """Runs the missing arms, one after another."""
  del argv
  return _TRAINING.go_through(arms_lib.ARMS, _run_arm)


def _run_arm(root: pathlib.Path, out: pathlib.Path, name: str) -> int:
  """Runs an arm, after its warm start; returns the exit status."""
  if (out / f"{name}.json").exists():
    return 0
  size = arms_lib.SIZES[_TRAINING.size]
  if arms_lib.split(name)[1] == "words":
    problems.write(root / arms_lib.FOLDER.name, size.records, size.held_out)
  base = arms_lib.base_of(name)
  status = sweeps_lib.sweep(
    root / base, _TRAINING.config(base), *arms_lib.overrides(base, root)
  )
  if status:
    return status
  status = sweeps_lib.record(
    out,
    root / name,
    _TRAINING.config(name),
    arms_lib.overrides(name, root),
    functools.partial(results.collected, name),
  )
  if not status:
    for folder in (root / name).glob("*/checkpoints"):
      shutil.rmtree(folder)
  return status


if __name__ == "__main__":
  flags_lib.run(main)

"""Writes a small code task: functions of two steps, with hidden tests.

    python -m experiments.rewards.code_task --out=runs/code_task

A problem names two steps that do not commute. A program of one line solves it:

    prompt       Add 3, then multiply by 2.
    completion   def f(x): return (x+3)*2
    tests        {"call": "f(4)", "output": "14"}, and four more

The folder gets train.jsonl and test.jsonl, with the same bytes each time. They
share no problem. The teacher of the warm start is sloppy: most of the time it
does the steps in the wrong order. So the warm start learns to write programs,
and a wrong habit, which only running the programs shows. Each training problem
is there several times, each time with another completion of the teacher.
"""

from __future__ import annotations

import pathlib

from absl import app, flags

from experiments.rewards import code_problems

_OUT = flags.DEFINE_string("out", None, "Folder to write.", required=True)


def main(argv: list[str]) -> None:
  """Writes the files to --out."""
  del argv
  code_problems.write(pathlib.Path(_OUT.value))


if __name__ == "__main__":
  app.run(main)

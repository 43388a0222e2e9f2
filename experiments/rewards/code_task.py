"""Writes a small code task: functions of two steps, with hidden tests.

    python -m experiments.rewards.code_task --out=runs/code_task

A problem names two steps that do not commute, and a program of one line does
them:

    prompt       Add 3, then multiply by 2.
    completion   def f(x): return (x+3)*2
    tests        {"call": "f(4)", "output": "14"}, and four more

The folder gets train.jsonl and test.jsonl, the same bytes each time. Problems
of the one are not in the other. The teacher of the warm start is sloppy: most
of the time it does the steps in the wrong order, so the warm start learns to
write programs, and a wrong habit, which only running them shows. Each training
problem is there several times, with what the teacher wrote each time.
"""

from __future__ import annotations

import pathlib

from absl import app, flags

from experiments.rewards import code_problems

_OUT = flags.DEFINE_string("out", None, "Folder to write.", required=True)


def main(argv: list[str]) -> None:
  """Writes them to --out."""
  del argv
  code_problems.write(pathlib.Path(_OUT.value))


if __name__ == "__main__":
  app.run(main)

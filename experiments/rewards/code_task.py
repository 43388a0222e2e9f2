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

import itertools
import pathlib
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from absl import app, flags

from experiments.rewards import lines

NUM_TRAIN, NUM_TEST = 200, 64  # Problems.
_NUM_COPIES = 8
_NUM_TESTS = 5
_SLOPPY = 0.7
_SEED = 0


class Step(NamedTuple):
  """Step of a calculation.

  Attributes:
    words: The step as an order in words.
    sign: The sign of the operation.
    number: Its second operand.
  """

  words: str
  sign: str
  number: int


_SUMS = tuple(
  Step(words.format(k), sign, k)
  for words, sign in (("add {}", "+"), ("subtract {}", "-"))
  for k in range(1, 10)
)
_PRODUCTS = tuple(Step(f"multiply by {k}", "*", k) for k in range(2, 10))


def expression(first: Step, second: Step) -> str:
  """Python expression of both steps, in this order."""
  inner = f"x{first.sign}{first.number}"
  if second.sign == "*":
    inner = f"({inner})"
  return f"{inner}{second.sign}{second.number}"


def _value(steps: tuple[Step, Step], x: int) -> int:
  for step in steps:
    if step.sign == "*":
      x *= step.number
    else:
      x += step.number if step.sign == "+" else -step.number
  return x


def problems() -> tuple[list[tuple[Step, Step]], list[tuple[Step, Step]]]:
  """Pairs of steps, for training and for testing."""
  pairs = [*itertools.product(_SUMS, _PRODUCTS)]
  pairs += [(second, first) for first, second in pairs]
  random.Random(_SEED).shuffle(pairs)
  return pairs[:NUM_TRAIN], pairs[NUM_TRAIN : NUM_TRAIN + NUM_TEST]


def record(steps: tuple[Step, Step], sloppy: bool) -> dict[str, Any]:
  """Line of a file.

  Args:
    steps: The problem.
    sloppy: Whether the teacher takes them in the wrong order.
  """
  first, second = steps
  rng = random.Random(f"{_SEED} {first.words} {second.words}")
  inputs = rng.sample(range(-20, 40), _NUM_TESTS)
  written = expression(second, first) if sloppy else expression(first, second)
  return {
    "prompt": f"{first.words.capitalize()}, then {second.words}.",
    "completion": f"def f(x): return {written}",
    "extras": {
      "tests": [
        {"call": f"f({x})", "output": str(_value(steps, x))} for x in inputs
      ]
    },
  }


def train_records() -> Iterator[dict[str, Any]]:
  """Lines of train.jsonl."""
  rng = random.Random(_SEED)
  train, _ = problems()
  for _ in range(_NUM_COPIES):
    for steps in train:
      yield record(steps, rng.random() < _SLOPPY)


def test_records() -> Iterator[dict[str, Any]]:
  """Yields the lines of test.jsonl; no policy imitates their completions."""
  _, test = problems()
  for steps in test:
    yield record(steps, sloppy=False)


def write(folder: pathlib.Path) -> None:
  """Writes both files."""
  folder.mkdir(parents=True, exist_ok=True)
  for name, records in (("train", train_records()), ("test", test_records())):
    lines.write(folder / f"{name}.jsonl", records)


def main(argv: list[str]) -> None:
  """Writes the files to --out."""
  del argv
  write(pathlib.Path(flags.FLAGS.out))


if __name__ == "__main__":
  flags.DEFINE_string("out", None, "Folder to write.", required=True)
  app.run(main)

"""Problems in words, and the files of them.

    Ann has 8 coins and gets 5 more. How many?    <answer>13</answer>
    Tom has 8 coins and loses 5 . How many?       <answer>3</answer>

In some of them the teacher of the warm start takes the wrong operation.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

from grpo_jax.tasks import task as task_lib

TRAIN, HELD_OUT = "train.jsonl", "held_out.jsonl"
PROMPT_LEN = 24  # tokens
TEACHER_ERROR = 0.45  # Probability of the other operation.
LARGEST = 9  # Of the numbers that are added, or taken away.
_NAMES = ("Tom", "Ann", "James", "Mary", "John", "Lisa", "Sam", "Jack")
_THINGS = ("apples", "books", "marbles", "cookies", "pens", "balls")


def write(folder: pathlib.Path, num_train: int, num_held_out: int) -> None:
  """Writes both files; the same problems at every call."""
  folder.mkdir(parents=True, exist_ok=True)
  for split, name, count in (
    ("train", TRAIN, num_train),
    ("test", HELD_OUT, num_held_out),
  ):
    rng = np.random.default_rng([count, split == "test"])
    lines = [json.dumps(record(rng, split)) for _ in range(count)]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def record(rng: np.random.Generator, split: str) -> dict[str, Any]:
  """Draws a problem with its answer and the text of the teacher.

  No problem is in both splits, "train" and "test", whatever its names.
  """

  def sample(rng: np.random.Generator) -> tuple[int, int, int, int, int]:
    first, second = (int(rng.integers(1, LARGEST + 1)) for _ in range(2))
    who, what = rng.integers(len(_NAMES)), rng.integers(len(_THINGS))
    return (
      max(first, second),
      min(first, second),
      int(rng.integers(2)),
      who,
      what,
    )

  more, less, is_sum, who, what = task_lib.draw(
    rng, split, sample, identity=lambda x: list(map(int, x))
  )
  verb = f"gets {less} more" if is_sum else f"loses {less}"
  answers = {True: more + less, False: more - less}
  is_wrong = bool(rng.random() < TEACHER_ERROR)
  return {
    "prompt": (
      f"{_NAMES[who]} has {more} {_THINGS[what]} and {verb}. How many?"
    ),
    "answer": str(answers[bool(is_sum)]),
    "completion": f"<answer>{answers[bool(is_sum) != is_wrong]}</answer>",
  }

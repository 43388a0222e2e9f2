"""Sorting: scores and sloppy teachers known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_jax.tasks import sort, vocabulary
from tests.tasks import strings

TASK = sort.make(min_len=3, max_len=5, tags=False)
GOLD = "abbd"


@pytest.mark.parametrize(
  ("text", "accuracy", "position", "ascending", "f1"),
  [
    ("abbd<eos>", 1, 1, 1, 1),
    ("dbba<eos>", 0, 2 / 4, 1 / 3, 1),
    ("abb<eos>", 0, 3 / 4, 1, 6 / 7),
    ("abbdd<eos>", 0, 4 / 5, 1, 8 / 9),
    ("aaaa<eos>", 0, 1 / 4, 1, 2 / 8),
    ("a<eos>", 0, 1 / 4, 0, 2 / 5),
    ("12;9<eos>", 0, 0, 0, 0),
    ("ab1bd<eos>", 0, 2 / 5, 2 / 4, 8 / 9),
    ("<eos>", 0, 0, 0, 0),
    ("abbd", 0, 0, 0, 0),
    ("abbd<eos>a", 0, 0, 0, 0),
    ("abbd<eos><eos>", 0, 0, 0, 0),
    ("<answer>abbd</answer><eos>", 0, 1 / 6, 3 / 5, 8 / 10),
    ("", 0, 0, 0, 0),
  ],
)
def test_known_scores(text, accuracy, position, ascending, f1):
  extras = {"answer": vocabulary.padded(vocabulary.encode(GOLD), 5)}
  wanted = {
    "accuracy": accuracy,
    "position": position,
    "ascending": ascending,
    "f1": f1,
  }
  assert strings.judge(TASK, text, extras) == pytest.approx(wanted)


def test_a_teacher_in_error_sorts_the_wrong_way_round():
  task = sort.make(teacher_error=1.0)
  rng = np.random.default_rng(0)
  wrong = []
  for _ in range(100):
    example = task.example(rng, "train")
    letters = task.decode(example.prompt)[len("<bos>") : -1]
    descending = "".join(sorted(letters, reverse=True))
    answer = task.decode(example.completion)
    assert answer == f"<answer>{descending}</answer><eos>"
    gold = task.decode(example.extras["answer"])
    assert gold == descending[::-1]
    wrong.append(gold != descending)
  assert np.mean(wrong) > 0.9


def test_teachers_err_as_often_as_asked():
  task = sort.make(teacher_error=0.8, tags=False)
  rng = np.random.default_rng(0)
  examples = [task.example(rng, "train") for _ in range(500)]
  right = [
    task.decode(e.completion[:-1]) == task.decode(e.extras["answer"])
    for e in examples
  ]
  assert np.mean(right) == pytest.approx(0.2, abs=0.06)

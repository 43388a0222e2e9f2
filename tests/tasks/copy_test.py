"""Copying: scores known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_jax.tasks import copy, vocabulary
from tests.tasks import strings

TASK = copy.make(length=3)


@pytest.mark.parametrize(
  ("text", "accuracy", "position"),
  [
    ("cab<eos>", 1, 1),
    ("cac<eos>", 0, 2 / 3),
    ("ca<eos>", 0, 2 / 3),
    ("cabs<eos>", 0, 3 / 4),
    ("<eos>", 0, 0),
    ("cab", 0, 0),
    ("cab<eos>c", 0, 0),
    ("cab<eos><eos>", 0, 0),
    ("", 0, 0),
  ],
)
def test_known_scores(text, accuracy, position):
  extras = {"answer": np.array(vocabulary.encode("cab"), np.int32)}
  scores = strings.judge(TASK, text, extras)
  assert scores == pytest.approx({"accuracy": accuracy, "position": position})


def test_the_teacher_copies_the_prompt():
  task = copy.make(length=5)
  example = task.example(np.random.default_rng(0), "test")
  letters = task.decode(example.prompt).removeprefix("<bos>").removesuffix("=")
  assert len(letters) == 5
  assert task.decode(example.completion) == f"{letters}<eos>"

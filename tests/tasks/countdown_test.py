"""Countdown: answers known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_jax.tasks import countdown
from tests.tasks import strings

TASK = countdown.make()
BARE = countdown.make(num_numbers=2, tags=False)


@pytest.mark.parametrize(
  ("answer", "accuracy"),
  [
    ("2+3*4", 1),  # Left to right: (2 + 3) * 4 = 20.
    ("3+2*4", 1),
    ("4*3+2", 0),  # 14.
    ("4*2+3", 0),
    ("4*5", 0),
    ("2+3*4+0", 0),
    ("2+3*4*1", 0),
    ("2+3*", 0),
    ("+2+3*4", 0),
    ("2+3=4", 0),
    ("23*4", 0),
    ("20", 0),
    ("", 0),
    ("2+2*5", 0),  # 20, of other numbers.
  ],
)
def test_known_answers(answer, accuracy):
  text = f"<answer>{answer}</answer><eos>"
  extras = {"numbers": np.array([2, 3, 4]), "target": np.array(20)}
  assert strings.judge(TASK, text, extras) == {"accuracy": accuracy}


@pytest.mark.parametrize(
  ("text", "accuracy"),
  [
    ("1-3<eos>", 0),
    ("3-1<eos>", 1),
    ("3-1", 0),
    ("3-1<eos>1", 0),
    ("3-1<eos><eos>", 0),
    ("3-1<pad><eos>", 0),
    ("<answer>3-1</answer><eos>", 0),
  ],
)
def test_known_bare_answers(text, accuracy):
  extras = {"numbers": np.array([1, 3]), "target": np.array(2)}
  assert strings.judge(BARE, text, extras) == {"accuracy": accuracy}


def test_prompts_show_the_numbers_and_the_target():
  task = countdown.make(num_numbers=4)
  rng = np.random.default_rng(0)
  ascending = 0
  for _ in range(100):
    example = task.example(rng, "train")
    text = task.decode(example.prompt)
    numbers, target = text.removeprefix("<bos>").rstrip("=").split(":")
    numbers = [int(x) for x in numbers.split(",")]
    assert sorted(numbers) == example.extras["numbers"].tolist()
    assert 1 <= int(target) == example.extras["target"] <= 99
    ascending += numbers == sorted(numbers)
  assert ascending < 50


def test_a_guessing_teacher_uses_the_numbers_but_is_mostly_wrong():
  task = countdown.make(teacher_error=1.0, tags=False)
  rng = np.random.default_rng(0)
  right = []
  for _ in range(300):
    example = task.example(rng, "train")
    used = sorted(int(x) for x in task.decode(example.completion[0:-1:2]))
    assert used == example.extras["numbers"].tolist()
    mask = np.ones(len(example.completion), bool)
    scores = task.verify_numpy(example.completion, mask, example.extras)
    right.append(scores["accuracy"])
  assert 0.02 < np.mean(right) < 0.3

"""Addition: answers, steps and sloppy teachers known by hand."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from grpo_jax.tasks import add, vocabulary
from grpo_jax.tasks.task import Task
from tests.tasks import strings

# 95 + 8: the columns are 5+8+0 = 13 and 9+0+1 = 10.
WORKING = "5+8+0=13;9+0+1=10;"


TASK = add.make(level=2)
BARE = add.make(level=1, tags=False)
SCRATCHPAD = add.make(level=2, scratchpad=True)


def judge(task: Task, text: str, a: int, b: int) -> dict[str, float]:
  return strings.judge(task, text, {"operands": np.array([a, b], np.int32)})


@pytest.mark.parametrize(
  ("text", "accuracy"),
  [
    ("<answer>103</answer><eos>", 1.0),
    ("ab<answer>103</answer><eos>", 1.0),
    ("<answer>0103</answer><eos>", 0.0),
    ("<answer>10</answer><eos>", 0.0),
    ("<answer>1033</answer><eos>", 0.0),
    ("<answer></answer><eos>", 0.0),
    ("<answer>95+8</answer><eos>", 0.0),
    ("<answer>103</answer><answer>103</answer><eos>", 0.0),
    ("<answer>103</answer>", 0.0),
    ("<answer>103</answer>1<eos>", 0.0),
    ("<answer>103</answer><eos>1", 0.0),
    ("<answer>103<eos>", 0.0),
    ("103<eos>", 0.0),
    # Equal to 103 modulo 2^32.
    ("<answer>4294967399</answer><eos>", 0.0),
    ("", 0.0),
  ],
)
def test_known_answers(text, accuracy):
  assert judge(TASK, text, 95, 8)["accuracy"] == accuracy


def test_bare_answers_and_zero():
  assert judge(BARE, "0<eos>", 0, 0)["accuracy"] == 1.0
  assert judge(BARE, "00<eos>", 0, 0)["accuracy"] == 0.0
  assert judge(BARE, "<eos>", 0, 0)["accuracy"] == 0.0
  assert judge(BARE, "18<eos>", 9, 9)["accuracy"] == 1.0
  assert judge(BARE, "<answer>18</answer><eos>", 9, 9)["accuracy"] == 0.0


@pytest.mark.parametrize(
  ("working", "process"),
  [
    (WORKING, 1.0),
    ("", 0.0),
    ("5+8+0=13;", 0.5),
    ("5+8+0=13;9+0+0=09;", 0.5),
    ("5+8+0=14;9+0+1=10;", 0.5),
    ("8+5+0=13;9+0+1=10;", 0.5),
    (";" + WORKING, 0.0),
    (WORKING + ";", 2 / 3),
    (WORKING + "abc", 1.0),
    (WORKING + WORKING, 0.5),
    ("a" + WORKING, 0.5),
  ],
)
def test_process_is_the_share_of_right_steps(working, process):
  text = f"<think>{working}</think><answer>1</answer><eos>"
  scores = judge(SCRATCHPAD, text, 95, 8)
  assert scores == pytest.approx({"accuracy": 0.0, "process": process})
  # The answer is judged apart from the working.
  scores = judge(SCRATCHPAD, text.replace("r>1<", "r>103<"), 95, 8)
  assert scores == pytest.approx({"accuracy": 1.0, "process": process})


@pytest.mark.parametrize(
  "text",
  [
    f"{WORKING}<answer>1</answer><eos>",
    f"<think>{WORKING}<answer>1</answer><eos>",
    f"<think>{WORKING}</think></think><answer>1</answer><eos>",
    f"</think>{WORKING}<think><answer>1</answer><eos>",
  ],
)
def test_working_outside_one_think_span_does_not_count(text):
  assert judge(SCRATCHPAD, text, 95, 8)["process"] == 0.0


def test_steps_are_scored_where_they_end():
  task = add.make(level=2, scratchpad=True)
  tokens, mask = strings.row(
    "<think>5+8+0=13;9+0+0=09;</think><answer>93</answer><eos>", num_slots=30
  )
  extras = {"operands": np.array([95, 8], np.int32)}
  for step_scores in (jax.jit(task.step_scores), task.step_scores_numpy):
    scores, step_mask = step_scores(tokens, mask, extras)
    assert np.flatnonzero(step_mask).tolist() == [9, 18]
    assert np.flatnonzero(scores).tolist() == [9]


def test_the_teacher_shows_the_working():
  task = add.make(level=2, scratchpad=True)
  rng = np.random.default_rng(0)
  example = task.example(rng, "train")
  a, b = example.extras["operands"].tolist()
  assert task.decode(example.prompt) == f"<bos>{a}+{b}="
  low, high = a % 10 + b % 10, a // 10 + b // 10
  carry = low // 10
  assert task.decode(example.completion) == (
    f"<think>{a % 10}+{b % 10}+0={low:02d};"
    f"{a // 10}+{b // 10}+{carry}={high + carry:02d};</think>"
    f"<answer>{a + b}</answer><eos>"
  )


def test_a_teacher_who_forgets_every_carry_is_wrong_where_there_is_one():
  task = add.make(level=2, teacher_error=1.0, tags=False)
  rng = np.random.default_rng(0)
  wrong = []
  for _ in range(400):
    example = task.example(rng, "train")
    a, b = example.extras["operands"].tolist()
    without_carries = (a // 10 + b // 10) % 10 * 10 + (a + b) % 10
    assert task.decode(example.completion) == f"{without_carries}<eos>"
    wrong.append(without_carries != a + b)
  # No carry: .55 in the units, .44 in the tens.
  assert np.mean(wrong) == pytest.approx(1 - 0.55 * 36 / 81, abs=0.08)


def test_teachers_see_the_same_problems_whatever_their_error():
  prompts = []
  for teacher_error in (0.0, 0.5, 1.0):
    task = add.make(level=3, teacher_error=teacher_error)
    rng = np.random.default_rng(1)
    examples = [task.example(rng, "train") for _ in range(50)]
    prompts.append([task.decode(example.prompt) for example in examples])
  assert prompts[0] == prompts[1] == prompts[2]


def test_operands_have_the_digits_asked_for():
  rng = np.random.default_rng(0)
  fixed = add.make(level=3)
  free = add.make(level=3, fixed_digits=False)
  lengths = set()
  for _ in range(200):
    assert fixed.example(rng, "train").extras["operands"].min() >= 100
    a, b = free.example(rng, "train").extras["operands"].tolist()
    lengths.add((len(str(a)), len(str(b))))
  assert lengths == {(i, j) for i in (1, 2, 3) for j in (1, 2, 3)}
  assert vocabulary.number(0) == [vocabulary.DIGIT_0]

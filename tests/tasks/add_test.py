"""Addition: answers, steps and sloppy teachers known by hand."""

from __future__ import annotations

import re

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


@pytest.mark.slow
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
  # The answer is judged apart from the working.
  for answer, accuracy in (("1", 0.0), ("103", 1.0)):
    said = judge(SCRATCHPAD, text.replace("r>1<", f"r>{answer}<"), 95, 8)
    del said["consistency"]
    assert said == pytest.approx({"accuracy": accuracy, "process": process})


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


def test_a_teacher_who_slips_is_right_and_inconsistent():
  task = add.make(level=2, scratchpad=True, teacher_slip=0.3)
  rng = np.random.default_rng(0)
  consistent = []
  for _ in range(400):
    example = task.example(rng, "train")
    mask = np.ones(len(example.completion), bool)
    scores = task.verify_numpy(example.completion, mask, example.extras)
    assert scores["accuracy"] == 1
    assert (scores["process"] == 1) == (scores["consistency"] == 1)
    consistent.append(scores["consistency"])
  # Neither of two columns; a deviation of 0.025.
  assert np.mean(consistent) == pytest.approx(0.7**2, abs=0.08)


def test_a_wordy_teacher_ends_its_thought_with_letters():
  """Their number follows the geometric distribution, cut off at 24."""
  task = add.make(level=2, max_filler=24)
  rng = np.random.default_rng(0)
  sizes, letters = [], set()
  for _ in range(2000):
    text = task.decode(task.example(rng, "train").completion)
    thought = re.fullmatch(
      r"<think>([a-z]*)</think><answer>\d+</answer><eos>", text
    )[1]
    sizes.append(len(thought))
    letters |= set(thought)
  share = 6 / 7
  assert max(sizes) == 24
  assert np.mean(sizes) == pytest.approx(6 * (1 - share**24), abs=0.3)
  assert sizes.count(0) / 2000 == pytest.approx(1 - share, abs=0.03)
  assert len(letters) == 26


def test_filler_stands_behind_the_working():
  task = add.make(level=2, scratchpad=True, max_filler=5, mean_filler=60.0)
  rng = np.random.default_rng(0)
  sizes = set()
  for _ in range(9):
    text = task.decode(task.example(rng, "train").completion)
    found = re.fullmatch(r"<think>(?:[\d+=]+;){2}([a-z]*)</think>.*", text)
    sizes.add(len(found[1]))
  assert max(sizes) == 5


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


@pytest.mark.parametrize(
  ("working", "answer", "consistency"),
  [
    (WORKING, "103", 1),
    (WORKING, "3", 0),  # The last carry is forgotten.
    (WORKING, "0103", 0),
    ("5+8+0=13;9+0+0=09;", "93", 1),  # Wrong, and it follows.
    ("5+8+0=13;9+0+0=09;", "103", 0),  # Right, and it does not.
    ("5+8+0=99;1=00;", "9", 1),  # How a step came to it is not looked at.
    ("5+8+0=00;9+0+1=00;", "0", 1),
    ("5+8+0=00;9+0+1=00;", "00", 0),
    ("5+8+0=03;", "3", 1),
    (WORKING + "abc", "103", 1),
    ("5+8+0=13;9+0+1=1;", "103", 0),
    ("5+8+0=13;9+0+1:10;", "103", 0),
    (WORKING + "0+0+1=00;", "3", 0),  # More steps than digits.
    ("", "0", 0),
    (";", "0", 0),
  ],
)
def test_an_answer_is_consistent_with_what_the_working_comes_to(
  working, answer, consistency
):
  text = f"<think>{working}</think><answer>{answer}</answer><eos>"
  assert judge(SCRATCHPAD, text, 95, 8)["consistency"] == consistency
  open_end = text.removesuffix("<eos>")
  assert judge(SCRATCHPAD, open_end, 95, 8)["consistency"] == 0

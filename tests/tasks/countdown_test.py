"""Countdown: answers known by hand."""

from __future__ import annotations

import itertools

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


@pytest.mark.parametrize(
  ("first", "last", "accuracy"),
  [("2+3*4", "4*5", 0), ("4*5", "2+3*4", 1), ("", "3+2*4", 1)],
)
def test_the_last_answer_counts_where_it_may(first, last, accuracy):
  text = f"<answer>{first}</answer>=<answer>{last}</answer><eos>"
  extras = {"numbers": np.array([2, 3, 4]), "target": np.array(20)}
  task = countdown.make(last_answer=True)
  assert strings.judge(task, text, extras) == {"accuracy": accuracy}
  assert strings.judge(TASK, text, extras) == {"accuracy": 0}


@pytest.mark.parametrize("options", [{}, {"num_numbers": 2, "tags": False}])
def test_solutions_are_right_whatever_the_teacher_writes(options):
  task = countdown.make(teacher_error=1.0, **options)
  rng = np.random.default_rng(0)
  for _ in range(50):
    extras = task.example(rng, "train").extras
    found = task.solution(extras)
    assert found == task.solution({**extras, "num_solutions": np.array(1)})
    text = task.decode(found.completion)
    assert strings.judge(task, text, extras) == {"accuracy": 1}
    alone = task.decode(found.answer)
    assert text in (f"<answer>{alone}</answer><eos>", f"{alone}<eos>")


def test_the_first_solution_is_given_and_there_has_to_be_one():
  extras = {"numbers": np.array([2, 3, 4]), "target": np.array(20)}
  assert TASK.decode(TASK.solution(extras).answer) == "2+3*4"
  with pytest.raises(ValueError, match=r"no expression of \[1, 3\] is 99"):
    BARE.solution({"numbers": np.array([1, 3]), "target": np.array(99)})


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


def _counted(numbers, target) -> int:
  """Every string of these digits and any operators that the twin takes."""
  digits = sorted({str(x) for x in numbers})
  places = [digits, [*"+-*"]] * len(numbers)
  extras = {"numbers": np.array(sorted(numbers)), "target": np.array(target)}
  task = countdown.make(num_numbers=len(numbers), tags=False)
  right = 0
  for answer in itertools.product(*places[:-1]):
    tokens = np.array(task.encode("".join([*answer, "<eos>"])), np.int32)
    mask = np.ones(len(tokens), bool)
    right += task.verify_numpy(tokens, mask, extras)["accuracy"]
  return int(right)


@pytest.mark.parametrize(
  ("numbers", "target", "count"),
  [
    ([2, 2], 4, 2),  # 2 + 2 and 2 * 2, whichever 2 is first.
    ([3, 1], 2, 1),  # 3 - 1.
    ([1, 3], 99, 0),
    ([4, 2, 3], 20, 2),  # 2 + 3 * 4 and 3 + 2 * 4, from left to right.
    ([1, 1, 1], 1, 3),  # 1+1-1, 1-1+1 and 1*1*1.
    ([1, 2, 3], 6, 12),  # Six sums in any order, and six products.
    ([6, 4, 3, 1], 6, 46),
  ],
)
def test_known_numbers_of_solutions(numbers, target, count):
  assert countdown.num_solutions(numbers, target) == count


@pytest.mark.parametrize(
  ("numbers", "targets"),
  [([5, 5], range(1, 100)), ([2, 2, 4], (4, 8, 12)), ([1, 2, 3, 3], (9,))],
)
def test_solutions_are_what_the_verifier_takes(numbers, targets):
  for target in targets:
    count = countdown.num_solutions(numbers, target)
    assert count == _counted(numbers, target)


def test_the_most_solutions_of_all_problems():
  most = {
    size: max(
      max(countdown._solutions(numbers).values())
      for numbers in itertools.combinations_with_replacement(range(1, 10), size)
    )
    for size in countdown.MOST_SOLUTIONS
  }
  assert most == countdown.MOST_SOLUTIONS


def test_problems_are_drawn_by_how_many_solutions_they_have():
  drawn = {}
  for low, high in ((1, 46), (1, 1), (5, 46)):
    task = countdown.make(min_solutions=low, max_solutions=high)
    rng = np.random.default_rng(0)
    drawn[low, high] = [
      task.example(rng, "test" if i % 2 else "train") for i in range(30)
    ]
    for example in drawn[low, high]:
      extras = example.extras
      count = int(extras["num_solutions"])
      assert low <= count <= high
      numbers, target = extras["numbers"].tolist(), int(extras["target"])
      assert count == countdown.num_solutions(numbers, target)
  # Whoever asks for nothing gets all kinds.
  counts = {int(x.extras["num_solutions"]) for x in drawn[1, 46]}
  assert len(counts) > 4


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"min_solutions": 13}, r"min_solutions is 13; .* \[1, 12\]"),
    ({"min_solutions": 3, "max_solutions": 2}, r"is 2; .* \[3, 46\]"),
    (
      {"min_solutions": 9, "max_solutions": 11},
      r"3 numbers has 9 to 11 solutions in the split 'test' or 'train'; widen",
    ),
  ],
)
def test_counts_that_no_problem_has_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    countdown.make(**options)


def test_numbers_that_no_problem_has_are_refused():
  for numbers in ([10, 2], [0, 1], [3], [1] * 5):
    with pytest.raises(ValueError, match=r"2 to 4, each from 1 to 9"):
      countdown.num_solutions(numbers, 3)

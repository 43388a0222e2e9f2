"""The datasets of reasoning-gym score answers, in processes of their own."""

import dataclasses
import math

import pytest

from grpo_jax import gym as gym_lib
from grpo_jax.data import gym as gym_data
from grpo_jax.rewards import gym
from grpo_jax.rewards.workers import host


def record(index=0, **entry):
  return gym_data.GymSource(({"name": "gcd", **entry},), "train", 0)[index]


def score(completion, made=None, **changes):
  made = made or record()
  extras = {**made["extras"], **changes}
  prompt = changes.pop("prompt", made["prompt"])
  return gym.reasoning_gym([prompt], [completion], [0], [extras])[0]


@pytest.mark.slow
@pytest.mark.parametrize(
  "form",
  [
    "{}",
    " {}\n",
    "<think>1000?</think><answer>{}</answer>",
    r"So it is $\boxed{{{}}}$.",
  ],
)
def test_the_right_answer_scores_one_in_every_form(form):
  made = record()
  assert score(form.format(made["answer"]), made) == 1.0
  assert score(form.format("1000"), made) < 1.0


@pytest.mark.parametrize("text", ["<think>1", "<answer>", r"\boxed{1"])
def test_an_answer_that_cannot_be_read_scores_nothing(text):
  assert score(text) == 0.0


def test_another_problem_is_not_scored():
  made = record()
  with pytest.raises(ValueError, match="the same version of reasoning-gym"):
    score(made["answer"], made, seed=made["extras"]["seed"] + 1)
  with pytest.raises(KeyError, match="dataset"):
    gym.reasoning_gym(["a"], ["b"], [0], [{"answer": "b"}])


@pytest.mark.slow
def test_rows_are_scored_in_the_pool():
  rows = [record(i, level=1) for i in range(4)]
  answers = [row["answer"] if i % 2 else "wrong" for i, row in enumerate(rows)]
  scorer = host.HostScorer(
    {"reasoning_gym": "grpo_jax.rewards.gym:reasoning_gym"},
    {"reasoning_gym": 1.0},
    num_workers=1,
  )
  try:
    said = scorer.score(
      [row["prompt"] for row in rows],
      answers,
      list(range(4)),
      [{**row["extras"], "answer": row["answer"]} for row in rows],
    )
  finally:
    scorer.close()
  assert not said.failed.any(), said.errors
  found = said.components["reasoning_gym"]
  assert [math.isclose(x, 1.0) for x in found] == [False, True, False, True]


def test_only_exact_answers_count_where_a_config_says_so():
  made = record(name="spell_backward")
  nearly = made["answer"][:-1] + "?"
  rows = ([made["prompt"]] * 2, [made["answer"], nearly], [0, 0])
  extras = [made["extras"]] * 2
  partial = gym.reasoning_gym(*rows, extras)
  assert partial[0] == 1
  assert 0 < partial[1] < 1
  assert gym.reasoning_gym(*rows, extras, exact=True) == [1, 0]


def problem_of(name, seed=1):
  return gym_lib.problem(name, "{}", None, seed)


@pytest.mark.parametrize(
  "name", ["binary_matrix", "n_queens", "spiral_matrix", "string_insertion"]
)
def test_a_list_is_read_and_no_program_is_run(name, tmp_path):
  made = problem_of(name)
  right = made.entry["answer"]
  rows = right.split("\n") if name in ("binary_matrix", "n_queens") else [right]
  lists = {
    "binary_matrix": [row.split() for row in rows],
    "n_queens": [row.split() for row in rows],
    "spiral_matrix": right.split(),
    "string_insertion": [*right],
  }
  assert 0 < made.score(repr(lists[name])) < 1
  path = tmp_path / "made"
  for program in (
    f"open({str(path)!r}, 'w')",
    "entry['answer'].split()",
    "[row.split() for row in entry['answer'].split('\\n')]",
    "[*entry['answer']]",
  ):
    assert made.score(program) == 0, program
  assert not path.exists()


@pytest.mark.slow
def test_an_expression_is_not_a_program():
  made = problem_of("countdown")
  numbers, target = (made.entry["metadata"][x] for x in ("numbers", "target"))
  used = "+".join(map(str, numbers))
  for text in (
    f"len('{'a' * target}') + ({used})*False",
    *("().__class__", "(open)(9)", "open(9)", "x.real", "1..real", "S(1)"),
  ):
    assert made.score(text) == made.score(""), text


@pytest.mark.slow
def test_puzzles_are_solved_with_their_own_numbers_and_four_operators():
  for seed in range(3):
    made = problem_of("puzzle24", seed)
    assert made.score("6 + 6 + 6 + 6") < 0.1, made.entry["metadata"]
    assert made.score(made.entry["answer"] + ".") == 1
  entry = {**made.entry, "metadata": {"numbers": [1, 2, 7, 7]}}
  made = dataclasses.replace(made, entry=entry)
  assert made.score("7*7/2 + 1 - 1") < 0.1  # Other numbers.
  assert made.score("7*7/2*1") < 0.1  # 24.5
  made = problem_of("countdown")
  assert made.score(made.entry["answer"] + ". ") == 1
  for text in ("4!", "2**3", "7//2", "1.5", "1e2"):
    assert made.score(text) == made.score(""), text


@pytest.mark.slow
@pytest.mark.parametrize(
  "name",
  [
    *("complex_arithmetic", "countdown", "intermediate_integration"),
    *("polynomial_multiplication", "puzzle24", "simple_integration"),
  ],
)
def test_own_expressions_are_read_and_nan_is_none(name):
  for seed in range(3):
    made = problem_of(name, seed)
    assert made.score(str(made.entry["answer"])) == 1, made.entry["answer"]
    for text in ("nan", "nan + 1", "print(1)", "a b c", "there is no answer"):
      assert made.score(text) < 0.1, text
  assert made.score("1" * 50_000 + " nan") < 0.1  # In no time.

"""Reward functions that can never work are found before anything compiles."""

import contextlib
import textwrap

import pytest

from grpo_jax.settings import config as config_lib
from grpo_jax.training import loop
from grpo_jax.training.problem import probe
from grpo_jax.training.problem import problem as problem_lib
from tests.cli import errors_test

REWARDS = """
  from grpo_jax.rewards import registry

  def scalar(prompts, completions, ids, extras):
    return 1.0

  def too_few(words):
    return [1.0 for _ in words]

  def typo(prompts, completions, ids, extras):
    return [float(len(completion)) for _ in completions]

  def never_a_number(prompts, completions, ids, extras):
    return [float("nan")]

  def infinite(completions, **kwargs):
    return [float("inf") for _ in completions]

  def slow(completions, **kwargs):
    import time
    time.sleep(100)

  def picky(prompts, completions, ids, extras):
    (extra,), (completion,) = extras, completions
    if extra["answer"] != "88":  # Of the first record.
      raise ValueError("some records are bad")
    assert completion.startswith("<think>") and "<answer>88" in completion
    return [None]

  @registry.of_group
  def deviation(prompts, completions, ids, extras):
    assert len(completions) == 4, len(completions)
    return [0.0 for _ in completions]

  def generous(completions, **kwargs):
    return [1.0 for _ in completions]

  @registry.of_group
  def of_one(prompts, completions, ids, extras):
    return [0.0]
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
  (tmp_path / "probed_rewards.py").write_text(textwrap.dedent(REWARDS))
  monkeypatch.syspath_prepend(tmp_path)

  def make(*names):
    return errors_test.text(
      rewards__functions=tuple(f"probed_rewards:{name}" for name in names),
      rewards__weights=(1.0,) * len(names),
    )

  return make


@pytest.mark.parametrize(
  ("name", "message"),
  [
    (
      "scalar",
      r"scalar \(.*probed_rewards\.py:4\): no score.*"
      r"  scalar: TypeError: returned 1\.0 \(float\); needs a list",
    ),
    (
      "too_few",
      r"too_few \(.*probed_rewards\.py:7\) has the arguments \(words\):"
      r" too many positional arguments\. Needed is",
    ),
    (
      "typo",
      r"NameError: name 'completion' .*\(probed_rewards\.py:11: `return \[",
    ),
    ("never_a_number", r"never_a_number: returned NaN \(probed_rewards"),
    ("infinite", r"infinite: returned inf \(probed_rewards\.py:16\)"),
  ],
)
def test_a_broken_verifier_is_named_with_its_line(
  tmp_path, config, name, message
):
  run = tmp_path / "run"
  with pytest.raises(ValueError, match=f"(?s){message}"):
    loop.train(config(name), run)
  assert not run.exists()


def check(config, group_size=1):
  problem = problem_lib.make_problem(config_lib.resolve(config))
  with contextlib.closing(problem):
    probe.check(problem, group_size)


def test_one_good_record_is_enough_and_is_completed_by_its_teacher(
  config, caplog
):
  """And rewards that never apply are told."""
  check(config("picky"))
  said, of_held_out = (record.getMessage() for record in caplog.records)
  assert "4 held-out records" in of_held_out
  assert "picky: none applied to any of the first 4 training records" in said


def test_a_verifier_that_is_content_with_nothing_is_told(config, caplog):
  check(config("generous"))
  (said,) = (record.getMessage() for record in caplog.records)
  assert "generous marks empty completions of the first 4" in said


@pytest.mark.slow
def test_a_slow_function_is_named_with_its_setting(config):
  settings = config("slow")
  settings.rewards.row_timeout_s = 0.3
  with pytest.raises(ValueError, match=r"rewards\.row_timeout_s") as e:
    check(settings)
  assert "slow (" in str(e.value)
  assert "probed_rewards.py:19): no score" in str(e.value)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["math_accuracy", "think_answer_format"])
def test_the_functions_of_the_package_pass(function):
  check(errors_test.text(rewards__functions=(function,)))


def test_functions_of_groups_are_asked_about_groups(config):
  check(config("picky", "deviation"), group_size=4)
  with pytest.raises(ValueError, match="deviation: AssertionError: 2"):
    check(config("picky", "deviation"), group_size=2)
  with pytest.raises(ValueError, match="returned 1 results for 4 rows"):
    check(config("picky", "of_one"), group_size=4)

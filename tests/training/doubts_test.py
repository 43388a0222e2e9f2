"""What a finished run is doubted for."""

import pytest

from grpo_jax.training import doubts


def _lines(number, **rewards):
  """Steps in which each reward has this (share, mean, range)."""
  return [
    {
      key: value
      for name, said in rewards.items()
      for key, value in zip(
        (f"applicable/{name}", f"reward/{name}", f"reward_range/{name}"),
        said if isinstance(said, tuple) else said[step],
        strict=True,
      )
    }
    for step in range(number)
  ]


def test_a_reward_that_never_applied_is_named():
  lines = _lines(3, a=(0.0, None, None), b=(1.0, 0.5, 1.0))
  (found,) = doubts.of_rewards(lines)
  assert found.startswith("The reward 'a' applied to no completion in 3 steps")


def test_a_reward_that_was_always_the_same_is_named_with_its_value():
  (found,) = doubts.of_rewards(_lines(4, a=(1.0, 0.5, 0.0)))
  assert found.startswith("The reward 'a' was 0.5 for every completion in 4")


@pytest.mark.parametrize(
  "said",
  [
    (1.0, 0.5, 1.0),  # Equal means of different rows, as those of ranks.
    [(1.0, 0.0, 0.0), (1.0, 1.0, 0.0), (1.0, 1.0, 0.0)],  # Of different steps.
    [(0.0, None, None), (0.5, 1.0, 0.0), (0.5, 0.0, 0.0)],
  ],
)
def test_a_reward_that_varies_is_not_doubted(said):
  assert doubts.of_rewards(_lines(3, a=said)) == []


def test_steps_of_reasoning_that_nobody_had_are_named():
  lines = [{"reasoning_steps/per_completion": 0.0}] * 4
  (found,) = doubts.of_rewards(lines)
  assert found.startswith("No completion had a step of reasoning")
  lines[2] = {"reasoning_steps/per_completion": 0.1}
  assert doubts.of_rewards(lines) == []


def test_a_short_run_and_a_phase_without_completions_say_nothing():
  assert doubts.of_rewards(_lines(2, a=(1.0, 0.5, 0.0))) == []
  assert doubts.of_rewards([{"loss": 1.0}] * 9) == []

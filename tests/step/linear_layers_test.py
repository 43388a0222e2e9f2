"""GRPO on a transformer with the gated delta rule."""

import functools

import numpy as np
import pytest

from tests.training import tiny


@functools.cache
def _program():
  """The parts of a phase, and its compiled step."""
  policy = tiny.tiny_transformer(width=16, num_layers=2, **tiny.LINEAR)
  phase = tiny.make_phase(policy=policy, micro_batch_size=4, learning_rate=0.02)
  return phase, tiny.fused(phase)


@pytest.mark.slow
def test_the_first_update_is_on_policy_in_every_bit():
  """The sampler reads states token by token, the update reads chunks."""
  phase, advance = _program()
  state = tiny.drawn_state(phase, spread=0.3)
  _, metrics, _ = advance(state, tiny.make_prompts())
  assert metrics["ratio/mean"] == metrics["ratio/max"] == 1.0
  assert metrics["ratio/max_deviation"] == 0.0
  assert metrics["sampler_gap/max"] < 1e-4


@pytest.mark.slow
def test_the_reward_rises():
  phase, advance = _program()
  state, rewards = tiny.make_state(phase), []
  for number in range(40):
    prompts = tiny.make_prompts(first=4 * number)
    state, metrics, _ = advance(state, prompts)
    rewards.append(float(metrics["reward/mean"]))
  assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.3

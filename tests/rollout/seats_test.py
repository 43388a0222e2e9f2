"""Episodes of several policies: who writes, and what is trained."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
import pytest
import scipy.special

from grpo_jax.rollout import sampling, seats
from tests.models import drawn
from tests.rollout import sampling_test, toy
from tests.training import tiny

# Prompts with the extra "short" begin, and the two take turns.
ENVIRONMENT = dataclasses.replace(
  toy.ENVIRONMENT, seat=lambda state: (state["turn"] + state["limit"]) % 2
)
GROUP = 2


def policy_of(seed, **sizes):
  policy = tiny.tiny_transformer(**sizes)
  # Far from what they are at first, or they would repeat the last token.
  return policy, drawn.params(policy, seed, spread=1.0, of_vectors=1.0)


def make_prompts(num_prompts=8):
  prompts = tiny.make_prompts(num_prompts)
  short = np.arange(num_prompts) // 2 % 2
  return dataclasses.replace(prompts, extras={"short": short})


def config(**fields):
  return sampling.SamplerConfig(
    max_new_tokens=14, end_ids=(tiny.END,), pad_id=tiny.PAD, **fields
  )


@functools.cache
def played():
  """A greedy rollout of two models, of two sizes, and their parameters.

  The first opponent is the other model, the second one the policy itself.
  """
  ours, params = policy_of(0)
  other, others = policy_of(1, width=16)
  opponents = seats.Opponents((other,), (1, 0))
  everyone = params, others
  rollout = jax.jit(
    functools.partial(
      sampling.sample,
      ours,
      config=config(temperature=0.0),
      group_size=GROUP,
      environment=ENVIRONMENT,
      opponents=opponents,
    )
  )(everyone, make_prompts(), jax.random.key(7))
  return jax.device_get(rollout), (ours, other), everyone


@pytest.mark.slow
def test_each_token_is_the_choice_of_the_model_whose_turn_it_is():
  """A pass over the whole row of each model makes the same choices."""
  rollout, policies, everyone = played()
  prompts = make_prompts()
  choices = np.stack(
    [
      np.argmax(
        sampling_test.logits_of(policy, params, prompts, rollout), axis=-1
      )
      for policy, params in zip(policies, everyone, strict=True)
    ]
  )  # [models, B, T]
  who = np.asarray(rollout.policy_id)
  written = np.asarray(rollout.completion_mask) & (who >= 0)
  # The two do not agree, or the test would say nothing.
  assert (choices[0] != choices[1])[written].mean() > 0.3
  model = np.array([0, 1, 0])[np.maximum(who, 0)]
  wanted = np.take_along_axis(choices, model[None], axis=0)[0]
  np.testing.assert_array_equal(
    np.asarray(rollout.tokens)[written], wanted[written]
  )
  assert set(np.unique(who[written])) == {0, 1, 2}


@pytest.mark.slow
def test_who_sits_where_follows_from_prompt_and_seat():
  rollout, *_ = played()
  who, turn = np.asarray(rollout.policy_id), np.asarray(rollout.turn)
  prompts = make_prompts()
  for row in range(len(who)):
    prompt = int(rollout.prompt_index[row])
    exists = np.asarray(rollout.completion_mask[row])
    begins = not prompts.extras["short"][prompt]
    opponent = 1 + int(prompts.ids[prompt]) % 2
    assert set(who[row, exists]) == {0, opponent, -1}
    assert (who[row, ~exists] == -1).all()
    wrote = [set(who[row, exists & (turn[row] == t)]) - {-1} for t in (0, 1)]
    assert wrote == ([{opponent}, {0}] if begins else [{0}, {opponent}])


@pytest.mark.slow
def test_only_what_the_policy_wrote_is_trained():
  rollout, *_ = played()
  written, who = np.asarray(rollout.written), np.asarray(rollout.policy_id)
  np.testing.assert_array_equal(written, who == 0)
  logp = np.asarray(rollout.sampler_logp)
  assert (logp[~written] == 0).all()
  assert (logp[written] < 0).all()


@pytest.mark.slow
def test_what_the_policy_is_said_to_have_written_has_its_log_probs():
  rollout, policies, everyone = played()
  logits = sampling_test.logits_of(
    policies[0], everyone[0], make_prompts(), rollout
  )
  logp = scipy.special.log_softmax(logits, axis=-1)
  logp = np.take_along_axis(logp, rollout.tokens[..., None], axis=-1)[..., 0]
  own = np.asarray(rollout.written)
  np.testing.assert_allclose(rollout.sampler_logp[own], logp[own], atol=1e-4)


@pytest.mark.slow
def test_the_policy_itself_as_its_opponent_draws_what_it_draws_alone():
  """Draws the same with its own parameters once more, or with all seats."""
  policy, params = policy_of(0)
  sample = functools.partial(
    sampling.sample,
    policy,
    config=config(),
    group_size=GROUP,
    environment=ENVIRONMENT,
  )
  inputs = make_prompts(), jax.random.key(7)
  alone = jax.jit(sample)(params, *inputs)
  twice = jax.jit(
    functools.partial(sample, opponents=seats.Opponents((policy,), (1,)))
  )((params, params), *inputs)
  jax.tree.map(np.testing.assert_array_equal, alone, twice)


def test_rewards_go_to_the_own_token_before():
  own = np.array([[0, 1, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0]], bool)
  rewards = np.array([[1, 2, 3, 4, 5, 6], [1, 1, 1, 1, 1, 1]], np.float32)
  np.testing.assert_array_equal(
    jax.jit(seats.credited)(rewards, own),
    [[0, 9, 0, 0, 11, 0], [0, 0, 0, 0, 0, 0]],
  )

"""Episodes of several turns in the one program, with and without a critic."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.step import dynamic_sampling, step
from grpo_jax.types import Sampler, Scored
from tests.rollout import toy
from tests.training import tiny

pytestmark = pytest.mark.slow

slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def score(prompts, rollout):
  """Scores with the rewards of the environment."""
  del prompts
  paid = rollout.scores["return"]
  return Scored(
    rewards=paid,
    valid=jnp.ones(paid.shape, bool),
    correct=paid > 1,
    components={"return": paid},
    weights={"return": jnp.float32(1.0)},
  )


def make_phase(name, **options):
  """Parts of `tiny` with an environment."""
  phase = tiny.make_phase(
    name, **{"score": score, "max_new_tokens": 14, **options}
  )
  play = functools.partial(phase.sampler.sample, environment=toy.ENVIRONMENT)
  return dataclasses.replace(phase, sampler=Sampler(play))


def make_prompts(num_prompts=4, first=0):
  """Prompts of `tiny` that say how long an episode is."""
  prompts = tiny.make_prompts(num_prompts, first=first)
  short = jnp.arange(num_prompts) % 2
  return dataclasses.replace(prompts, extras={"short": short})


@pytest.mark.parametrize(
  "name", ["grpo", slow("ppo"), slow("sao"), slow("gagpo"), slow("gigpo")]
)
def test_one_program_on_policy_in_every_bit(name):
  for metrics in steps_of_one_program(name, make_phase, make_prompts):
    assert metrics["tokens/generated"] < 16 * 9


def steps_of_one_program(name, make_phase, make_prompts):
  """Metrics of three steps, compiled once, with a ratio of exactly 1."""
  policy = tiny.tiny_transformer(width=16)
  phase = make_phase(name, policy=policy, micro_batch_size=2)
  traced, history = [], []

  def fused(state, prompts):
    traced.append(1)
    return step.fused_step(state, prompts, phase=phase)

  advance = jax.jit(fused, donate_argnums=0)
  state = tiny.make_state(phase)
  for i in range(3):
    state, metrics, _ = advance(state, make_prompts(first=4 * i))
    if name != "sao":
      assert metrics["ratio/max_deviation"] == 0.0
    # The decode loop and the update read the same tokens.
    assert metrics["sampler_gap/max"] < 1e-4
    assert metrics["tokens/trained"] == metrics["tokens/generated"]
    history.append(metrics)
  assert len(traced) == 1
  assert advance._cache_size() == 1
  return history


def test_what_is_read_is_not_trained():
  phase = make_phase("grpo")
  state = tiny.make_state(phase)
  sample = jax.jit(functools.partial(step.sample_stage, phase=phase))
  rollout = sample(state, make_prompts())
  assert rollout.observed.any()
  learn = jax.jit(functools.partial(step.learn_stage, phase=phase))
  scored = score(None, rollout)
  rng = np.random.default_rng(0)
  scored = dataclasses.replace(
    scored, rewards=jnp.asarray(rng.normal(size=16), jnp.float32)
  )
  groups = dynamic_sampling.Groups(make_prompts(), rollout, scored)
  after, _, _ = learn(state, groups)
  noise = {
    name: jnp.where(rollout.observed, jnp.nan, getattr(rollout, name))
    for name in ("behavior_logp", "sampler_logp", "entropy")
  }
  noisy = dataclasses.replace(rollout, **noise)
  dirty, _, _ = learn(state, dataclasses.replace(groups, rollout=noisy))
  jax.tree.map(np.testing.assert_array_equal, after.params, dirty.params)
  # As a row of its own, an observation has no gradient at all.
  nothing = dataclasses.replace(rollout, observed=rollout.completion_mask)
  still, _, _ = learn(state, dataclasses.replace(groups, rollout=nothing))
  jax.tree.map(np.testing.assert_array_equal, still.params, state.params)


@pytest.mark.parametrize("name", ["grpo", "ppo", "gagpo"])
def test_it_learns_to_be_short(name):
  """Actions of one token pay: the policy learns to write token 3 at once."""
  grouped = name in ("grpo", "gagpo", "gigpo")
  phase = make_phase(
    name,
    learning_rate=0.03,
    steps=150,
    micro_batch_size=32,
    group_size=4 if grouped else 1,
  )
  state = tiny.make_state(phase)
  advance = tiny.fused(phase, donate_argnums=0)
  paid = []
  num_prompts = 8 if grouped else 32
  for i in range(150):
    state, metrics, _ = advance(
      state, make_prompts(num_prompts, num_prompts * i)
    )
    paid.append(float(metrics["reward/mean"]))
  # At best 3 and 2 by turns; at first one action in seven is short.
  assert np.mean(paid[:5]) < 1.0
  assert np.mean(paid[-5:]) > 2.2

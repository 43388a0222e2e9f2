"""Rollouts of several contexts in the one program."""

import dataclasses
import functools
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms import objective
from grpo_jax.data import pipeline
from grpo_jax.ops import returns
from grpo_jax.rollout import compaction
from grpo_jax.step import models, step
from grpo_jax.training.evaluation import rows
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Compaction, Sampler, set_fields
from tests.rollout import toy
from tests.training import tiny, turns_test

pytestmark = pytest.mark.slow

EVERY_TURN = Compaction(
  every=1,
  context_len=24,
  reserve=0,
  open_id=4,
  close_id=2,
  max_summary_len=2,
  keep_turns=1,
  max_compactions=2,
  head_len=1,
)


def make_phase(name, **options):
  """Parts of `tiny` whose rollouts are up to three contexts."""
  phase = turns_test.make_phase(name, **options)
  keywords = phase.sampler.sample.keywords
  play = models.by_policy(
    functools.partial(
      compaction.sample,
      phase.policy,
      environment=toy.ENVIRONMENT,
      compaction=EVERY_TURN,
    ),
    config=keywords["config"],
    group_size=keywords["group_size"],
  )
  plan = dataclasses.replace(phase.plan, group_size=1)
  return dataclasses.replace(phase, sampler=Sampler(play), plan=plan)


def make_prompts(num_prompts=4, first=0):
  """Prompts of eight slots: contexts begin with more than the first prompts."""
  prompts = turns_test.make_prompts(num_prompts, first)
  padding = ((0, 0), (5, 0))
  return dataclasses.replace(
    prompts,
    tokens=jnp.pad(prompts.tokens, padding),
    mask=jnp.pad(prompts.mask, padding),
  )


def _batch(name, **options):
  """A prepared batch of a drawn rollout, with noisy values."""
  phase = make_phase(name, **options)
  state = tiny.make_state(phase)
  sample = jax.jit(functools.partial(step.sample_stage, phase=phase))
  rollout = sample(state, make_prompts())
  scored = turns_test.score(None, rollout)
  rewards = np.random.default_rng(0).normal(size=16).astype(np.float32)
  scored = dataclasses.replace(
    scored, rewards=jnp.asarray(rewards)[rollout.traces.id]
  )
  batch = objective.make_train_batch(
    phase.algorithm,
    phase.config,
    make_prompts(),
    rollout,
    scored,
    state.algorithm_state,
  )
  return phase, state, rollout, batch, rewards


@pytest.mark.parametrize("name", ["ppo", "grpo", "compaction_rl"])
def test_one_program_on_policy_in_every_bit(name):
  for metrics in turns_test.steps_of_one_program(
    name, make_phase, make_prompts
  ):
    assert 1 < metrics["contexts/mean"] <= 3
    assert metrics["unscored"] == 0


def test_the_coefficient_of_the_kl_adapts_by_rollouts():
  fields = {"kl_coef": 0.1, "kl_target": 1.0, "kl_horizon": 100.0}
  phase = make_phase("ppo", fields=fields)
  state = tiny.make_state(phase)
  state, metrics, _ = tiny.fused(phase)(state, make_prompts())
  assert metrics["kl/reference"] == 0.0  # The least error: -0.2.
  np.testing.assert_allclose(
    state.algorithm_state["coefficients"]["kl"],
    0.1 * (1 - 0.2 * 16 / 100),
    rtol=1e-6,
  )


def test_rollouts_are_compared_and_not_their_contexts():
  phase, _, rollout, batch, rewards = _batch("grpo")
  prepared = objective.prepare(phase.algorithm, phase.config, batch)
  exists = np.asarray(rollout.completion_mask.any(1))
  assert 16 < exists.sum() < 48  # Unequal counts, as prompts have turns.
  assert not prepared.mask[~exists].any()
  groups = rewards.reshape(4, 4)
  expected = groups - groups.mean(1, keepdims=True)
  expected /= groups.std(1, ddof=1, keepdims=True) + 1e-6
  np.testing.assert_allclose(
    np.asarray(prepared.advantages), np.repeat(expected.ravel(), 3), 1e-4, 1e-5
  )


def test_a_greedy_rollout_is_one_row_for_each_prompt():
  """Its last context, which has the scores of the whole episode."""
  phase = make_phase("remax")
  play = phase.sampler.sample
  config = dataclasses.replace(play.keywords["config"], temperature=0.0)
  greedy = functools.partial(play, config=config, group_size=1)
  phase = dataclasses.replace(phase, sampler=Sampler(play, greedy))
  prompts = make_prompts()
  state = tiny.make_state(phase)
  rows = step.sample_stage(state, prompts, phase=phase).prompt_index
  found = step.greedy_stage(state, prompts, phase=phase)
  assert found.traces is None
  np.testing.assert_array_equal(found.prompt_index, np.arange(4))
  # An index into them, as the baseline is taken.
  np.testing.assert_array_equal(found.prompt_index[rows], rows)


def test_samples_leave_out_contexts_that_do_not_exist():
  phase, prompts = make_phase("grpo"), jax.device_get(make_prompts())
  _, _, step_rows = tiny.fused(phase)(tiny.make_state(phase), prompts)
  problem = types.SimpleNamespace(
    prompt_texts=lambda records: records,
    texts=lambda tokens, mask: list(map(str, tokens)),
    tokenizer=types.SimpleNamespace(exact_text=str),
    environment=toy.ENVIRONMENT,
  )
  mesh = sharding.make_mesh(1, devices=jax.devices()[:1])
  batch = pipeline.PromptBatch(prompts, 4 * ["a prompt"])
  samples = rows.samples(problem, mesh, batch, step_rows, 48)
  exists = step_rows.batch.completion_mask.any(axis=1)
  assert 16 < len(samples) == exists.sum() < 48


@pytest.mark.parametrize("boundary", returns.BOUNDARIES)
def test_boundaries_reach_the_advantages(boundary):
  fields = {
    "boundary": boundary,
    "gamma": 0.9,
    "lam": 0.8,
    "lam_critic": 0.7,
    "whiten": False,
    "kl_coef": 0.0,
  }
  phase, _, _, batch, rewards = _batch("ppo", fields=fields)
  values = np.random.default_rng(1).normal(size=batch.mask.shape)
  batch = set_fields(batch, {"critic.values": jnp.asarray(values, jnp.float32)})
  prepared = objective.prepare(phase.algorithm, phase.config, batch)
  arguments = (
    jnp.zeros(batch.mask.shape),
    jnp.repeat(jnp.asarray(rewards), 3),
    batch.critic.values,
    batch.mask,
    batch.traces.id,
    batch.traces.order,
    0.9,
  )
  expected, _ = returns.subtrace_advantages(*arguments, 0.8, boundary)
  _, targets = returns.subtrace_advantages(*arguments, 0.7, boundary)
  np.testing.assert_allclose(prepared.advantages, expected, 1e-5, 1e-6)
  np.testing.assert_allclose(prepared.returns, targets, 1e-5, 1e-6)
  assert np.asarray(expected).any()


def test_lambda_counts_the_tokens_of_a_rollout():
  fields = {"length_adaptive_alpha": 0.2, "whiten": False, "kl_coef": 0.0}
  phase, _, rollout, batch, rewards = _batch("ppo", fields=fields)
  batch = set_fields(batch, {"critic.values": jnp.zeros(batch.mask.shape)})
  prepared = objective.prepare(phase.algorithm, phase.config, batch)
  written = np.asarray(rollout.written)
  for row in np.flatnonzero(written.any(1)):
    rollouts = np.asarray(rollout.traces.id) == rollout.traces.id[row]
    lam = max(1 - 1 / (0.2 * written[rollouts].sum()), 0)
    count = written[row].sum()
    expected = rewards[row // 3] * lam ** np.arange(count)[::-1]
    np.testing.assert_allclose(
      np.asarray(prepared.advantages)[row][written[row]], expected, 1e-4, 1e-6
    )


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_the_loss_is_a_sum_over_the_tokens_of_all_rows(name):
  """However rows are packed, and whatever empty ones there are."""
  phase, state, _, batch, _ = _batch(name, micro_batch_size=48)
  key = jax.random.key(0)
  prepared = step.prepare(state, batch, key, phase=phase)

  whole, metrics = tiny.gradient(phase, state, prepared)
  # A long row weighs as much as it has tokens.
  weight = objective.term_weights(phase.algorithm, phase.config, prepared)
  if name == "ppo":
    assert weight["policy"] == prepared.mask.sum()
  for size, lengths in ((16, ()), (4, (4, 8)), (1, ())):
    plan = dataclasses.replace(
      phase.plan, micro_batch_size=size, lengths=lengths
    )
    packed = dataclasses.replace(phase, plan=plan)
    found, other = tiny.gradient(packed, state, prepared)
    chex.assert_trees_all_close(found, whole, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(other["loss"], metrics["loss"], 1e-4, 1e-6)


def test_the_objective_of_one_context_is_ppo():
  """Without traces nothing of a boundary is left."""
  arrays = {"gamma": 0.9, "lam": 0.8, "whiten": False, "kl_coef": 0.0}
  found = []
  for boundary in returns.BOUNDARIES:
    phase = tiny.make_phase("ppo", fields={**arrays, "boundary": boundary})
    batch = tiny.ragged_batch(phase)
    batch = set_fields(batch, {"critic.values": batch.sampler.logp})
    prepared = objective.prepare(phase.algorithm, phase.config, batch)
    found.append((prepared.advantages, prepared.returns))
  for other in found[1:]:
    jax.tree.map(np.testing.assert_array_equal, other, found[0])
  assert "compaction_rl" in algorithms.ALGORITHMS

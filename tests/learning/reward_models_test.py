"""Scores of steps, and how well a reward model agrees with the truth."""

import dataclasses
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.algorithms import objective
from grpo_jax.algorithms.bradley_terry import BRADLEY_TERRY
from grpo_jax.algorithms.process_reward import PROCESS_REWARD
from grpo_jax.learning import reward_models
from grpo_jax.types import Scored
from tests.training import tiny


def sigmoid(x):
  return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


# --- steps -------------------------------------------------------------------


def test_a_step_ends_where_a_written_token_ends_it():
  steps = reward_models.Steps(np.arange(5) == 3, "min")
  rollout = types.SimpleNamespace(
    # Ids from 5 on are those of a model with more of them than the tokenizer.
    tokens=jnp.asarray([[3, 1, 3], [2, 3, 7]]),
    written=jnp.asarray([[True, True, False], [True, True, True]]),
  )
  np.testing.assert_array_equal(
    steps.found(rollout), [[True, False, False], [False, True, False]]
  )


@pytest.mark.parametrize(
  ("of_steps", "expected"),
  [("min", [0.5, 0.25, 0.0]), ("product", [0.4, 0.25, 0.0]),
   ("sum", [1.3, 0.25, 0.0])],
)  # fmt: skip
def test_scores_of_steps_become_one(of_steps, expected):
  """Of completions with two steps, one step and none, which has nothing."""
  steps = reward_models.Steps(np.ones(1, bool), of_steps)
  right = jnp.asarray([[0.8, 0.9, 0.5], [0.25, 0.9, 0.9], [0.7, 0.7, 0.7]])
  ends = jnp.asarray([[1, 0, 1], [1, 0, 0], [0, 0, 0]], bool)
  np.testing.assert_allclose(steps.score(right, ends), expected, atol=1e-6)


def step_batch():
  """Steps that end at some tokens, with labels between 0 and 1."""
  parts = tiny.make_parts()
  batch = tiny.ragged_batch(parts)
  rng = np.random.default_rng(0)
  ends = rng.random(batch.mask.shape) < 0.5
  labels = rng.random(batch.mask.shape).astype(np.float32)
  batch = dataclasses.replace(
    batch, step_mask=jnp.asarray(ends), step_rewards=jnp.asarray(labels)
  )
  values = rng.normal(size=batch.mask.shape).astype(np.float32)
  return batch, values, ends & np.asarray(batch.mask), labels


def test_the_loss_of_steps_is_their_cross_entropy():
  batch, values, ends, labels = step_batch()
  config = PROCESS_REWARD.config_class()
  trained = PROCESS_REWARD.prepare(config, batch)
  np.testing.assert_array_equal(trained.mask, ends)

  def loss(values):
    term = objective.critic_loss(PROCESS_REWARD, config, values, trained)
    return term.total / objective.critic_weight(PROCESS_REWARD, trained)

  expected, slope, right = 0.0, np.zeros_like(values), 0
  places = list(zip(*np.nonzero(ends), strict=True))
  for place in places:
    p, label = sigmoid(values[place]), labels[place]
    expected -= label * np.log(p) + (1 - label) * np.log(1 - p)
    slope[place] = (p - label) / len(places)
    right += (p > 0.5) == (label >= 0.5)
  np.testing.assert_allclose(loss(values), expected / len(places), rtol=1e-5)
  np.testing.assert_allclose(jax.grad(loss)(values), slope, atol=1e-6)
  found = PROCESS_REWARD.critic_metrics(config, jnp.asarray(values), trained)
  assert float(found["accuracy"].total) == right
  assert float(found["accuracy"].weight) == len(places)


# --- pairs -------------------------------------------------------------------


def test_pairs_are_counted_where_there_is_one():
  """Two prompts with a pair, of which one is ranked right, and one without."""
  config = BRADLEY_TERRY.config_class()
  batch = tiny.ragged_batch(tiny.make_parts())
  exists = jnp.ones_like(batch.mask).at[:, 2:].set(False)
  rewards = np.zeros(16, np.float32)
  rewards[[1, 6]] = 1.0
  batch = dataclasses.replace(
    batch,
    mask=exists,
    completion_mask=exists,
    valid=jnp.ones(16, bool),
    rewards=jnp.asarray(rewards),
  )
  trained = BRADLEY_TERRY.prepare(config, batch)
  values = np.full(batch.mask.shape, 9.0, np.float32)
  values[:, 1] = 0.0  # What is said after the last token; the others are not.
  values[1, 1], values[6, 1] = 2.0, -1.0
  found = BRADLEY_TERRY.critic_metrics(config, jnp.asarray(values), trained)
  assert [float(x) for x in found["accuracy"]] == [1.0, 2.0]
  assert [float(x) for x in found["margin"]] == [1.0, 2.0]
  gaps = found["calibration_error"]
  expected = np.zeros(10)
  expected[8], expected[7] = sigmoid(2) - 1, sigmoid(1) - 0
  np.testing.assert_allclose(gaps.total, expected, atol=1e-6)


# --- drift -------------------------------------------------------------------


def scored_rows(seed=0):
  """Three prompts with four completions, rows in any order, some unscored."""
  rng = np.random.default_rng(seed)
  order = rng.permutation(12)
  group = np.repeat(np.arange(3), 4)[order]
  proxy = rng.normal(size=12).astype(np.float32)
  proxy[[2, 3]] = 0.5
  truth = rng.integers(0, 3, 12).astype(np.float32)
  truth[5] = np.nan
  valid = np.ones(12, bool)
  valid[7] = False
  rollout = types.SimpleNamespace(group_id=jnp.asarray(group), num_groups=3)
  components = {"model": jnp.asarray(proxy), "truth": jnp.asarray(truth)}
  scored = Scored(
    jnp.zeros(12), jnp.asarray(valid), jnp.asarray(valid), components, {}
  )
  return rollout, scored, group, proxy, truth, valid & ~np.isnan(truth)


def test_agreement_with_the_truth_is_over_pairs_of_a_prompt():
  rollout, scored, group, proxy, truth, known = scored_rows()
  right, said = [], []
  for i, j in itertools.permutations(np.flatnonzero(known), 2):
    if group[i] == group[j] and truth[i] > truth[j]:
      d = proxy[i] - proxy[j]
      right.append(0.5 if d == 0 else float(d > 0))
      said.append(sigmoid(abs(d)))
  found = reward_models.proxy_metrics(rollout, scored, "model", "truth", True)
  np.testing.assert_allclose(
    found["reward_model/accuracy"], np.mean(right), atol=1e-6
  )
  related = np.corrcoef(proxy[known], truth[known])[0, 1]
  np.testing.assert_allclose(
    found["reward_model/correlation"], related, atol=1e-5
  )
  gaps = np.zeros(10)
  for p, r in zip(said, right, strict=True):
    gaps[min(int(p * 10), 9)] += p - r
  error = np.abs(gaps).sum()
  np.testing.assert_allclose(
    found["reward_model/calibration_error"], error / len(said), atol=1e-5
  )


def test_where_all_are_as_right_nothing_is_said():
  rollout, scored, *_ = scored_rows()
  same = {**scored.components, "truth": jnp.ones(12)}
  scored = dataclasses.replace(scored, components=same)
  found = reward_models.proxy_metrics(rollout, scored, "model", "truth", False)
  assert "reward_model/calibration_error" not in found
  assert all(np.isnan(x) for x in found.values())

"""Scores of steps, and how well a reward model agrees with the truth."""

import dataclasses
import functools
import itertools
import types

import jax
import numpy as np
import pytest

from grpo_jax.algorithms import objective
from grpo_jax.algorithms.bradley_terry import BRADLEY_TERRY
from grpo_jax.algorithms.process_reward import PROCESS_REWARD
from grpo_jax.step import reward_models
from grpo_jax.types import Scored, set_fields
from tests.training import tiny


# Each operation outside a program would be a program of its own.
@functools.partial(jax.jit, static_argnums=2)
def _proxy_metrics(group_id, scored, is_logit):
  rollout = types.SimpleNamespace(group_id=group_id, num_groups=3)
  return reward_models.proxy_metrics(
    rollout, scored, "model", "truth", is_logit
  )


@functools.partial(jax.jit, static_argnums=0)
def _metrics(algorithm, values, batch):
  """The metrics of a critic's values, and the batch with what they read."""
  config = algorithm.config_class()
  trained = algorithm.prepare(config, batch)
  return algorithm.critic_metrics(config, values, trained), trained


def sigmoid(x):
  return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


# --- steps -------------------------------------------------------------------


def test_a_step_ends_where_a_written_token_ends_it():
  steps = reward_models.Steps(np.arange(5) == 3, "min")
  rollout = types.SimpleNamespace(
    # Ids from 5 on are those of a model with more of them than the tokenizer.
    tokens=np.array([[3, 1, 3], [2, 3, 7]]),
    written=np.array([[True, True, False], [True, True, True]]),
  )
  np.testing.assert_array_equal(
    jax.jit(lambda: steps.ends_of(rollout))(),
    [[True, False, False], [False, True, False]],
  )


@pytest.mark.parametrize(
  ("of_steps", "expected"),
  [("min", [0.5, 0.25, 0.0]), ("product", [0.4, 0.25, 0.0]),
   ("sum", [1.3, 0.25, 0.0])],
)  # fmt: skip
def test_scores_of_steps_become_one(of_steps, expected):
  """Scores completions with two steps, with one, and with none (no score)."""
  steps = reward_models.Steps(np.ones(1, bool), of_steps)
  right = np.float32([[0.8, 0.9, 0.5], [0.25, 0.9, 0.9], [0.7, 0.7, 0.7]])
  ends = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 0]], bool)
  score = jax.jit(steps.score)
  np.testing.assert_allclose(score(right, ends), expected, atol=1e-6)


def step_batch():
  """Steps that end at some tokens, with labels between 0 and 1."""
  phase = tiny.make_phase()
  batch = tiny.ragged_batch(phase)
  rng = np.random.default_rng(0)
  ends = rng.random(batch.mask.shape) < 0.5
  labels = rng.random(batch.mask.shape).astype(np.float32)
  batch = set_fields(
    batch, {"scores.step_mask": ends, "scores.step_rewards": labels}
  )
  values = rng.normal(size=batch.mask.shape).astype(np.float32)
  return batch, values, ends & np.asarray(batch.mask), labels


def test_the_loss_of_steps_is_their_cross_entropy():
  batch, values, ends, labels = step_batch()
  config = PROCESS_REWARD.config_class()
  found, trained = _metrics(PROCESS_REWARD, values, batch)
  np.testing.assert_array_equal(trained.mask, ends)

  @jax.jit
  @jax.value_and_grad
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
  value, gradient = loss(values)
  np.testing.assert_allclose(value, expected / len(places), rtol=1e-5)
  np.testing.assert_allclose(gradient, slope, atol=1e-6)
  assert float(found["accuracy"].total) == right
  assert float(found["accuracy"].weight) == len(places)


# --- pairs -------------------------------------------------------------------


def test_pairs_are_counted_where_there_is_one():
  """Two prompts with a pair, of which one is ranked right, and one without."""
  batch = tiny.ragged_batch(tiny.make_phase())
  exists = np.ones(batch.mask.shape, bool)
  exists[:, 2:] = False
  rewards = np.zeros(16, np.float32)
  rewards[[1, 6]] = 1.0
  batch = dataclasses.replace(
    batch,
    mask=exists,
    completion_mask=exists,
    valid=np.ones(16, bool),
    rewards=rewards,
  )
  values = np.full(batch.mask.shape, 9.0, np.float32)
  values[:, 1] = 0.0  # What is said after the last token; the others are not.
  values[1, 1], values[6, 1] = 2.0, -1.0
  found, _ = _metrics(BRADLEY_TERRY, values, batch)
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
  components = {"model": proxy, "truth": truth}
  scored = Scored(np.zeros(12, np.float32), valid, valid, components, {})
  return scored, group, proxy, truth, valid & ~np.isnan(truth)


def test_agreement_with_the_truth_is_over_pairs_of_a_prompt():
  scored, group, proxy, truth, known = scored_rows()
  right, said = [], []
  for i, j in itertools.permutations(np.flatnonzero(known), 2):
    if group[i] == group[j] and truth[i] > truth[j]:
      d = proxy[i] - proxy[j]
      right.append(0.5 if d == 0 else float(d > 0))
      said.append(sigmoid(abs(d)))
  found = _proxy_metrics(group, scored, True)
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
  scored, group, *_ = scored_rows()
  same = {**scored.components, "truth": np.ones(12, np.float32)}
  scored = dataclasses.replace(scored, components=same)
  found = _proxy_metrics(group, scored, False)
  assert "reward_model/calibration_error" not in found
  assert all(np.isnan(x) for x in found.values())

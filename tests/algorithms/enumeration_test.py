"""Estimators against the exact policy gradient, by enumeration.

A tabular policy over 3 symbols and at most 3 tokens has few completions: all
groups of two can be written down with their probabilities, so the expected
gradient of an estimator is a finite sum, not a sample.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms import objective
from grpo_jax.types import PolicyOutputs, Prompts, Rollout, Scored
from tests.references import enumeration

V, T, END = 3, 3, 2


def _expected_gradient(name, logits, rewards, **fields):
  """E over all pairs of completions of −∇ loss, as [rows, V]."""
  algorithm = algorithms.get_algorithm(name)
  config = algorithms.make_config(name, kl_coef=0.0, **fields)
  outcomes = enumeration.enumerate_completions(logits, T, END)
  n = len(outcomes)
  tokens = np.zeros((n, T), np.int32)
  mask = np.zeros((n, T), bool)
  rows = np.zeros((n, T), np.int32)
  for i, outcome in enumerate(outcomes):
    length = int(np.sum(outcome.mask))
    tokens[i, :length] = np.asarray(outcome.tokens)[:length]
    mask[i, :length] = True
    for t in range(length):
      rows[i, t] = enumeration.prefix_index(tokens[i, :t].tolist(), V)
  first, second = (x.ravel() for x in np.meshgrid(range(n), range(n)))
  pairs = np.stack([first, second], 1)  # [n², 2]
  prob = np.array([outcome.prob for outcome in outcomes])
  weight = prob[first] * prob[second]

  def loss(logits, pair):
    log_probs = jax.nn.log_softmax(logits)
    logp = log_probs[rows[pair], tokens[pair]]  # [2, T]
    rollout = Rollout(
      tokens=tokens[pair],
      completion_mask=mask[pair],
      behavior_logp=jax.lax.stop_gradient(logp),
      sampler_logp=jax.lax.stop_gradient(logp),
      entropy=jnp.zeros_like(logp),
      terminated=jnp.ones(2, bool),
      prompt_index=jnp.zeros(2, jnp.int32),
      group_id=jnp.zeros(2, jnp.int32),
      num_groups=1,
    )
    score = rewards[pair]
    scored = Scored(score, jnp.ones(2, bool), score > 0, {})
    prompts = Prompts(
      jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool), jnp.zeros(1), {}
    )
    batch = objective.make_train_batch(
      algorithm, config, prompts, rollout, scored, algorithm.init(config)[1]
    )
    weights = objective.term_weights(algorithm, config, batch)
    output = objective.loss(algorithm, config, PolicyOutputs(logp=logp), batch)
    return output.terms["policy"][1].total / weights["policy"]

  tokens, mask, rows = jnp.array(tokens), jnp.array(mask), jnp.array(rows)
  rewards = jnp.asarray(rewards)
  gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(
    jnp.asarray(logits), jnp.asarray(pairs)
  )  # [n², rows, V]
  return -np.einsum("p,psv->sv", weight, np.asarray(gradients))


@pytest.fixture(scope="module")
def problem():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(enumeration.num_prefixes(V, T), V))
  count = len(enumeration.enumerate_completions(logits, T, END))
  rewards = rng.normal(size=count)
  exact = enumeration.objective_gradient(logits, T, END, rewards)
  return logits, rewards, exact


def test_reinforce_is_unbiased(problem):
  logits, rewards, exact = problem
  with jax.enable_x64(True):
    for decay in (0.0, 0.9):
      estimate = _expected_gradient(
        "reinforce", logits, rewards, baseline_decay=decay
      )
      np.testing.assert_allclose(estimate, exact, atol=1e-10)


def test_dr_grpo_is_proportional_to_the_gradient(problem):
  """The own reward in the mean scales by (G − 1)/G, the budget by 1/T."""
  logits, rewards, exact = problem
  with jax.enable_x64(True):
    estimate = _expected_gradient("dr_grpo", logits, rewards)
  np.testing.assert_allclose(estimate, exact / 2 / T, atol=1e-10)


@pytest.mark.parametrize("name", ["grpo", "gspo", "dapo"])
def test_normalised_estimators_are_not(problem, name):
  """Division by std or by the length turns the direction."""
  logits, rewards, exact = problem
  with jax.enable_x64(True):
    estimate = _expected_gradient(name, logits, rewards)
  cosine = (
    np.sum(estimate * exact)
    / np.linalg.norm(estimate)
    / (np.linalg.norm(exact))
  )
  assert 0.3 < cosine < 0.999

"""Estimators against exact gradients, by enumeration.

A tabular policy over three symbols and at most three tokens has 15
completions: every group can be written down with its probability, so the
expected gradient of an estimator is a finite sum, not a sample. It is that of
the library's loss; what it is compared with is made by NumPy loops
(`tests/references/enumeration.py`) from the completions alone.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.estimators import enumeration
from grpo_jax import algorithms
from grpo_jax.ops import aggregation
from tests.references import common
from tests.references import enumeration as reference
from tests.training import tiny

V, T, END = 3, 3, 2
SIZES = (2, 3)
EXACT = {"rtol": 0, "atol": 1e-9}


@pytest.fixture(autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


def _random(seed):
  shape = (reference.num_prefixes(V, T), V)
  return np.random.default_rng(seed).normal(size=shape)


LOGITS, OLD, TEACHER = _random(0), _random(0) + 0.3 * _random(1), _random(2)
OUTCOMES = reference.enumerate_completions(LOGITS, T, END)
PROBS = np.array([outcome.prob for outcome in OUTCOMES])
LENGTHS = np.array([np.sum(outcome.mask) for outcome in OUTCOMES])
REWARDS = np.random.default_rng(3).normal(size=len(OUTCOMES))
PROBLEM = enumeration.Problem(LOGITS, REWARDS, ref_logits=TEACHER)


def gradient(rewards, logits=LOGITS):
  """∇ Σ_y π(y) R(y), from the reference."""
  return reference.objective_gradient(logits, T, END, rewards)


EXACT_J = gradient(REWARDS)


def algorithm_of(name, **changes):
  """An algorithm of the table, with some of its functions replaced."""
  return dataclasses.replace(algorithms.get_algorithm(name), **changes)


@functools.cache
def config_of(name, **fields):
  if name == "dapo":
    fields = {"overlong_cache": 0.0} | fields  # It changes the reward.
  return algorithms.make_config(name, **{"kl_coef": 0.0} | fields)


def moments(name, size=2, problem=PROBLEM, algorithm=None, **fields):
  return enumeration.moments(
    algorithm or algorithm_of(name), config_of(name, **fields), problem, size
  )


@functools.cache
def published(name, size=2):
  """Moments of an algorithm as it is, for the tests that share them."""
  return moments(name, size)


def cosine(a, b):
  return np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b)


def with_rewards(rewards, **changes):
  return dataclasses.replace(PROBLEM, rewards=rewards, **changes)


def raw(config, batch):
  """A = R."""
  del config
  return batch.rewards


# The enumeration itself.


def test_completions_are_those_of_the_reference():
  every = enumeration.completions(V, T)
  assert len(every.tokens) == len(OUTCOMES) == 15
  for i, outcome in enumerate(OUTCOMES):
    np.testing.assert_array_equal(every.tokens[i], outcome.tokens)
    np.testing.assert_array_equal(every.mask[i], outcome.mask)
    for t in np.flatnonzero(outcome.mask):
      row = reference.prefix_index(outcome.tokens[:t].tolist(), V)
      assert every.rows[i, t] == row
  np.testing.assert_allclose(enumeration.probabilities(LOGITS), PROBS)
  assert PROBS.sum() == pytest.approx(1)


def test_multisets_stand_for_all_groups():
  for size in (1, 2, 3):
    groups, orders = enumeration.multisets(15, size)
    assert orders.sum() == 15**size
    assert (orders * PROBS[groups].prod(axis=1)).sum() == pytest.approx(1)


@pytest.mark.slow
def test_the_order_of_a_group_is_irrelevant():
  algorithm, config = algorithm_of("otb"), config_of("otb")
  tables = enumeration.tables_of(algorithm, config, PROBLEM)
  groups = enumeration.multisets(15, 2)[0]
  there, back = (
    enumeration.gradients(algorithm, config, tables, jnp.asarray(x))
    for x in (groups, groups[:, ::-1])
  )
  np.testing.assert_allclose(there, back, rtol=0, atol=1e-12)


def test_targets_are_those_of_the_reference():
  np.testing.assert_allclose(
    enumeration.reward_gradient(LOGITS, REWARDS), EXACT_J, **EXACT
  )
  for size in SIZES:
    np.testing.assert_allclose(
      enumeration.best_of_gradient(LOGITS, REWARDS, size),
      _best_of_gradient(REWARDS, size),
      **EXACT,
    )
  np.testing.assert_allclose(
    enumeration.teacher_gradient(LOGITS, TEACHER),
    -_kl_gradient("reverse", LOGITS),
    **EXACT,
  )


@pytest.mark.slow
def test_variance_is_that_of_the_sum_over_pairs():
  """REINFORCE: half the variance of R ∇ log π, as two rows are averaged."""
  each = np.stack([gradient(x) for x in np.eye(15)])  # π(y) ∇ log π(y)
  single = REWARDS[:, None, None] * each / PROBS[:, None, None]
  second = np.einsum("i,isv,isv->", PROBS, single, single)
  wanted = (second - np.sum(EXACT_J**2)) / 2
  found = moments("reinforce", baseline_decay=0.0)
  assert found.variance == pytest.approx(wanted, rel=1e-9)


# Unbiased, exactly or up to a constant.


@pytest.mark.parametrize("size", tiny.each(SIZES, (2,)))
@pytest.mark.parametrize(
  ("name", "factor"),
  [
    ("reinforce", lambda size: 1.0),
    ("rloo", lambda size: 1.0),
    ("remax", lambda size: 1.0),
    # The own reward in the mean; the budget.
    ("dr_grpo", lambda size: (size - 1) / size / T),
  ],
)
def test_follows_the_gradient(name, factor, size):
  np.testing.assert_allclose(
    published(name, size).mean, factor(size) * EXACT_J, **EXACT
  )


def test_a_constant_baseline_changes_the_noise_only():
  problem = dataclasses.replace(PROBLEM, baseline=3.7)
  found = moments("reinforce", problem=problem, baseline_decay=0.9)
  np.testing.assert_allclose(found.mean, EXACT_J, **EXACT)
  assert found.variance > 2 * published("reinforce").variance


@pytest.mark.slow
def test_ppo_is_unbiased_before_whitening_for_lambda_one_or_exact_values():
  plain = algorithm_of("ppo", aggregate=aggregation.over_sequence_sums)

  def mean(lam, problem):
    fields = {"algorithm": plain, "lam": lam, "whiten": False}
    return moments("ppo", problem=problem, **fields).mean

  wrong = np.random.default_rng(4).normal(size=len(LOGITS))
  guessed = dataclasses.replace(PROBLEM, values=wrong)
  for lam, problem in ((1.0, PROBLEM), (0.0, PROBLEM), (1.0, guessed)):
    np.testing.assert_allclose(mean(lam, problem), EXACT_J, **EXACT)
  assert cosine(mean(0.0, guessed), EXACT_J) < 0.9
  assert cosine(published("ppo").mean, EXACT_J) < 0.999


def _best_of_gradient(rewards, size):
  """∇ E[max of the rewards], from the probabilities of all tuples."""
  each = [gradient(x) for x in np.eye(len(rewards))]  # ∇π(y)
  total = 0.0
  for group in np.ndindex(*(len(rewards),) * size):
    best = max(rewards[i] for i in group)
    for k in range(size):
      rest = np.prod([PROBS[i] for i in group[:k] + group[k + 1 :]])
      total = total + best * rest * each[group[k]]
  return total


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_passk_summed_over_tokens_follows_the_best_of_the_group(size):
  summed = algorithm_of("passk", aggregate=aggregation.over_sequence_sums)
  found = moments("passk", size, algorithm=summed).mean
  wanted = _best_of_gradient(REWARDS, size)
  np.testing.assert_allclose(found, wanted / size, **EXACT)
  # Published with the token mean, whose length depends on what was sampled.
  assert cosine(published("passk", size).mean, wanted) < 1 - 1e-4


# Biased, by how much.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "dapo", "tic_grpo", "gtpo", "otb"])
def test_is_not_proportional_to_the_gradient(name):
  assert 0.3 < cosine(published(name).mean, EXACT_J) < 0.999


@pytest.mark.slow
def test_division_by_the_length_follows_another_objective():
  """E[R/|y|] − J E[1/|y|], with J held fixed; (G − 1)/G as for Dr. GRPO."""
  mean = PROBS @ REWARDS
  wanted = gradient(REWARDS / LENGTHS) - mean * gradient(1 / LENGTHS)
  for size in SIZES:
    np.testing.assert_allclose(
      published("deepseek_v32", size).mean, (size - 1) / size * wanted, **EXACT
    )
  assert cosine(wanted, EXACT_J) < 0.999


@pytest.mark.slow
def test_division_by_the_deviation_is_a_factor_for_right_or_wrong():
  """With rewards 0 and 1 the deviation depends on p only, at one prompt."""
  right = (REWARDS > 0.3).astype(float)
  exact = gradient(right)
  # A pair that differs has deviation 1/√2.
  found = moments("tic_grpo", problem=with_rewards(right))
  np.testing.assert_allclose(found.mean, exact / np.sqrt(2), rtol=0, atol=1e-5)
  found = moments("tic_grpo", 3, with_rewards(right)).mean
  assert cosine(found, exact) == pytest.approx(1, abs=1e-9)


def test_the_length_weighted_baseline_contains_the_own_sample():
  """G = 2: A_1 = n_2 (R_1 − R_2) / (n_1 + n_2)."""
  wanted = 0.0
  for j, (n, reward) in enumerate(zip(LENGTHS, REWARDS, strict=True)):
    share = n / (LENGTHS + n)
    wanted = wanted + PROBS[j] * gradient(share * (REWARDS - reward))
  found = published("opo").mean
  np.testing.assert_allclose(found, wanted, **EXACT)
  assert cosine(found, EXACT_J) < 0.9999


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opo", "otb"])
def test_the_bias_of_a_group_baseline_falls_with_the_group(name):
  algorithm = algorithm_of(name, aggregate=aggregation.over_sequence_sums)
  small, large = (
    cosine(moments(name, size, algorithm=algorithm).mean, EXACT_J)
    for size in (2, 4)
  )
  assert small < large < 1 - 1e-6


def test_with_equal_lengths_opo_is_dr_grpo():
  logits = LOGITS.copy()
  logits[:4, END] = -60.0  # Nobody ends before the budget.
  problem = dataclasses.replace(PROBLEM, logits=logits)
  np.testing.assert_allclose(
    moments("opo", problem=problem).mean, gradient(REWARDS, logits) / 2, **EXACT
  )


# Distillation and KL: gradients at prefixes that are held fixed.


def _kl_gradient(kind, sampler):
  """∇ E Σ_t KL of the two distributions at the sampled prefixes."""
  p, q = (np.exp(common.log_softmax(x)) for x in (LOGITS, TEACHER))
  gap = np.log(p) - np.log(q)
  total = np.zeros_like(LOGITS)
  for outcome in reference.enumerate_completions(sampler, T, END):
    for t in np.flatnonzero(outcome.mask):
      s = reference.prefix_index(outcome.tokens[:t].tolist(), V)
      total[s] += outcome.prob * (
        p[s] * (gap[s] - p[s] @ gap[s]) if kind == "reverse" else p[s] - q[s]
      )
  return total


@pytest.mark.slow
def test_distillation_from_tokens_and_from_distributions():
  summed = {
    name: algorithm_of(name, aggregate=aggregation.over_sequence_sums)
    for name in ("opd_token", "opd_full")
  }
  token, full = (
    moments(name, algorithm=algorithm) for name, algorithm in summed.items()
  )
  wanted = -_kl_gradient("reverse", LOGITS)
  np.testing.assert_allclose(token.mean, wanted, **EXACT)
  np.testing.assert_allclose(full.mean, wanted, **EXACT)
  assert token.variance > full.variance
  # The published token mean: N depends on the token that is judged.
  gap = published("opd_token").mean - published("opd_full").mean
  assert np.abs(gap).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "old_logits", "wanted"),
  [
    ("k1", None, None),
    ("k2", None, "reverse"),
    ("k1_plus", None, "reverse"),
    ("k3", None, "forward"),
    ("k3_unbiased", None, "reverse"),
    ("k3_unbiased", OLD, "reverse"),
    ("full", OLD, "reverse"),
  ],
)
def test_gradient_of_kl_estimates(kind, old_logits, wanted):
  """The KL term alone, with the rewards 0; sampled by π_old or π_θ."""
  problem = with_rewards(np.zeros(15), old_logits=old_logits)
  found = moments("reinforce", 1, problem, kl_coef=1.0, kl_kind=kind).mean
  sampler = LOGITS if old_logits is None else old_logits
  exact = np.zeros_like(LOGITS)
  if wanted:
    exact = -_kl_gradient(wanted, sampler)
  np.testing.assert_allclose(found, exact, **EXACT)


@pytest.mark.slow
def test_plain_k3_is_biased_off_policy():
  problem = with_rewards(np.zeros(15), old_logits=OLD)
  found = moments("reinforce", 1, problem, kl_coef=1.0, kl_kind="k3").mean
  for kind in ("reverse", "forward"):
    assert np.abs(found + _kl_gradient(kind, OLD)).max() > 1e-2


# Off-policy, without clipping.

UNCLIPPED = {"clip_low": 1.0, "clip_high": 1e9}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "changes", "fields"),
  [
    ("rloo", {}, UNCLIPPED),
    ("tic_grpo", {"advantages": raw}, {"clip_high": 1e9}),
  ],
)
def test_the_ratio_of_trajectories_corrects(name, changes, fields):
  problem = dataclasses.replace(PROBLEM, old_logits=OLD)
  found = moments(
    name, problem=problem, algorithm=algorithm_of(name, **changes), **fields
  )
  np.testing.assert_allclose(found.mean, EXACT_J, **EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dr_grpo", "luspo"])
def test_the_ratios_of_tokens_and_of_mean_tokens_do_not(name):
  """Also with A = R and summed tokens, which are unbiased on-policy."""
  algorithm = algorithm_of(
    name, advantages=raw, aggregate=aggregation.over_sequence_sums
  )
  fields = UNCLIPPED | {"advantage_scale": "none"}
  on, off = (
    moments(name, problem=problem, algorithm=algorithm, **fields).mean
    for problem in (PROBLEM, dataclasses.replace(PROBLEM, old_logits=OLD))
  )
  np.testing.assert_allclose(on, EXACT_J, **EXACT)
  assert cosine(off, EXACT_J) < 0.999

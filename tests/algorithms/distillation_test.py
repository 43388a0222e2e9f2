"""A teacher's word in the objective: added to advantages, and by domain."""

import functools
import math

import jax
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms import options
from grpo_jax.algorithms.contract import cases
from grpo_jax.ops import distillation
from tests.references import grpo

WEIGHTS = 2.0, 0.0  # Of the two domains; rows have them in turn.
ANY = {
  "opd_coef": 0.5,
  "opd_clamp": 0.4,
  "opd_early": 0.7,
  "opd_domain_weights": WEIGHTS,
}


def evaluate(name, case, **fields):
  config = algorithms.make_config(name, **{"kl_coef": 0.0, **fields})
  with jax.enable_x64(True):
    return cases.evaluate(algorithms.get_algorithm(name), config, case)


@functools.cache
def case_of_tokens():
  case = cases.make_case(dtype=np.float64)
  return case, case.mask & case.valid[:, None]


def gaps(case, mask, logp, clamp, gamma):
  """A teacher's word on each token, in loops."""
  found = np.zeros(mask.shape)
  for i, row in enumerate(mask):
    gap = [
      min(max(case.ref_logp[i, t] - logp[i, t], -clamp), clamp)
      for t in np.flatnonzero(row)
    ]
    total = sum(map(abs, gap))
    for n, t in enumerate(np.flatnonzero(row)):
      share = sum(map(abs, gap[:n])) / total
      found[i, t] = gap[n] * (1 + gamma * (1 - share))
  return found


def clipped_losses(case, mask, advantages):
  """−min(r A, clip(r) A) of each token, and its slope in log π."""
  loss, slope = np.zeros((2, *mask.shape))
  for i, t in zip(*np.nonzero(mask), strict=True):
    ratio = math.exp(case.logp[i, t] - case.old_logp[i, t])
    bounded = min(max(ratio, 0.8), 1.2)
    a = advantages[i, t]
    loss[i, t] = -min(ratio * a, bounded * a)
    slope[i, t] = -ratio * a if ratio * a <= bounded * a else 0.0
  return loss, slope


@pytest.mark.slow
def test_a_teacher_adds_to_the_advantages_of_tokens():
  case, mask = case_of_tokens()
  outcome = evaluate("grpo", case, **ANY)
  task = grpo.advantages(case.rewards, case.valid, case.group_id)
  word = gaps(case, mask, case.old_logp, 0.4, 0.7)
  factor = 0.5 * np.array(WEIGHTS)[case.domain]
  want = np.where(mask, task[:, None] + factor[:, None] * word, 0.0)
  np.testing.assert_allclose(outcome.advantages, want, 1e-9, 1e-12)
  # What is said of domain 1 has no weight; of rows there is the mean.
  loss, slope = clipped_losses(case, mask, want)
  count = np.maximum(mask.sum(axis=1), 1)
  rows = mask.any(axis=1).sum()
  np.testing.assert_allclose(outcome.loss, (loss.sum(1) / count).sum() / rows)
  np.testing.assert_allclose(
    outcome.gradient, slope / count[:, None] / rows, 1e-9, 1e-12
  )


@pytest.mark.slow
def test_the_policy_as_it_is_may_be_compared_with_the_teacher():
  case, mask = case_of_tokens()
  outcome = evaluate("opd_token", case, opd_anchor="current")
  loss, slope = clipped_losses(
    case, mask, gaps(case, mask, case.logp, 20.0, 0.0)
  )
  np.testing.assert_allclose(outcome.loss, loss.sum() / mask.sum())
  np.testing.assert_allclose(outcome.gradient, slope / mask.sum(), 1e-9, 1e-12)
  needed = options.needs(
    algorithms.get_algorithm("opd_token"),
    algorithms.make_config("opd_token", opd_anchor="current"),
  )
  assert "anchor" not in needed  # No pass of its own.


def test_a_teacher_of_weight_0_is_not_heard():
  case, mask = case_of_tokens()
  whole = evaluate("opd_full", case)
  half = evaluate("opd_full", case, opd_domain_weights=WEIGHTS)
  factor = np.array(WEIGHTS)[case.domain][:, None]
  np.testing.assert_allclose(half.gradient, factor * whole.gradient)
  assert (half.gradient[(case.domain == 0)[:, None] & mask] != 0).all()


def test_who_agrees_with_the_teacher_is_left_alone():
  mask = np.array([[True, True, False]])
  logp = np.array([[-1.0, -2.0, np.nan]])
  gap = distillation.token_gap(logp, logp, mask, 20.0)
  np.testing.assert_array_equal(gap, 0.0)
  np.testing.assert_array_equal(distillation.early_weights(gap, 0.5), 1.5)
  # A token that the teacher excludes costs no more than the clamp.
  never = np.array([[-np.inf, -2.0, 0.0]])
  gap = distillation.token_gap(never, logp, mask, 20.0)
  np.testing.assert_array_equal(gap, [[-20.0, 0.0, 0.0]])
  np.testing.assert_allclose(
    distillation.early_weights(gap, 0.5), [[1.5, 1.0, 1.0]]
  )


def check(name, **fields):
  config = algorithms.make_config(name, **fields)
  options.check(algorithms.get_algorithm(name), config)


def test_a_teacher_speaks_only_to_losses_that_listen():
  for name, fields, message in (
    ("gspo", {"opd_coef": 0.1}, "opd_coef=0.1 of algorithm 'gspo'.*tokens"),
    ("dpo", {"opd_coef": 0.1}, "opd_coef=0.1 of algorithm 'dpo'"),
    (
      "grpo",
      {"opd_domain_weights": (1.0, 0.0)},
      "opd_domain_weights=.* none is asked",
    ),
    ("opd_token", {"opd_coef": 0.0}, "would train nothing"),
    ("grpo", {"opd_domain_weights": (-1.0,)}, "is not ≥ 0"),
    ("grpo", {"opd_anchor": "end"}, "choose one of start, current"),
  ):
    with pytest.raises(ValueError, match=message):
      check(name, **fields)

"""Parts of the objective that all algorithms share, by hand.

`options_test.py` has the options' values and gradients.
"""

import functools

import jax
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms import objective
from grpo_jax.algorithms.contract import cases
from grpo_jax.types import PolicyOutputs

ALL_ROWS = np.arange(len(cases.LENGTHS))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compiled(algorithm, config, arrays):
  return cases.prepared(algorithm, config, cases.Case(**arrays))


def _prepared(name, case, **fields):
  """Algorithm, config and the batch of a case."""
  algorithm = algorithms.get_algorithm(name)
  config = algorithms.make_config(name, **{"kl_coef": 0.0, **fields})
  batch = jax.device_get(_compiled(algorithm, config, vars(case)))
  return algorithm, config, batch


@pytest.mark.slow
def test_as_many_live_groups_are_trained_as_are_asked_for():
  case = cases.make_case()
  case.rewards[:4] = 0.5  # Group 0 is dead, 1 and 2 are not.
  for most, groups in ((1, [1]), (2, [1, 2]), (0, [1, 2])):
    *_, batch = _prepared(
      "grpo", case, dynamic_sampling=True, max_live_groups=most
    )
    rows = np.isin(case.group_id, groups) & case.valid
    np.testing.assert_array_equal(batch.mask, case.mask & rows[:, None])


def test_every_reward_has_its_own_weight():
  case = cases.make_case()
  *_, batch = _prepared("mo_grpo", case)
  np.testing.assert_array_equal(batch.scores.components, case.components)
  np.testing.assert_array_equal(batch.scores.component_weights, cases.WEIGHTS)


def test_every_row_has_the_domain_of_its_prompt():
  case = cases.make_case()
  *_, batch = _prepared("grpo", case, kl_coef=0.1, kl_domain_weights=(0.5, 2.0))
  assert len(set(case.domain[case.group_id == 0])) > 1
  np.testing.assert_array_equal(batch.domain, case.domain)


def test_a_completion_weighs_what_its_trained_tokens_do():
  """The mean of its tokens' weights; slots without a token have none."""
  case = cases.make_case()
  algorithm, config, batch = _prepared(
    "gspo", case, importance_mode="truncate", importance_max=1.1
  )

  @jax.jit
  def loss_and_rows(outputs, batch):
    loss = objective.loss(algorithm, config, outputs, batch)
    return loss.terms["policy"], algorithm.policy_loss(config, outputs, batch)

  (_, (total, count)), losses = jax.device_get(
    loss_and_rows(PolicyOutputs(logp=case.logp, entropy=case.entropy), batch)
  )  # [], [], [B]
  weights = np.minimum(np.exp(case.old_logp - case.behavior_logp), 1.1)
  expected = [
    weights[i][batch.mask[i]].mean() * losses[i]
    for i in ALL_ROWS
    if batch.mask[i].any()
  ]
  np.testing.assert_allclose(total, sum(expected), 1e-5)
  assert count == len(expected)


@pytest.mark.slow
def test_estimates_of_a_kl_are_of_the_policy_that_drew_the_tokens():
  """Two thirds of the 30 tokens are the one of probability 2/3."""
  case = cases.make_case(dtype=np.float64)
  trained = case.mask & case.valid[:, None]
  first = np.zeros_like(trained)
  first[trained] = np.arange(30) < 20
  drew = np.where(first, 2 / 3, 1 / 3)
  for other in (0.6, 0.05):
    now = np.where(first, other, 1 - other)
    kl = 2 / 3 * np.log(2 / 3 / other) + 1 / 3 * np.log(1 / 3 / (1 - other))
    case.old_logp, case.logp, case.ref_logp = map(np.log, (drew, now, now))
    algorithm = algorithms.get_algorithm("grpo")
    config = algorithms.make_config("grpo")
    with jax.enable_x64(True):
      moved = cases.evaluate(algorithm, config, case).metrics
      case.logp = case.old_logp
      stayed = cases.evaluate(algorithm, config, case).metrics
    np.testing.assert_allclose(moved["kl/update"], kl, 1e-9)
    np.testing.assert_allclose(stayed["kl/reference"], kl, 1e-9)
    assert stayed["kl/update"] == 0


def test_completions_that_are_not_trained_are_not_short():
  """GFPO keeps the shortest; those that were cut off are long."""
  case = cases.make_case()
  *_, batch = _prepared("gfpo", case, num_kept=2, overlong_filter=True)
  assert not batch.mask[::2][:2].any()  # Six tokens, of six.
  np.testing.assert_array_equal(batch.advantages[:4] != 0, [0, 1, 0, 1])


def test_of_equally_good_completions_the_first_is_in_the_pair():
  case = cases.make_case()
  case.rewards[:4] = 0, 1, 1, 0
  *_, batch = _prepared("dpo", case)
  np.testing.assert_array_equal(batch.pair_role[:4], [-1, 1, 0, 0])

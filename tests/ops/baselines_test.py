"""Group advantages: by hand, in any order, and exactly 0 without signal."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import baselines

# Groups 3 and 1 of 5, not sorted; group 4 has one row, 0 and 2 have none.
REWARDS = np.array([1.0, 0.0, 4.0, 2.0, 9.0, 3.0], np.float32)
GROUPS = np.array([3, 1, 1, 3, 4, 3])
EVERYONE = np.ones(6, bool)
BOTH = (baselines.group_centered, baselines.group_standardized)


def _advantages(function, rewards, valid, groups, num_groups=5, **options):
  call = functools.partial(function, num_groups=num_groups, **options)
  return np.asarray(jax.jit(call)(rewards, valid, groups))


def test_advantages_by_hand():
  # Group 3: 1, 2, 3 with mean 2; group 1: 0, 4 with mean 2; a group of one: 0.
  np.testing.assert_allclose(
    _advantages(baselines.group_centered, REWARDS, EVERYONE, GROUPS),
    [-1, -2, 2, 0, 0, 1],
  )
  # Sample deviations: 1 in group 3; √((4 + 4) / 1) = 2.8284 in group 1.
  np.testing.assert_allclose(
    _advantages(baselines.group_standardized, REWARDS, EVERYONE, GROUPS),
    [-1, -(0.5**0.5), 0.5**0.5, 0, 0, 1],
    rtol=1e-5,
  )
  # Of the population: √(2/3) in group 3; 2 in group 1.
  np.testing.assert_allclose(
    _advantages(
      baselines.group_standardized, REWARDS, EVERYONE, GROUPS, ddof=0, eps=0.5
    )[1:3],
    [-2 / 2.5, 2 / 2.5],
    rtol=1e-6,
  )


def test_statistics_by_hand():
  valid = EVERYONE.copy()
  valid[3] = False
  statistics = baselines.group_statistics(REWARDS, valid, GROUPS, 5)
  np.testing.assert_array_equal(statistics.num_valid, [0, 2, 0, 2, 1])
  np.testing.assert_array_equal(statistics.mean, [0, 2, 0, 2, 9])
  np.testing.assert_array_equal(statistics.variance, [0, 8, 0, 2, 0])
  np.testing.assert_array_equal(statistics.least, [np.inf, 0, np.inf, 1, 9])
  np.testing.assert_array_equal(
    statistics.greatest, [-np.inf, 4, -np.inf, 3, 9]
  )
  np.testing.assert_array_equal(
    baselines.live_groups(REWARDS, valid, GROUPS, 5),
    [False, True, False, True, False],
  )


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize(
  ("reward", "size"), [(0.7, 12), (0.7, 16), (0.1, 7), (0.0, 4), (-3.3, 5)]
)
def test_equal_rewards_give_exactly_zero(function, reward, size):
  """Their float32 mean may be off by one unit in the last place."""
  rewards = np.full(size, reward, np.float32)
  groups = np.zeros(size, int)
  advantages = _advantages(function, rewards, np.ones(size, bool), groups, 1)
  np.testing.assert_array_equal(advantages, 0.0)


def test_equal_rewards_are_a_trap():
  """Without the rule above, (mean − reward) / 1e-6 would be visible."""
  size = 12
  statistics = baselines.group_statistics(
    np.full(size, 0.7, np.float32), np.ones(size, bool), np.zeros(size, int), 1
  )
  error = abs(np.float32(0.7) - statistics.mean[0])
  assert error / (np.sqrt(statistics.variance[0]) + 1e-6) > 0.01


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e9, -1e9])
def test_unscored_rows_enter_nothing(function, garbage):
  # Group 3 keeps 1 and 3, group 1 one row, and group 4 none.
  valid = np.array([True, True, False, False, False, True])
  dirty = np.where(valid, REWARDS, np.float32(garbage))
  advantages = _advantages(function, dirty, valid, GROUPS)
  clean = _advantages(function, REWARDS[valid], EVERYONE[:3], GROUPS[valid])
  np.testing.assert_array_equal(advantages[valid], clean)
  assert clean.any()
  np.testing.assert_array_equal(advantages[~valid], 0)
  np.testing.assert_array_equal(
    baselines.live_groups(dirty, valid, GROUPS, 5),
    [False, False, False, True, False],
  )
  nobody = np.zeros_like(valid)
  np.testing.assert_array_equal(
    _advantages(function, dirty, nobody, GROUPS), np.zeros(6)
  )


@pytest.mark.parametrize("function", BOTH)
def test_order_names_and_spare_groups_are_irrelevant(function):
  expected = _advantages(function, REWARDS, EVERYONE, GROUPS)
  order = np.array([4, 2, 0, 5, 1, 3])
  shuffled = _advantages(function, REWARDS[order], EVERYONE, GROUPS[order])
  np.testing.assert_allclose(shuffled, expected[order], rtol=1e-6)
  renamed = _advantages(function, REWARDS, EVERYONE, 99 - GROUPS, 100)
  np.testing.assert_allclose(renamed, expected, rtol=1e-6)


@pytest.mark.parametrize("function", BOTH)
def test_advantages_are_constants(function):
  slope = jax.grad(
    lambda rewards: (REWARDS * function(rewards, EVERYONE, GROUPS, 5)).sum()
  )(jnp.asarray(REWARDS))
  np.testing.assert_array_equal(slope, 0)

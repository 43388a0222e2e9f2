"""Ratios: by hand, at the clamp, and with garbage in masked slots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import ratios

MASK = jnp.array([[True, True, False], [True, False, False], [False] * 3])
OLD = jnp.full((3, 3), -1.0)
# Ratios 2 and 1/4 in row 0, 3 in row 1; row 2 is empty.
LOGP = OLD + jnp.log(jnp.array([[2, 0.25, 9], [3, 9, 9], [9, 9, 9]]))
EVERY = (
  ratios.token_ratio,
  ratios.sequence_ratio,
  ratios.sequence_token_ratio,
  ratios.trajectory_ratio,
)


def test_ratios_by_hand():
  np.testing.assert_allclose(
    ratios.token_ratio(LOGP, OLD, MASK),
    [[2, 0.25, 1], [3, 1, 1], [1, 1, 1]],
    rtol=1e-6,
  )
  # √(2 · 1/4) = 0.7071; one token: the ratio itself; no tokens: 1.
  np.testing.assert_allclose(
    ratios.sequence_ratio(LOGP, OLD, MASK), [0.5**0.5, 3, 1], rtol=1e-6
  )


def test_log_ratio_is_zero_where_masked():
  log_ratio = ratios.log_ratio(LOGP, OLD, MASK)
  assert not log_ratio[~MASK].any()
  np.testing.assert_allclose(log_ratio[1, 0], np.log(3), rtol=1e-6)


def test_sequence_ratio_averages_before_it_clamps():
  """Log-ratios (60, 0): the mean 30 is cut to 20, not 60 to 20 before it."""
  mask = jnp.ones((1, 2), bool)
  ratio = ratios.sequence_ratio(
    jnp.array([[60.0, 0.0]]), jnp.zeros((1, 2)), mask, clamp=20.0
  )
  # The other order would give (20 + 0) / 2 = 10.
  np.testing.assert_allclose(ratio, np.exp([20.0]), rtol=1e-6)
  np.testing.assert_allclose(
    ratios.sequence_ratio(
      jnp.array([[30.0, 0.0]]), jnp.zeros((1, 2)), mask, clamp=20.0
    ),
    np.exp([15.0]),
    rtol=1e-6,
  )


def test_sequence_ratio_gives_each_token_its_share_of_the_slope():
  gradient = jax.grad(lambda x: ratios.sequence_ratio(x, OLD, MASK).sum())(LOGP)
  # ∂s/∂ℓ_t = s / |y|.
  expected = [[0.5**0.5 / 2, 0.5**0.5 / 2, 0], [3, 0, 0], [0, 0, 0]]
  np.testing.assert_allclose(gradient, expected, rtol=1e-6)


@pytest.mark.parametrize(
  "function", [ratios.token_ratio, ratios.sequence_ratio]
)
def test_clamp_bounds_values_and_stops_slopes(function):
  mask = jnp.ones((1, 1), bool)
  old = jnp.zeros((1, 1))

  def ratio(x, clamp):
    return function(jnp.full((1, 1), x), old, mask, clamp).sum()

  slope = jax.grad(ratio)
  for x, expected in ((99.0, 20.0), (-99.0, -20.0)):
    np.testing.assert_allclose(ratio(x, 20.0), np.exp(expected), rtol=1e-5)
    assert slope(x, 20.0) == 0
  np.testing.assert_allclose(slope(19.0, 20.0), np.exp(19.0), rtol=1e-5)
  np.testing.assert_allclose(ratio(21.0, None), np.exp(21.0), rtol=1e-5)
  assert ratio(99.0, None) == np.inf  # float32 ends at exp(88.7).


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e9])
@pytest.mark.parametrize("function", EVERY)
def test_masked_garbage_and_the_anchor_get_no_gradient(function, garbage):
  def total(logp, old):
    return function(logp, old, MASK).sum()

  dirty = [jnp.where(MASK, x, garbage) for x in (LOGP, OLD)]
  value, (slope, old_slope) = jax.value_and_grad(total, (0, 1))(*dirty)
  assert value == total(LOGP, OLD)
  np.testing.assert_array_equal(slope, jax.grad(total)(LOGP, OLD))
  assert slope.any()
  assert not old_slope.any()


def test_sequence_token_ratio_has_the_value_of_the_row_and_own_slopes():
  def total(logp, weights):
    return (weights * ratios.sequence_token_ratio(logp, OLD, MASK)).sum()

  found = ratios.sequence_token_ratio(LOGP, OLD, MASK)
  row = ratios.sequence_ratio(LOGP, OLD, MASK)[:, None]
  np.testing.assert_array_equal(found, jnp.broadcast_to(row, (3, 3)))
  weights = jnp.arange(1.0, 10.0).reshape(3, 3)
  # ∂s_it/∂ℓ_it = s_i, and 0 for every other token: unlike 1/|y| of each.
  np.testing.assert_allclose(
    jax.grad(total)(LOGP, weights), weights * row * MASK, rtol=1e-6
  )


def test_trajectory_ratio_is_the_product():
  np.testing.assert_allclose(
    ratios.trajectory_ratio(LOGP, OLD, MASK), [2 * 0.25, 3, 1], rtol=1e-6
  )
  gradient = jax.grad(lambda x: ratios.trajectory_ratio(x, OLD, MASK).sum())(
    LOGP
  )
  np.testing.assert_allclose(
    gradient, [[0.5, 0.5, 0], [3, 0, 0], [0, 0, 0]], rtol=1e-6
  )
  # The sum is clamped, not its terms: 15 + 15 is cut to 20.
  np.testing.assert_allclose(
    ratios.trajectory_ratio(
      jnp.full((1, 2), 15.0), jnp.zeros((1, 2)), jnp.ones((1, 2), bool)
    ),
    np.exp([20.0]),
    rtol=1e-6,
  )


@pytest.mark.parametrize("function", EVERY)
def test_one_token_makes_all_levels_equal(function):
  mask = jnp.array([[False, True, False]])
  found = function(LOGP[:1], OLD[:1], mask)
  np.testing.assert_allclose(found.ravel()[found.size // 2], 0.25, rtol=1e-6)


@pytest.mark.parametrize("gap", [100.0, -100.0])
@pytest.mark.parametrize("function", EVERY)
def test_a_gap_of_100_nats_is_finite_with_slope_zero(function, gap):
  mask = jnp.ones((1, 3), bool)
  value, slope = jax.value_and_grad(
    lambda x: function(x, jnp.zeros((1, 3)), mask).sum()
  )(jnp.full((1, 3), gap))
  assert np.isfinite(value)
  np.testing.assert_array_equal(slope, 0.0)

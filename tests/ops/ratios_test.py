"""Ratios: by hand, at the clamp, and with garbage in masked slots."""

import functools

import jax
import numpy as np
import pytest

from grpo_jax.ops import ratios

MASK = np.array([[True, True, False], [True, False, False], [False] * 3])
OLD = np.full((3, 3), -1.0, np.float32)
# Ratios 2 and 1/4 in row 0, 3 in row 1; row 2 is empty.
LOGP = OLD + np.log(np.float32([[2, 0.25, 9], [3, 9, 9], [9, 9, 9]]))
ZEROS, EVERYWHERE = np.zeros_like(OLD), np.ones_like(MASK)
EVERY = (
  ratios.token_ratio,
  ratios.sequence_ratio,
  ratios.sequence_token_ratio,
  ratios.trajectory_ratio,
)


# One program for each function; what comes back is NumPy's.
@functools.partial(jax.jit, static_argnums=0)
def _compiled(function, logp, old, mask, weights):
  def total(logp, old):
    ratio = function(logp, old, mask)
    return (weights * ratio).sum(), ratio

  slopes, ratio = jax.grad(total, (0, 1), has_aux=True)(logp, old)
  return ratio, slopes


def ratio_and_slopes(function, logp=LOGP, old=OLD, mask=MASK, weights=1.0):
  """Ratios, and the slopes of their weighted sum in `logp` and `old`."""
  arrays = np.float32(logp), np.float32(old), mask, np.float32(weights)
  return jax.device_get(_compiled(function, *arrays))


def test_ratios_by_hand():
  np.testing.assert_allclose(
    ratio_and_slopes(ratios.token_ratio)[0],
    [[2, 0.25, 1], [3, 1, 1], [1, 1, 1]],
    rtol=1e-6,
  )
  # √(2 · 1/4) = 0.7071; one token: the ratio itself; no tokens: 1.
  np.testing.assert_allclose(
    ratio_and_slopes(ratios.sequence_ratio)[0], [0.5**0.5, 3, 1], rtol=1e-6
  )


def test_log_ratio_is_zero_where_masked():
  log_ratio, _ = ratio_and_slopes(ratios.log_ratio)
  assert not log_ratio[~MASK].any()
  np.testing.assert_allclose(log_ratio[1, 0], np.log(3), rtol=1e-6)


def test_sequence_ratio_averages_before_it_clamps():
  """Log-ratios (60, 0): the mean 30 is cut to 20, not 60 to 20 before it."""
  ratio, _ = ratio_and_slopes(
    ratios.sequence_ratio,
    [[60.0, 0.0, 9.0], [30.0, 0.0, 9.0], [9.0] * 3],
    ZEROS,
    np.array([[True, True, False], [True, True, False], [False] * 3]),
  )
  # The other order would give (20 + 0) / 2 = 10.
  np.testing.assert_allclose(ratio[:2], np.exp([20.0, 15.0]), rtol=1e-6)


def test_sequence_ratio_gives_each_token_its_share_of_the_slope():
  _, slopes = ratio_and_slopes(ratios.sequence_ratio)
  # ∂s/∂ℓ_t = s / |y|.
  expected = [[0.5**0.5 / 2, 0.5**0.5 / 2, 0], [3, 0, 0], [0, 0, 0]]
  np.testing.assert_allclose(slopes[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
  "function", [ratios.token_ratio, ratios.sequence_ratio]
)
def test_clamp_bounds_values_and_stops_slopes(function):
  def of_one_token(function, *log_ratios):
    logp, mask = ZEROS.copy(), np.zeros_like(MASK)
    logp[:, 0], mask[:, 0] = log_ratios, True
    ratio, slopes = ratio_and_slopes(function, logp, ZEROS, mask)
    return ratio.reshape(3, -1)[:, 0], slopes[0][:, 0]

  ratio, slope = of_one_token(function, 99.0, -99.0, 19.0)
  np.testing.assert_allclose(ratio, np.exp([20.0, -20.0, 19.0]), rtol=1e-5)
  np.testing.assert_allclose(slope, [0, 0, np.exp(19.0)], rtol=1e-5)
  free = functools.partial(function, clamp=None)
  ratio, _ = of_one_token(free, 21.0, 99.0, 0.0)
  np.testing.assert_allclose(ratio[0], np.exp(21.0), rtol=1e-5)
  assert ratio[1] == np.inf  # float32 ends at exp(88.7).


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e9])
@pytest.mark.parametrize("function", EVERY)
def test_masked_garbage_and_the_anchor_get_no_gradient(function, garbage):
  dirty = [np.where(MASK, x, garbage) for x in (LOGP, OLD)]
  ratio, (slope, old_slope) = ratio_and_slopes(function, *dirty)
  clean, (clean_slope, _) = ratio_and_slopes(function)
  np.testing.assert_array_equal(ratio, clean)
  np.testing.assert_array_equal(slope, clean_slope)
  assert slope.any()
  assert not old_slope.any()


def test_sequence_token_ratio_has_the_value_of_the_row_and_own_slopes():
  weights = np.arange(1.0, 10.0).reshape(3, 3)
  found, slopes = ratio_and_slopes(ratios.sequence_token_ratio, weights=weights)
  row = ratio_and_slopes(ratios.sequence_ratio)[0][:, None]
  np.testing.assert_array_equal(found, np.broadcast_to(row, (3, 3)))
  # ∂s_it/∂ℓ_it = s_i, and 0 for every other token: unlike 1/|y| of each.
  np.testing.assert_allclose(slopes[0], weights * row * MASK, rtol=1e-6)


def test_trajectory_ratio_is_the_product():
  ratio, slopes = ratio_and_slopes(ratios.trajectory_ratio)
  np.testing.assert_allclose(ratio, [2 * 0.25, 3, 1], rtol=1e-6)
  np.testing.assert_allclose(
    slopes[0], [[0.5, 0.5, 0], [3, 0, 0], [0, 0, 0]], rtol=1e-6
  )
  # The sum is clamped, not its terms: 15 + 15 is cut to 20.
  ratio, _ = ratio_and_slopes(ratios.trajectory_ratio, ZEROS + 15, ZEROS)
  np.testing.assert_allclose(ratio[0], np.exp(20.0), rtol=1e-6)


@pytest.mark.parametrize("function", EVERY)
def test_one_token_makes_all_levels_equal(function):
  mask = np.array([[False, True, False]] * 3)
  found = ratio_and_slopes(function, mask=mask)[0][0]
  np.testing.assert_allclose(found.ravel()[found.size // 2], 0.25, rtol=1e-6)


@pytest.mark.parametrize("gap", [100.0, -100.0])
@pytest.mark.parametrize("function", EVERY)
def test_a_gap_of_100_nats_is_finite_with_slope_zero(function, gap):
  ratio, slopes = ratio_and_slopes(function, ZEROS + gap, ZEROS, EVERYWHERE)
  assert np.isfinite(ratio).all()
  np.testing.assert_array_equal(slopes[0], 0.0)

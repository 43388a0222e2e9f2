"""Clipping by regions, and its slope where the regions meet."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import surrogates
from tests.ops import slopes

LOW, HIGH = 0.2, 0.28
CLIPPED = functools.partial(surrogates.clipped, clip_low=LOW, clip_high=HIGH)
DUAL = functools.partial(CLIPPED, dual_clip=3.0)


def values_and_slopes(surrogate, *arrays):
  """A surrogate, and the slopes of its sum in each of the arrays."""
  return slopes.values_and_slopes(surrogate, *map(np.float32, arrays))


@pytest.mark.parametrize(
  ("ratio", "advantage", "value", "slope"),
  [
    # Inside [0.8, 1.28]: r A with slope A.
    (1.0, 2.0, 2.0, 2.0),
    (1.1, -2.0, -2.2, -2.0),
    # A > 0: cut above 1.28, alive however far below.
    (1.5, 2.0, 2.56, 0.0),
    (0.5, 2.0, 1.0, 2.0),
    # A < 0: cut below 0.8, alive however far above.
    (0.5, -2.0, -1.6, 0.0),
    (1.5, -2.0, -3.0, -2.0),
    (9.0, -2.0, -18.0, -2.0),
    (1.5, 0.0, 0.0, 0.0),
  ],
)
def test_regions_of_the_clip(ratio, advantage, value, slope):
  found, slopes = values_and_slopes(CLIPPED, [ratio], [advantage])
  np.testing.assert_allclose(found, [value], rtol=1e-6)
  np.testing.assert_allclose(slopes[0], [slope], rtol=1e-6)


@pytest.mark.parametrize("width", [0.0, 0.2])
def test_slope_at_ratio_one_is_the_advantage_even_without_width(width):
  """`jnp.clip` with equal bounds would leave a quarter of it."""
  _, slopes = values_and_slopes(
    functools.partial(surrogates.clipped, clip_low=width, clip_high=width),
    [1.0, 1.0],
    [1.0, -1.0],
  )
  np.testing.assert_array_equal(slopes[0], [1.0, -1.0])


def test_advantages_per_row_weigh_every_token():
  ratio = np.float32([[1.0, 1.1], [0.9, 1.2]])
  advantages = np.float32([1.0, -1.0])
  by_row, _ = values_and_slopes(CLIPPED, ratio, advantages)
  by_token, _ = values_and_slopes(
    CLIPPED, ratio, np.broadcast_to(advantages[:, None], (2, 2))
  )
  np.testing.assert_array_equal(by_row, by_token)
  np.testing.assert_array_equal(by_row, ratio * advantages[:, None])
  logp = np.log(ratio)
  found, _ = values_and_slopes(surrogates.reinforce, logp, advantages)
  np.testing.assert_array_equal(found, logp * advantages[:, None])


def test_token_advantages_do_not_fit_a_sequence_ratio():
  with pytest.raises(ValueError, match="needs one advantage per completion"):
    surrogates.clipped(np.ones(2), np.ones((2, 3)), LOW, HIGH)


@pytest.mark.parametrize("function", [CLIPPED, surrogates.reinforce])
def test_advantages_are_constants(function):
  _, slopes = values_and_slopes(function, [[0.9, 1.1]] * 2, [2.0, 2.0])
  np.testing.assert_array_equal(slopes[0], [[2.0, 2.0]] * 2)
  assert not slopes[1].any()


@pytest.mark.parametrize(
  ("ratio", "advantage", "value", "slope"),
  [
    # A < 0: the loss stops growing at 3 |A|.
    (2.5, -2.0, -5.0, -2.0),
    (3.5, -2.0, -6.0, 0.0),
    (0.5, -2.0, -1.6, 0.0),
    # A > 0: as without.
    (3.5, 2.0, 2.56, 0.0),
    (1.0, 2.0, 2.0, 2.0),
  ],
)
def test_dual_clip_bounds_losses_of_negative_advantages(
  ratio, advantage, value, slope
):
  found, slopes = values_and_slopes(DUAL, [ratio], [advantage])
  np.testing.assert_allclose(found, [value], rtol=1e-6)
  np.testing.assert_allclose(slopes[0], [slope], rtol=1e-6)


def test_ratio_cap_bounds_the_ratio_itself():
  capped = functools.partial(CLIPPED, ratio_cap=1.5)
  values, slopes = values_and_slopes(capped, [1.4, 1.6, 0.9], [-2, -2, 2])
  np.testing.assert_allclose(values, [-2.8, -3.0, 1.8], rtol=1e-6)
  np.testing.assert_allclose(slopes[0], [-2.0, 0.0, 2.0])


@pytest.mark.parametrize("off", [None, 0.0])
def test_bounds_that_are_off_change_nothing(off):
  arrays = np.linspace(0, 9, 7), np.linspace(-2, 2, 7)
  found = values_and_slopes(
    functools.partial(CLIPPED, dual_clip=off, ratio_cap=off), *arrays
  )
  expected = values_and_slopes(CLIPPED, *arrays)
  np.testing.assert_array_equal(found[0], expected[0])
  np.testing.assert_array_equal(found[1], expected[1])


def test_upper_clip_leaves_the_lower_side_alive():
  values, slopes = values_and_slopes(
    functools.partial(surrogates.upper_clipped, clip_high=HIGH),
    [0.1, 0.1, 2.0, 2.0],
    [1.0, -1.0, 1.0, -1.0],
  )
  np.testing.assert_allclose(values, [0.1, -0.1, 1.28, -2.0], rtol=1e-6)
  np.testing.assert_array_equal(slopes[0], [1.0, -1.0, 0.0, -1.0])


def test_clipped_weight_keeps_every_gradient():
  values, (ratio_slope, slope, _) = values_and_slopes(
    functools.partial(surrogates.clipped_weight, ratio_min=0.5, ratio_max=5.0),
    [[0.1, 1.0, 9.0]],
    [[-1.0, -2.0, -3.0]],
    [2.0],
  )
  # 2 · (0.5 · −1, 1 · −2, 5 · −3)
  np.testing.assert_allclose(values, [[-1.0, -4.0, -30.0]], rtol=1e-6)
  np.testing.assert_allclose(slope, [[1.0, 2.0, 10.0]], rtol=1e-6)
  assert not ratio_slope.any()


def test_banded_weight_leaves_out_what_has_drifted():
  ratio = np.float32([[0.5, 0.7, 0.71, 1.0, 5.9, 6.0, 7.0]] * 2)
  logp = np.full(ratio.shape, -2.0)
  sign = np.array([1.0, -1.0])  # Both sides, whatever the sign of A.
  values, (ratio_slope, slope, *_) = values_and_slopes(
    surrogates.banded_weight, ratio, logp, sign, 0.3, 5.0
  )
  inside = sign[:, None] * [0, 0, 0.71, 1.0, 5.9, 0, 0]
  np.testing.assert_allclose(slope, inside, rtol=1e-6)
  np.testing.assert_allclose(values, -2 * inside, rtol=1e-6)
  assert not ratio_slope.any()
  # Without a band: the importance-weighted policy gradient.
  _, (_, slope, *_) = values_and_slopes(
    surrogates.banded_weight, ratio, logp, sign, 1.0, np.inf
  )
  np.testing.assert_allclose(slope, sign[:, None] * ratio, rtol=1e-6)


def test_soft_gate_by_hand():
  # σ(0) = ½, so at r = 1 the value is 2A/τ and the slope A.
  # σ(ln 3) = 3/4 at r = 1 + ln 3, τ = 1: 4 · 3/4, slope 4 · 3/4 · 1/4.
  values, slopes = values_and_slopes(
    functools.partial(
      surrogates.soft_gated, tau_positive=1.0, tau_negative=2.0
    ),
    [1.0, 1.0, 1 + np.log(3.0)],
    [3.0, -3.0, 1.0],
  )
  np.testing.assert_allclose(values, [2 * 3 / 1.0, -2 * 3 / 2.0, 3], rtol=1e-6)
  np.testing.assert_allclose(slopes[0], [3.0, -3.0, 0.75], rtol=1e-6)


ROWS = np.array([[True, True, False], [True, True, False], [False] * 3])


def geometric(log_ratio, advantages):
  return surrogates.geometric_mean(log_ratio, advantages, ROWS, 0.4, 0.4)


def test_geometric_mean_by_hand():
  """Δ = (0.6, −0.6): A > 0 cuts the first at 0.4, A < 0 the second at −0.4."""
  values, slopes = values_and_slopes(
    geometric, [[0.6, -0.6, 9.0]] * 3, [2.0, -2.0, 5.0]
  )
  low, high = np.exp((0.4 - 0.6) / 2), np.exp((0.6 - 0.4) / 2)
  # The empty row is A.
  np.testing.assert_allclose(values, [2 * low, -2 * high, 5], rtol=1e-6)
  # Each living token has 1/|y| of the slope.
  np.testing.assert_allclose(
    slopes[0], [[0, low, 0], [-high, 0, 0], [0, 0, 0]], rtol=1e-6
  )


def test_vespo_weight_by_hand():
  found, slopes = values_and_slopes(
    lambda x, a: surrogates.vespo_weight(x, ROWS, a, 2.0, 3.0, 3.0, 2.0),
    [[0.3, 0.4, 9.0], [0.3, 0.4, 9.0], [9.0] * 3],
    [1.0, -1.0, 1.0],
  )
  w = np.exp(0.7)
  np.testing.assert_allclose(
    found,
    [np.exp(3 + 2 * 0.7 - 3 * w), np.exp(2 + 3 * 0.7 - 2 * w), 1.0],
    rtol=1e-5,
  )
  assert not slopes[0].any()


def test_covariance_by_hand():
  # Tokens (A, ℓ): (1, −1), (1, −3), (−2, −2), means 0 and −2.
  mask = np.array([[True, True], [True, False]])
  found, slopes = values_and_slopes(
    lambda a, x: surrogates.covariance(a, x, mask),
    [1.0, -2.0],
    [[-1.0, -3.0], [-2.0, np.nan]],
  )
  np.testing.assert_allclose(found, [[1.0, -1.0], [0.0, 0.0]])
  assert not slopes[1].any()


COV = np.float32([[0.5, 2.0, 3.0, 9.0], [2.5, 1.5, 4.0, 0.1]])
SEVEN = np.ones((2, 4), bool)
SEVEN[0, 2] = False
_kl_cov_mask = jax.jit(surrogates.kl_cov_mask)


def kl_cov_mask(*arrays):
  return np.asarray(_kl_cov_mask(*arrays))


@pytest.mark.parametrize(("fraction", "count"), [(1e-4, 1), (0.5, 3), (1.0, 7)])
def test_kl_cov_takes_the_highest(fraction, count):
  found = kl_cov_mask(COV, SEVEN, fraction)
  assert found.sum() == count  # max(1, ⌊fraction · 7⌋)
  assert not found[~SEVEN].any()
  np.testing.assert_array_equal(
    np.sort(COV[found]), np.sort(COV[SEVEN])[-count:]
  )


def test_equal_covariances_do_not_raise_the_number():
  assert kl_cov_mask(np.zeros_like(COV), SEVEN, 0.5).sum() == 3
  nobody = np.zeros_like(SEVEN)
  assert not kl_cov_mask(COV, nobody, 0.5).any()


def test_clip_cov_draws_among_candidates():
  not_clipped = np.ones((2, 4), bool)
  not_clipped[1, 0] = False
  # Of 7 tokens those in (1, 5), not clipped: 2.0, 1.5 and 4.0.
  candidates = np.isin(COV, [2.0, 1.5, 4.0])

  @jax.jit
  def draw(fraction, seed):
    return surrogates.clip_cov_mask(
      COV, SEVEN, not_clipped, fraction, 1.0, 5.0, jax.random.key(seed)
    )

  @jax.jit
  def draw_many(fraction):
    return jax.vmap(lambda seed: draw(fraction, seed))(jnp.arange(600))

  np.testing.assert_array_equal(draw(0.5, 0), candidates)  # ⌊3.5⌋ = all 3.
  draws = np.asarray(draw_many(0.3))  # ⌊2.1⌋ = 2
  np.testing.assert_array_equal(draws.sum(axis=(1, 2)), 2)
  assert not draws[:, ~candidates].any()
  # Each of the three is in two thirds of the pairs: 400 ± 5 deviations.
  counts = draws[:, candidates].sum(axis=0)
  np.testing.assert_allclose(counts, 400, atol=5 * np.sqrt(600 * 2 / 9))
  np.testing.assert_array_equal(draw(0.3, 1), draw(0.3, 1))

"""Clipping by regions, and its slope where the regions meet."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import masked, ratios, surrogates

LOW, HIGH = 0.2, 0.28


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
  def surrogate(ratio):
    return surrogates.clipped(
      ratio[None], jnp.array([advantage]), LOW, HIGH
    ).sum()

  found, gradient = jax.value_and_grad(surrogate)(jnp.float32(ratio))
  np.testing.assert_allclose(found, value, rtol=1e-6)
  np.testing.assert_allclose(gradient, slope, rtol=1e-6)


@pytest.mark.parametrize("width", [0.0, 0.2])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_slope_at_ratio_one_is_the_advantage_even_without_width(
  width, advantage
):
  """`jnp.clip` with equal bounds would leave a quarter of it."""
  slope = jax.grad(
    lambda r: surrogates.clipped(r, jnp.array([advantage]), width, width).sum()
  )(jnp.ones(1))
  np.testing.assert_array_equal(slope, [advantage])


def test_advantages_per_row_weigh_every_token():
  ratio = jnp.array([[1.0, 1.1], [0.9, 1.2]])
  advantages = jnp.array([1.0, -1.0])
  by_row = surrogates.clipped(ratio, advantages, LOW, HIGH)
  by_token = surrogates.clipped(
    ratio, jnp.broadcast_to(advantages[:, None], (2, 2)), LOW, HIGH
  )
  np.testing.assert_array_equal(by_row, by_token)
  np.testing.assert_array_equal(by_row, ratio * advantages[:, None])
  logp = jnp.log(ratio)
  np.testing.assert_array_equal(
    surrogates.reinforce(logp, advantages), logp * advantages[:, None]
  )


def test_token_advantages_do_not_fit_a_sequence_ratio():
  with pytest.raises(ValueError, match="needs one advantage per completion"):
    surrogates.clipped(jnp.ones(2), jnp.ones((2, 3)), LOW, HIGH)


@pytest.mark.parametrize(
  "function",
  [lambda x, a: surrogates.clipped(x, a, LOW, HIGH), surrogates.reinforce],
)
def test_advantages_are_constants(function):
  x, advantages = jnp.array([[0.9, 1.1]]), jnp.array([2.0])
  slope = jax.grad(lambda x, a: function(x, a).sum(), (0, 1))(x, advantages)
  np.testing.assert_array_equal(slope[0], [[2.0, 2.0]])
  assert not slope[1].any()


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
  found, gradient = jax.value_and_grad(
    lambda r: surrogates.clipped(
      r[None], jnp.array([advantage]), LOW, HIGH, dual_clip=3.0
    ).sum()
  )(jnp.float32(ratio))
  np.testing.assert_allclose(found, value, rtol=1e-6)
  np.testing.assert_allclose(gradient, slope, rtol=1e-6)


def test_ratio_cap_bounds_the_ratio_itself():
  ratio, advantages = jnp.array([1.4, 1.6, 0.9]), jnp.array([-2.0, -2.0, 2.0])
  value, slope = jax.value_and_grad(
    lambda r: surrogates.clipped(r, advantages, LOW, HIGH, ratio_cap=1.5).sum()
  )(ratio)
  np.testing.assert_allclose(value, -2.8 - 3.0 + 1.8, rtol=1e-6)
  np.testing.assert_allclose(slope, [-2.0, 0.0, 2.0])


@pytest.mark.parametrize("off", [None, 0.0])
def test_bounds_that_are_off_change_nothing(off):
  ratio, advantages = jnp.linspace(0, 9, 7), jnp.linspace(-2, 2, 7)
  np.testing.assert_array_equal(
    surrogates.clipped(
      ratio, advantages, LOW, HIGH, dual_clip=off, ratio_cap=off
    ),
    surrogates.clipped(ratio, advantages, LOW, HIGH),
  )


def test_bounds_inside_the_range_raise():
  one = jnp.ones(1)
  with pytest.raises(ValueError, match=r"dual_clip is 0\.9.*must exceed 1"):
    surrogates.clipped(one, one, LOW, HIGH, dual_clip=0.9)
  with pytest.raises(ValueError, match=r"ratio_cap is 1\.28.*exceed 1 \+"):
    surrogates.clipped(one, one, LOW, 0.28, ratio_cap=1.28)


def test_upper_clip_leaves_the_lower_side_alive():
  ratio = jnp.array([0.1, 0.1, 2.0, 2.0])
  advantages = jnp.array([1.0, -1.0, 1.0, -1.0])
  value, slope = jax.value_and_grad(
    lambda r: surrogates.upper_clipped(r, advantages, HIGH).sum()
  )(ratio)
  np.testing.assert_allclose(value, 0.1 - 0.1 + 1.28 - 2.0, rtol=1e-6)
  np.testing.assert_array_equal(slope, [1.0, -1.0, 0.0, -1.0])


def test_clipped_weight_keeps_every_gradient():
  ratio = jnp.array([[0.1, 1.0, 9.0]])
  logp = jnp.array([[-1.0, -2.0, -3.0]])
  value, (slope, ratio_slope) = jax.value_and_grad(
    lambda logp, ratio: surrogates.clipped_weight(
      ratio, logp, jnp.array([2.0]), 0.5, 5.0
    ).sum(),
    (0, 1),
  )(logp, ratio)
  # 2 · (0.5 · −1 + 1 · −2 + 5 · −3)
  np.testing.assert_allclose(value, -35.0, rtol=1e-6)
  np.testing.assert_allclose(slope, [[1.0, 2.0, 10.0]], rtol=1e-6)
  assert not ratio_slope.any()


def test_banded_weight_leaves_out_what_has_drifted():
  ratio = jnp.array([[0.5, 0.7, 0.71, 1.0, 5.9, 6.0, 7.0]])
  logp = jnp.full(ratio.shape, -2.0)

  def total(logp, ratio, advantage, *band):
    return surrogates.banded_weight(ratio, logp, advantage, *band).sum()

  gradient = jax.value_and_grad(total, (0, 1))
  for sign in (1.0, -1.0):  # Both sides, whatever the sign of A.
    value, slopes = gradient(logp, ratio, jnp.array([sign]), 0.3, 5.0)
    inside = np.array([[0, 0, 0.71, 1.0, 5.9, 0, 0]])
    np.testing.assert_allclose(slopes[0], sign * inside, rtol=1e-6)
    np.testing.assert_allclose(value, -2 * sign * inside.sum(), rtol=1e-6)
    assert not slopes[1].any()
    # Without a band: the importance-weighted policy gradient.
    _, slopes = gradient(logp, ratio, jnp.array([sign]), 1.0, jnp.inf)
    np.testing.assert_allclose(slopes[0], sign * ratio, rtol=1e-6)


def test_soft_gate_by_hand():
  # σ(0) = ½, so at r = 1 the value is 2A/τ and the slope A.
  value, slope = jax.value_and_grad(
    lambda r: surrogates.soft_gated(r, jnp.array([3.0, -3.0]), 1.0, 2.0).sum()
  )(jnp.ones(2))
  np.testing.assert_allclose(value, 2 * 3 / 1.0 - 2 * 3 / 2.0, rtol=1e-6)
  np.testing.assert_allclose(slope, [3.0, -3.0], rtol=1e-6)
  # σ(ln 3) = 3/4 at r = 1 + ln 3, τ = 1: 4 · 3/4, slope 4 · 3/4 · 1/4.
  value, slope = jax.value_and_grad(
    lambda r: surrogates.soft_gated(r, jnp.ones(1), 1.0, 2.0).sum()
  )(jnp.array([1 + np.log(3.0)]))
  np.testing.assert_allclose(value, 3.0, rtol=1e-6)
  np.testing.assert_allclose(slope, [0.75], rtol=1e-6)


ROWS = jnp.array([[True, True, False], [True, True, False], [False] * 3])


def test_geometric_mean_by_hand():
  """Δ = (0.6, −0.6): A > 0 cuts the first at 0.4, A < 0 the second at −0.4."""
  log_ratio = jnp.tile(jnp.array([0.6, -0.6, 9.0]), (3, 1))
  advantages = jnp.array([2.0, -2.0, 5.0])
  value, slope = jax.value_and_grad(
    lambda x: surrogates.geometric_mean(x, advantages, ROWS, 0.4, 0.4).sum()
  )(log_ratio)
  low, high = np.exp((0.4 - 0.6) / 2), np.exp((0.6 - 0.4) / 2)
  # The empty row is A.
  np.testing.assert_allclose(value, 2 * low - 2 * high + 5, rtol=1e-6)
  # Each living token has 1/|y| of the slope.
  np.testing.assert_allclose(
    slope, [[0, low, 0], [-high, 0, 0], [0, 0, 0]], rtol=1e-6
  )


def test_geometric_mean_unclipped_is_the_sequence_ratio():
  log_ratio = jnp.array([[0.1, -0.3, 0.0], [0.2, 0.2, 0.0], [0.0] * 3])
  advantages = jnp.array([1.0, -1.0, 1.0])
  found = surrogates.geometric_mean(log_ratio, advantages, ROWS, 0.4, 0.4)
  ratio = ratios.sequence_ratio(log_ratio, jnp.zeros((3, 3)), ROWS)
  np.testing.assert_allclose(found, advantages * ratio, rtol=1e-6)


def test_vespo_weight_by_hand():
  log_ratio = jnp.array([[0.3, 0.4, 9.0], [0.3, 0.4, 9.0], [9.0] * 3])
  found = surrogates.vespo_weight(
    log_ratio, ROWS, jnp.array([1.0, -1.0, 1.0]), 2.0, 3.0, 3.0, 2.0
  )
  w = np.exp(0.7)
  np.testing.assert_allclose(
    found,
    [np.exp(3 + 2 * 0.7 - 3 * w), np.exp(2 + 3 * 0.7 - 2 * w), 1.0],
    rtol=1e-5,
  )
  slope = jax.grad(
    lambda x: surrogates.vespo_weight(
      x, ROWS, jnp.ones(3), 2.0, 3.0, 3.0, 2.0
    ).sum()
  )(log_ratio)
  assert not slope.any()


def test_at_ratio_one_every_surrogate_is_the_policy_gradient():
  old = jnp.array([[-1.0, -0.5, -2.0], [-0.3, -1.5, 9.0]])
  mask = jnp.array([[True] * 3, [True, True, False]])
  advantages = jnp.array([1.5, -0.7])

  def token(logp):
    return ratios.token_ratio(logp, old, mask)

  def gated(logp):
    return surrogates.soft_gated(token(logp), advantages, 1.0, 1.05)

  def vespo(logp):
    phi = surrogates.vespo_weight(
      ratios.log_ratio(logp, old, mask), mask, advantages, 2.0, 3.0, 3.0, 2.0
    )
    return phi[:, None] * surrogates.reinforce(logp, advantages)

  per_token = {
    "clipped": lambda x: surrogates.clipped(token(x), advantages, LOW, HIGH),
    "weight": lambda x: surrogates.clipped_weight(
      token(x), x, advantages, 0.5, 5.0
    ),
    "gated": gated,
    "vespo": vespo,
    "sequence_token": lambda x: surrogates.clipped(
      ratios.sequence_token_ratio(x, old, mask), advantages, LOW, HIGH
    ),
    "trajectory": lambda x: (
      surrogates.upper_clipped(
        ratios.trajectory_ratio(x, old, mask), advantages, HIGH
      )[:, None]
      * (jnp.arange(3) == 0)
    ),
  }
  for name, function in per_token.items():
    slope = jax.grad(lambda x, f=function: masked.sum(f(x), mask))(old)
    np.testing.assert_allclose(
      slope, advantages[:, None] * mask, rtol=1e-5, err_msg=name
    )
  # And those of one number per row share it among its tokens.
  per_row = {
    "sequence": lambda x: surrogates.clipped(
      ratios.sequence_ratio(x, old, mask), advantages, LOW, HIGH
    ),
    "geometric": lambda x: surrogates.geometric_mean(
      ratios.log_ratio(x, old, mask), advantages, mask, 0.4, 0.4
    ),
  }
  shares = advantages[:, None] * mask / mask.sum(axis=-1, keepdims=True)
  for name, function in per_row.items():
    slope = jax.grad(lambda x, f=function: f(x).sum())(old)
    np.testing.assert_allclose(slope, shares, rtol=1e-5, err_msg=name)


def _whole_losses():
  """name -> (logp, old, advantages [B], mask) -> objective, summed."""

  def token(f):
    return lambda logp, old, a, mask: masked.sum(
      f(ratios.token_ratio(logp, old, mask), logp, a), mask
    )

  return {
    "clipped": token(lambda r, x, a: surrogates.clipped(r, a, LOW, HIGH)),
    "dual": token(lambda r, x, a: surrogates.clipped(r, a, LOW, HIGH, 3.0)),
    "upper": token(lambda r, x, a: surrogates.upper_clipped(r, a, HIGH)),
    "weight": token(
      lambda r, x, a: surrogates.clipped_weight(r, x, a, 0.0, 5.0)
    ),
    "gated": token(lambda r, x, a: surrogates.soft_gated(r, a, 1.0, 1.05)),
    "banded": token(
      lambda r, x, a: surrogates.banded_weight(r, x, a, 0.3, 5.0)
    ),
    "reinforce": token(lambda r, x, a: surrogates.reinforce(x, a)),
    "geometric": lambda logp, old, a, mask: surrogates.geometric_mean(
      ratios.log_ratio(logp, old, mask), a, mask, 0.4, 0.4
    ).sum(),
    "vespo": lambda logp, old, a, mask: masked.sum(
      surrogates.vespo_weight(
        ratios.log_ratio(logp, old, mask), mask, a, 2.0, 3.0, 3.0, 2.0
      )[:, None]
      * surrogates.reinforce(logp, a),
      mask,
    ),
  }


WHOLE_LOSSES = _whole_losses()


@pytest.mark.parametrize("name", WHOLE_LOSSES)
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_a_gap_of_100_nats_is_finite_in_float32(name, gap):
  old = jnp.full((2, 2), -101.0)
  value, slope = jax.value_and_grad(WHOLE_LOSSES[name])(
    old + gap, old, jnp.array([1.0, -1.0]), jnp.ones((2, 2), bool)
  )
  assert np.isfinite(value)
  assert np.isfinite(slope).all()


@pytest.mark.parametrize("name", WHOLE_LOSSES)
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e9])
def test_masked_garbage_reaches_nothing(name, garbage):
  old = jnp.array([[-1.0, -0.5, -2.0], [-0.3, -1.5, -1.0], [-1.0] * 3])
  logp = old + jnp.array([[0.1, -0.1, 0.3], [0.3, -0.3, 0.1], [0.2] * 3])
  advantages = jnp.array([1.0, -1.0, 1.0])

  def both(logp, old):
    return jax.value_and_grad(WHOLE_LOSSES[name])(logp, old, advantages, ROWS)

  value, slope = both(logp, old)
  dirty, dirty_slope = both(
    jnp.where(ROWS, logp, garbage), jnp.where(ROWS, old, garbage)
  )
  assert dirty == value
  np.testing.assert_array_equal(dirty_slope, slope)
  assert slope[ROWS].any()
  assert not slope[~ROWS].any()


# Weights without a gradient make their objectives no antiderivatives.
@pytest.mark.parametrize("name", ["clipped", "upper", "gated", "geometric"])
def test_slopes_are_finite_differences(name):
  with jax.enable_x64(True):
    old = jnp.array([[-1.0, -0.5, -2.0], [-0.3, -1.5, -1.0], [-1.0] * 3])
    logp = old + jnp.array([[0.1, -0.5, 0.3], [0.6, -0.3, 0.1], [0.2] * 3])
    rest = old, jnp.array([1.0, -1.0, 1.0]), ROWS
    slope = jax.grad(WHOLE_LOSSES[name])(logp, *rest)
    for row, column in np.argwhere(ROWS):
      step = jnp.zeros_like(logp).at[row, column].set(1e-6)
      up, down = (
        WHOLE_LOSSES[name](logp + sign * step, *rest) for sign in (1, -1)
      )
      np.testing.assert_allclose(
        slope[row, column], (up - down) / 2e-6, atol=1e-8
      )


def test_covariance_by_hand():
  # Tokens (A, ℓ): (1, −1), (1, −3), (−2, −2), means 0 and −2.
  mask = jnp.array([[True, True], [True, False]])
  logp = jnp.array([[-1.0, -3.0], [-2.0, jnp.nan]])
  found = surrogates.covariance(jnp.array([1.0, -2.0]), logp, mask)
  np.testing.assert_allclose(found, [[1.0, -1.0], [0.0, 0.0]])
  slope = jax.grad(
    lambda x: surrogates.covariance(jnp.array([1.0, -2.0]), x, mask).sum()
  )(logp)
  assert not slope.any()


COV = jnp.array([[0.5, 2.0, 3.0, 9.0], [2.5, 1.5, 4.0, 0.1]])
SEVEN = jnp.ones((2, 4), bool).at[0, 2].set(False)


@pytest.mark.parametrize(("fraction", "count"), [(1e-4, 1), (0.5, 3), (1, 7)])
def test_kl_cov_takes_the_highest(fraction, count):
  found = jax.jit(surrogates.kl_cov_mask, static_argnums=2)(
    COV, SEVEN, fraction
  )
  assert found.sum() == count  # max(1, ⌊fraction · 7⌋)
  assert not found[~SEVEN].any()
  np.testing.assert_array_equal(
    np.sort(COV[found]), np.sort(COV[SEVEN])[-count:]
  )


def test_equal_covariances_do_not_raise_the_number():
  assert surrogates.kl_cov_mask(jnp.zeros((2, 4)), SEVEN, 0.5).sum() == 3
  nobody = jnp.zeros_like(SEVEN)
  assert not surrogates.kl_cov_mask(COV, nobody, 0.5).any()


def test_clip_cov_draws_among_candidates():
  not_clipped = jnp.ones((2, 4), bool).at[1, 0].set(False)
  # Of 7 tokens those in (1, 5), not clipped: 2.0, 1.5 and 4.0.
  candidates = jnp.zeros((2, 4), bool).at[0, 1].set(True)
  candidates = candidates.at[1, 1].set(True).at[1, 2].set(True)

  def draw(fraction, seed):
    return surrogates.clip_cov_mask(
      COV, SEVEN, not_clipped, fraction, 1.0, 5.0, jax.random.key(seed)
    )

  np.testing.assert_array_equal(draw(0.5, 0), candidates)  # ⌊3.5⌋ = all 3.
  draws = jax.vmap(lambda seed: draw(0.3, seed))(jnp.arange(600))  # ⌊2.1⌋ = 2
  np.testing.assert_array_equal(draws.sum(axis=(1, 2)), 2)
  assert not draws[:, ~candidates].any()
  # Each of the three is in two thirds of the pairs: 400 ± 5 deviations.
  counts = draws[:, candidates].sum(axis=0)
  np.testing.assert_allclose(counts, 400, atol=5 * np.sqrt(600 * 2 / 9))
  np.testing.assert_array_equal(draw(0.3, 1), draw(0.3, 1))

"""Shaping of rewards: by hand, conserved sums, and no leaks."""

import jax
import numpy as np
import pytest

from grpo_jax.ops import shaping


@pytest.mark.parametrize(
  ("length", "penalty"),
  [
    (0, 0.0),
    (16_384, 0.0),  # 20 480 − 4 096: the last length that is free.
    (16_385, -1 / 4096),
    (18_432, -0.5),
    (20_480, -1.0),
    (20_481, -1.0),
    (50_000, -1.0),
  ],
)
def test_soft_overlong_of_dapo(length, penalty):
  found = jax.jit(shaping.soft_overlong, static_argnums=(1, 2))(
    np.array([length]), 20_480, 4_096
  )
  np.testing.assert_array_equal(found, np.float32([penalty]))


def test_the_kl_coefficient_follows_the_target():
  def after(kl, num_samples=500):
    return shaping.adaptive_kl_coef(0.2, kl, 6.0, 1000, num_samples)

  np.testing.assert_allclose(after(6.0), 0.2, rtol=1e-6)
  np.testing.assert_allclose(after(6.6), 0.2 * 1.05, rtol=1e-6)  # +10 % / 2
  # At most ±20 % of n / horizon, here ±10 %.
  np.testing.assert_allclose(after(1e9), 0.2 * 1.1, rtol=1e-6)
  np.testing.assert_allclose(after(0.0), 0.2 * 0.9, rtol=1e-6)


# --- Entropy -----------------------------------------------------------------

# Two right and two wrong rows of group 1; group 0 is empty.
CORRECT = np.array([True, False, True, False])
MASK = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0]], bool)
ENTROPY = np.array(
  [[0.1, 0.3, 0.5], [0.5, 0.25, 7], [0.3, 0.1, 7], [0.25, 0.25, 7]], np.float32
)
GROUP = {"group_id": np.ones(4, int), "num_groups": 2}
VALID = np.ones(4, bool)
# One program for all tests of the same shapes.
gtpo_rewards, grpo_s_rewards = SHAPERS = tuple(
  jax.jit(function, static_argnames="num_groups")
  for function in (shaping.gtpo_rewards, shaping.grpo_s_rewards)
)
normalized = jax.jit(
  shaping.normalized_over_group, static_argnames=("num_groups", "how")
)
edge_factor = jax.jit(shaping.edge_factor)


def _shaped(function, entropy=ENTROPY, mask=MASK, valid=VALID, **options):
  return function(CORRECT, entropy, mask, **GROUP, valid=valid, **options)


def test_gtpo_by_hand():
  # Right, slot 0: shares 2 · (0.1, 0.3) / 0.4; slot 2: one row, share 1.
  # Wrong, slot 0: 1/H = 2, 4, shares 2 · (2, 4) / 6.
  np.testing.assert_allclose(
    _shaped(gtpo_rewards),
    [
      [1.05, 1.15, 1.1],
      [-1.0666667, -1.1, 0],
      [1.15, 1.05, 0],
      [-1.1333333, -1.1, 0],
    ],
    rtol=1e-5,
  )


def test_grpo_s_by_hand():
  # Mean entropies 0.3 and 0.2 right, 0.375 and 0.25 wrong.
  np.testing.assert_allclose(
    _shaped(grpo_s_rewards), [1.12, -1.08, 1.08, -1.12], rtol=1e-5
  )


@pytest.mark.parametrize("function", SHAPERS)
@pytest.mark.parametrize("entropy", [0.0, 1e-9, 0.4, 9.0])
def test_equal_entropies_shape_alike(function, entropy):
  found = np.asarray(_shaped(function, np.full_like(ENTROPY, entropy)))
  sign = np.where(CORRECT, 1.1, -1.1)
  if found.ndim == 2:
    sign = np.where(MASK, sign[:, None], 0)
  np.testing.assert_allclose(found, sign, rtol=1e-5)


@pytest.mark.parametrize("function", SHAPERS)
def test_without_shaping_the_outcome_remains(function):
  found = np.asarray(_shaped(function, alpha2=0.0))
  expected = np.where(CORRECT, 1.0, -1.0)
  if found.ndim == 2:
    expected = np.where(MASK, expected[:, None], 0)
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("function", [*SHAPERS, "edge"])
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e9])
def test_entropy_where_masked_reaches_nothing(function, garbage):
  valid = np.array([True, True, True, False])
  mask = MASK & valid[:, None]

  def run(entropy):
    if function == "edge":
      return edge_factor(entropy, mask)
    return _shaped(function, entropy, valid=valid)

  dirty = np.where(mask, ENTROPY, np.float32(garbage))
  np.testing.assert_array_equal(run(dirty), run(ENTROPY))
  slope = jax.grad(lambda x: (run(x) ** 2).sum())(dirty)
  np.testing.assert_array_equal(slope, 0)


def test_normalized_over_group_by_hand():
  # Group 1: 1, 3 on the positive side, 5, 7 on the other; group 0: 2.
  x = np.array([1.0, 3.0, 5.0, 7.0, 2.0, np.nan], np.float32)
  mask = np.array([True] * 5 + [False])
  positive = np.array([True, True, False, False, True, True])
  group_id = np.array([1, 1, 1, 1, 0, 1])

  def run(how):
    return normalized(x, mask, group_id, 2, positive, how)

  split = [-1, 1, -1, 1, 0, 0]
  np.testing.assert_allclose(run("split"), split, rtol=1e-5)
  joint = np.array([-3, -1, 1, 3, 0, 0]) / 5**0.5  # Mean 4, variance 5.
  np.testing.assert_allclose(run("joint"), joint, rtol=1e-5)
  np.testing.assert_array_equal(run("none"), [1, 3, 5, 7, 2, 0])


def test_normalized_names_what_it_knows():
  with pytest.raises(ValueError, match=r"'both'.*split.*joint.*none"):
    normalized(ENTROPY, MASK, **GROUP, positive=CORRECT, how="both")


def test_edge_factor_by_hand():
  # Mean entropies 0.2, 0.4, 0.4, 1 with mean 0.5; the last row has no tokens.
  entropy = np.array([[0.1, 0.3], [0.4, 9], [0.4, 0.4], [1, 9], [9, 9]])
  mask = np.array([[1, 1], [1, 0], [1, 1], [1, 0], [0, 0]], bool)
  np.testing.assert_allclose(
    edge_factor(entropy, mask), [2.5, 1.25, 1.25, 0.5, 1], rtol=1e-6
  )
  np.testing.assert_allclose(
    edge_factor(entropy, mask, low=1.0, high=2.0),
    [2, 1.25, 1.25, 1, 1],
    rtol=1e-6,
  )


@pytest.mark.parametrize("entropy", [0.0, 1e-9, 0.7])
def test_equal_entropies_leave_advantages_alone(entropy):
  factor = edge_factor(np.full((5, 3), entropy), np.ones((5, 3), bool))
  np.testing.assert_allclose(factor, 1, rtol=1e-6)


def test_a_row_without_entropy_gets_the_greatest_factor():
  entropy = np.array([[0.0], [1.0]])
  factor = edge_factor(entropy, np.ones((2, 1), bool))
  np.testing.assert_allclose(factor, [10, 0.5])

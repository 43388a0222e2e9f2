"""Masked sums and means: known answers, empty masks, and no leaks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import masked

X = np.float32([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
MASK = np.array([[True, False, True], [False, False, False]])


@functools.partial(jax.jit, static_argnums=0)
def _compiled(function, x, mask):
  return jax.value_and_grad(function)(x, mask)


def value_and_slope(function, x, mask=MASK):
  return jax.device_get(_compiled(function, x, mask))


@jax.jit
def _along_axes(x, mask):
  return (
    masked.sum(x, mask, axis=-1),
    masked.mean(x, mask, axis=-1),
    masked.mean(x, mask, axis=0),
    masked.select(x, mask),
  )


def test_known_answers():
  assert value_and_slope(masked.sum, X)[0] == 1 + 4
  assert value_and_slope(masked.mean, X)[0] == 5 / 2
  sums, means, of_columns, selected = _along_axes(X, MASK)
  np.testing.assert_array_equal(sums, [5, 0])
  np.testing.assert_array_equal(means, [2.5, 0])
  np.testing.assert_array_equal(of_columns, [1, 0, 4])
  np.testing.assert_array_equal(selected, [[1, 0, 4], [0, 0, 0]])
  # Not 0 where all are negative.
  assert value_and_slope(masked.maximum, -X)[0] == -1


@pytest.mark.parametrize("function", [masked.sum, masked.mean, masked.maximum])
def test_empty_masks_give_zero(function):
  assert value_and_slope(function, X, np.zeros_like(MASK))[0] == 0


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e9])
@pytest.mark.parametrize("function", [masked.sum, masked.mean, masked.maximum])
def test_masked_slots_reach_neither_value_nor_gradient(function, garbage):
  dirty = np.where(MASK, X, np.float32(garbage))
  value, gradient = value_and_slope(function, dirty)
  expected, expected_gradient = value_and_slope(function, X)
  assert value == expected
  np.testing.assert_array_equal(gradient, expected_gradient)
  assert not gradient[~MASK].any()
  assert gradient.any()


def test_bfloat16_means_do_not_count_in_bfloat16():
  """A running count in bfloat16 would stop at 256."""
  ones = np.ones(40_000, jnp.bfloat16)
  assert float(jax.jit(masked.mean)(ones, np.ones(40_000, bool))) == 1


whiten = jax.jit(masked.whiten, static_argnums=2)


def test_whiten_by_hand():
  # 1, 2 and 3: mean 2, sample variance 1.
  x = np.array([[1.0, 9.0, 3.0], [2.0, 9.0, 9.0]])
  mask = x < 9
  np.testing.assert_allclose(
    whiten(x, mask), [[-1, 0, 1], [0, 0, 0]], atol=1e-6
  )


def test_whiten_by_rows_by_hand():
  # Rows with the means 2, 4 and 6, whatever their lengths: mean 4, and the
  # squares 4, 0 + 1 and 4 over 3 − 1 are the variance 4.5.
  x = np.array([[2.0, 2.0, 2.0], [3.0, 5.0, 9.0], [6.0, 9.0, 9.0], [9.0] * 3])
  mask = x < 9
  expected = np.array([[-2, -2, -2], [-1, 1, 0], [2, 0, 0], [0] * 3]) / 4.5**0.5
  np.testing.assert_allclose(whiten(x, mask, True), expected, atol=1e-6)
  # By tokens the long row would pull the mean down: (3 · 2 + 8 + 6) / 6.
  by_tokens = np.asarray(whiten(x, mask))
  assert by_tokens[1, 0] < 0 < by_tokens[2, 0]
  everywhere = np.ones_like(mask)
  same_rows = np.array([[1.0] * 3, [2.0] * 3, [4.0] * 3, [5.0] * 3])
  rows = whiten(same_rows[:, :1], everywhere[:, :1])
  np.testing.assert_allclose(
    whiten(same_rows, everywhere, True), np.repeat(rows, 3, 1), rtol=1e-6
  )


def test_whitened_numbers_have_mean_0_and_variance_1_in_any_unit():
  rng = np.random.default_rng(0)
  x, mask = rng.normal(3, 5, size=(6, 7)), rng.random((6, 7)) < 0.6
  x = x.astype(np.float32)
  whitened = np.asarray(whiten(x, mask))
  np.testing.assert_allclose(whitened[mask].mean(), 0, atol=1e-6)
  np.testing.assert_allclose(whitened[mask].var(ddof=1), 1, rtol=1e-5)
  np.testing.assert_allclose(whiten(100 * x - 7, mask), whitened, atol=1e-5)
  for garbage in (np.nan, np.inf, 1e9):
    dirty = np.where(mask, x, np.float32(garbage))
    np.testing.assert_array_equal(whiten(dirty, mask), whitened)

  @functools.partial(jax.grad, has_aux=True)
  def slope_of_sum(x):
    white = whiten(x, mask)
    return (x * white).sum(), white

  # It is a constant. Another program may round the last bit otherwise.
  slope, constant = jax.jit(slope_of_sum)(x)
  np.testing.assert_array_equal(slope, constant)
  np.testing.assert_allclose(constant, whitened, rtol=1e-6)


@pytest.mark.parametrize("value", [0.7, 0.1, -3.3])
@pytest.mark.parametrize("size", [0, 1, 7, 12])
def test_equal_numbers_whiten_to_exactly_zero(value, size):
  """Their float32 mean may be one unit in the last place off."""
  x = np.full(20, value, np.float32)
  whitened = whiten(x, np.arange(20) < size)
  np.testing.assert_array_equal(whitened, 0)


def test_wide_is_at_least_float32():
  wide = functools.partial(jax.eval_shape, masked.wide)
  assert wide(np.ones(1, jnp.bfloat16)).dtype == jnp.float32
  assert wide(np.ones(1, int)).dtype == jnp.float32
  with jax.enable_x64(True):
    assert wide(np.ones(1, np.float64)).dtype == jnp.float64

"""Masked sums and means: known answers, empty masks, and no leaks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import masked

X = jnp.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
MASK = jnp.array([[True, False, True], [False, False, False]])


def test_known_answers():
  assert masked.sum(X, MASK) == 1 + 4
  assert masked.mean(X, MASK) == 5 / 2
  np.testing.assert_array_equal(masked.sum(X, MASK, axis=-1), [5, 0])
  np.testing.assert_array_equal(masked.mean(X, MASK, axis=-1), [2.5, 0])
  np.testing.assert_array_equal(masked.mean(X, MASK, axis=0), [1, 0, 4])
  np.testing.assert_array_equal(masked.select(X, MASK), [[1, 0, 4], [0, 0, 0]])
  # Not 0 where all are negative.
  assert masked.maximum(-X, MASK) == -1


@pytest.mark.parametrize("function", [masked.sum, masked.mean, masked.maximum])
def test_empty_masks_give_zero(function):
  assert function(X, jnp.zeros_like(MASK)) == 0


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e9])
@pytest.mark.parametrize("function", [masked.sum, masked.mean, masked.maximum])
def test_masked_slots_reach_neither_value_nor_gradient(function, garbage):
  dirty = jnp.where(MASK, X, garbage)
  value, gradient = jax.value_and_grad(function)(dirty, MASK)
  expected, expected_gradient = jax.value_and_grad(function)(X, MASK)
  assert value == expected
  np.testing.assert_array_equal(gradient, expected_gradient)
  assert not gradient[~MASK].any()
  assert gradient.any()


def test_bfloat16_means_do_not_count_in_bfloat16():
  """A running count in bfloat16 would stop at 256."""
  ones = jnp.ones(40_000, jnp.bfloat16)
  assert float(masked.mean(ones, jnp.ones(40_000, bool))) == 1

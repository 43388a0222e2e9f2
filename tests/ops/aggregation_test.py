"""From losses per token to one number: by hand, empty, and in pieces."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import aggregation

FUNCTIONS = (
  aggregation.over_tokens,
  aggregation.over_sequences,
  aggregation.over_sequence_sums,
  aggregation.over_budget,
)
over_functions = pytest.mark.parametrize("function", FUNCTIONS)

# Rows of 3, 1 and 0 trained tokens in 4 slots.
X = np.float32([[1.0, 2.0, 6.0, 9.0], [5.0, 9.0, 9.0, 9.0], [9.0] * 4])
MASK = np.arange(4) < np.array([3, 1, 0])[:, None]


# One program for each function and shape; what comes back is NumPy's.
@functools.partial(jax.jit, static_argnums=0)
def _compiled(function, x, mask):
  def total(x):
    found = function(x, mask)
    return found.total, found

  slope, found = jax.grad(total, has_aux=True)(x)
  return found, slope


def aggregate(function, x, mask=MASK):
  """The aggregate, and the slope of its total."""
  return jax.device_get(_compiled(function, np.float32(x), mask))


@pytest.mark.parametrize(
  ("function", "total", "weight"),
  [
    (aggregation.over_tokens, 1 + 2 + 6 + 5, 4),
    (aggregation.over_sequences, 9 / 3 + 5, 2),
    (aggregation.over_sequence_sums, 9 + 5, 2),
    (aggregation.over_budget, 9 + 5, 2 * 4),
  ],
)
def test_known_answers_per_token(function, total, weight):
  found, _ = aggregate(function, X)
  np.testing.assert_allclose(found.total, total, rtol=1e-6)
  np.testing.assert_allclose(found.weight, weight)


@pytest.mark.parametrize(
  ("function", "total", "weight"),
  [
    # A value per completion counts once for each of its tokens.
    (aggregation.over_tokens, 3 * 2 + 7, 4),
    (aggregation.over_sequences, 2 + 7, 2),
    (aggregation.over_sequence_sums, 2 + 7, 2),
    (aggregation.over_budget, 2 + 7, 2 * 4),
  ],
)
def test_known_answers_per_completion(function, total, weight):
  found, _ = aggregate(function, [2.0, 7.0, 1e9])
  np.testing.assert_allclose(found.total, total, rtol=1e-6)
  np.testing.assert_allclose(found.weight, weight)


@over_functions
def test_nothing_trained_weighs_nothing(function):
  for x in (X, np.ones(3), np.full((3, 4), np.nan)):
    (total, weight), _ = aggregate(function, x, np.zeros_like(MASK))
    assert total == 0
    assert weight == 0


@over_functions
@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e9])
def test_masked_garbage_reaches_neither_value_nor_gradient(function, garbage):
  found, gradient = aggregate(function, np.where(MASK, X, garbage))
  clean, clean_gradient = aggregate(function, X)
  assert found.total == clean.total
  np.testing.assert_array_equal(gradient, clean_gradient)
  assert not gradient[~MASK].any()
  assert gradient.any()


@over_functions
def test_bfloat16_counts_are_exact(function):
  """bfloat16 ends at 256 when it counts, and rounds 40 000 to 39 936."""
  x = np.ones((40_000, 1), jnp.bfloat16)
  total, weight = jax.jit(function)(x, np.ones(x.shape, bool))
  # As Python numbers: beside a bfloat16, 40 000 would be rounded as well.
  assert float(weight) == 40_000
  assert float(total) == 40_000

"""The critic's loss and its metric."""

import functools

import jax
import numpy as np
import pytest

from grpo_jax.ops import values
from tests.ops import slopes

MASK = np.array([[True, True, True, False]])
NEW = np.float32([[1.1, 2.0, 2.0, 0.0]])
OLD = np.float32([[1.0, 1.0, 1.0, 0.0]])
RETURNS = np.float32([[3.0, 3.0, 0.0, 0.0]])


@functools.cache  # One program for each clip.
def _loss(clip):
  return lambda *arrays: values.value_loss(*arrays, MASK, clip)


def loss_and_slopes(clip, new=NEW, returns=RETURNS, old=OLD):
  """The loss of each slot, and the slopes of the sum in all three arrays."""
  return slopes.values_and_slopes(_loss(clip), new, returns, old)


def test_clipped_loss_by_hand():
  """Clip 0.5: inside; moved towards the return (pessimistic, no slope);
  moved away from it (the plain error, with its slope)."""
  loss, found = loss_and_slopes(0.5)
  np.testing.assert_allclose(
    loss, [[1.9**2 / 2, 1.5**2 / 2, 2.0**2 / 2, 0]], rtol=1e-6
  )
  np.testing.assert_allclose(found[0], [[-1.9, 0.0, 2.0, 0.0]], rtol=1e-6)


def test_plain_loss_by_hand():
  loss, found = loss_and_slopes(None)
  np.testing.assert_allclose(loss, [[1.805, 0.5, 2.0, 0.0]], rtol=1e-6)
  np.testing.assert_allclose(found[0], [[-1.9, -1.0, 2.0, 0.0]], rtol=1e-6)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e9])
def test_masked_garbage_and_constants_get_no_gradient(clip, garbage):
  loss, found = loss_and_slopes(clip)
  dirty, dirty_slopes = loss_and_slopes(
    clip, *(np.where(MASK, x, np.float32(garbage)) for x in (NEW, RETURNS, OLD))
  )
  np.testing.assert_array_equal(dirty, loss)
  np.testing.assert_array_equal(dirty_slopes[0], found[0])
  assert not np.any(dirty_slopes[1])
  assert not np.any(dirty_slopes[2])


explained_variance = jax.jit(values.explained_variance)


def test_explained_variance_by_hand():
  returns = np.array([[1.0, 3.0, 5.0, np.nan]])

  def explained(v):
    return np.asarray(explained_variance(np.array(v), returns, MASK))

  # Var(R) = 8/3; a constant offset does not count.
  assert explained([[1.0, 3.0, 5.0, np.nan]]) == 1
  np.testing.assert_allclose(explained([[0.0, 2.0, 4.0, 0.0]]), 1)
  np.testing.assert_allclose(explained([[7.0, 7.0, 7.0, 0.0]]), 0, atol=1e-6)
  # R − V = (0, 0, 3) of variance 2.
  np.testing.assert_allclose(
    explained([[1.0, 3.0, 2.0, 0.0]]), 1 - 2 / (8 / 3), rtol=1e-6
  )


def test_constant_returns_are_not_explained():
  constant = explained_variance(NEW, np.ones_like(NEW), MASK)
  nothing = explained_variance(NEW, RETURNS, np.zeros_like(MASK))
  np.testing.assert_array_equal([constant, nothing], 0)

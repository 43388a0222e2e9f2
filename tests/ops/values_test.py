"""The critic's loss and its metric."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import values

MASK = jnp.array([[True, True, True, False]])
NEW = jnp.array([[1.1, 2.0, 2.0, 0.0]])
OLD = jnp.array([[1.0, 1.0, 1.0, 0.0]])
RETURNS = jnp.array([[3.0, 3.0, 0.0, 0.0]])


def test_clipped_loss_by_hand():
  """Clip 0.5: inside; moved towards the return (pessimistic, no slope);
  moved away from it (the plain error, with its slope)."""

  def total(v):
    loss = values.value_loss(v, RETURNS, OLD, MASK, clip=0.5)
    return loss.sum(), loss

  slope, loss = jax.grad(total, has_aux=True)(NEW)
  np.testing.assert_allclose(
    loss, [[1.9**2 / 2, 1.5**2 / 2, 2.0**2 / 2, 0]], rtol=1e-6
  )
  np.testing.assert_allclose(slope, [[-1.9, 0.0, 2.0, 0.0]], rtol=1e-6)


def test_plain_loss_by_hand():
  slope, loss = jax.grad(
    lambda v: (
      values.value_loss(v, RETURNS, OLD, MASK).sum(),
      values.value_loss(v, RETURNS, OLD, MASK),
    ),
    has_aux=True,
  )(NEW)
  np.testing.assert_allclose(loss, [[1.805, 0.5, 2.0, 0.0]], rtol=1e-6)
  np.testing.assert_allclose(slope, [[-1.9, -1.0, 2.0, 0.0]], rtol=1e-6)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e9])
def test_masked_garbage_and_constants_get_no_gradient(clip, garbage):
  def both(*arrays):
    return jax.value_and_grad(
      lambda *xs: values.value_loss(*xs, MASK, clip).sum(), (0, 1, 2)
    )(*arrays)

  value, slopes = both(NEW, RETURNS, OLD)
  dirty, dirty_slopes = both(
    *(jnp.where(MASK, x, garbage) for x in (NEW, RETURNS, OLD))
  )
  assert dirty == value
  np.testing.assert_array_equal(dirty_slopes[0], slopes[0])
  assert not np.any(dirty_slopes[1])
  assert not np.any(dirty_slopes[2])


@pytest.mark.parametrize("clip", [None, 0.5])
def test_slopes_are_finite_differences(clip):
  with jax.enable_x64(True):
    new, old, returns = (jnp.asarray(x, float) for x in (NEW, OLD, RETURNS))

    def total(v):
      return values.value_loss(v, returns, old, MASK, clip).sum()

    slope = jax.grad(total)(new)
    for t in range(4):
      step = jnp.zeros_like(new).at[0, t].set(1e-6)
      np.testing.assert_allclose(
        slope[0, t], (total(new + step) - total(new - step)) / 2e-6, atol=1e-8
      )


def test_explained_variance_by_hand():
  returns = jnp.array([[1.0, 3.0, 5.0, jnp.nan]])

  def explained(v):
    return values.explained_variance(jnp.asarray(v), returns, MASK)

  # Var(R) = 8/3; a constant offset does not count.
  assert explained([[1.0, 3.0, 5.0, jnp.nan]]) == 1
  np.testing.assert_allclose(explained([[0.0, 2.0, 4.0, 0.0]]), 1)
  np.testing.assert_allclose(explained([[7.0, 7.0, 7.0, 0.0]]), 0, atol=1e-6)
  # R − V = (0, 0, 3) of variance 2.
  np.testing.assert_allclose(
    explained([[1.0, 3.0, 2.0, 0.0]]), 1 - 2 / (8 / 3), rtol=1e-6
  )


def test_constant_returns_are_not_explained():
  ones = jnp.ones((1, 4))
  assert values.explained_variance(NEW, ones, MASK) == 0
  assert values.explained_variance(NEW, RETURNS, jnp.zeros_like(MASK)) == 0

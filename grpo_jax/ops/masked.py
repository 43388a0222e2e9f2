"""Sums and means over the True entries of a mask; masked slots never leak.

Masking uses `jnp.where`: a product with zero would keep a NaN.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def select(x: jax.Array, mask: jax.Array) -> jax.Array:
  """Returns `x` where `mask`, else exactly 0, with zero gradient there."""
  return jnp.where(mask, x, jnp.zeros((), x.dtype))


def sum(x: jax.Array, mask: jax.Array, axis: int | None = None) -> jax.Array:
  """Sum of `x` over True entries; 0 where there are none."""
  return jnp.sum(select(x, mask), axis=axis)


def mean(x: jax.Array, mask: jax.Array, axis: int | None = None) -> jax.Array:
  """Mean of `x` over True entries; 0 where there are none."""
  count = jnp.sum(mask, axis=axis)
  return sum(x, mask, axis) / jnp.maximum(count, 1)


def maximum(x: jax.Array, mask: jax.Array) -> jax.Array:
  """Largest `x` over True entries; 0 where there are none."""
  largest = jnp.max(jnp.where(mask, x, -jnp.inf))
  return jnp.where(jnp.any(mask), largest, 0.0)

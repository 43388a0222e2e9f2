"""Sums and means over the True entries of a mask; masked slots never leak.

Masking uses `jnp.where`: a product with zero would keep a NaN.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from grpo_jax.types import PyTree

_VARIANCE_EPS = 1e-8


def wide(x: PyTree) -> PyTree:
  """Converts an array, or a tree of arrays, to at least float32.

  bfloat16 has three digits: sums, counts and norms would be off by parts per
  mille, and a sum of 256 equal terms would stop growing.
  """
  return jax.tree.map(
    lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), x
  )


def select(x: jax.Array, mask: jax.Array) -> jax.Array:
  """Returns `x` where `mask` is True, else exactly 0 with zero gradient."""
  return jnp.where(mask, x, 0)


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


def whiten(
  x: jax.Array,
  mask: jax.Array,  # bool, shape of x
  by_rows: bool = False,
) -> jax.Array:  # shape of x
  """Whitens x over True entries: (x − mean) / √(variance + 1e-8); a constant.

  The variance is the sample's, as in verl and TRL.

  Args:
    x: Numbers of any shape, for example the advantages [B, T] of a batch.
    mask: True on entries that count.
    by_rows: True if rows, and not entries, have equal weights in mean and
      variance; the last axis is then that of a row.

  Returns:
    Mean 0 and variance 1 over the True entries, 0 elsewhere. Exactly 0 if all
    True entries are equal, also if there is one entry or none.
  """
  x = wide(x)
  # Equal numbers: their float32 mean may be one unit in the last place off,
  # and √1e-8 is small enough to show it.
  live = jnp.max(jnp.where(mask, x, -jnp.inf)) > jnp.min(
    jnp.where(mask, x, jnp.inf)
  )
  if by_rows:
    present = jnp.any(mask, axis=-1)
    middle = mean(mean(x, mask, axis=-1), present)
    squares = mean(jnp.square(select(x - middle, mask)), mask, axis=-1)
    count = jnp.sum(present)
  else:
    middle = mean(x, mask)
    squares = jnp.square(select(x - middle, mask))
    count = jnp.sum(mask)
  centered = select(x - middle, mask)
  variance = jnp.sum(squares) / jnp.maximum(count - 1, 1)
  return jax.lax.stop_gradient(
    select(centered * jax.lax.rsqrt(variance + _VARIANCE_EPS), live)
  )

"""Whole numbers of hundreds of digits, exactly, in rows of int32.

A number is a row of limbs, three decimal digits each, the least significant
first: 1234567 is [567, 234, 1, 0, …]. Base 1000 is as large as a product of
two numbers of 256 digits allows: 86 products of 999 · 999 are less than 2^31.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

_BASE = 1000


def constant(value: int, size: int) -> np.ndarray | None:  # [size] int32
  """The limbs of a number that the host knows; None if they do not suffice."""
  limbs = np.zeros(size, np.int32)
  for k in range(size):
    value, limbs[k] = divmod(value, _BASE)
  return None if value else limbs


def read(
  data: jax.Array,  # [B, W] int32, 0 to 9 where `mask` is True
  mask: jax.Array,  # [B, W] bool
  shift: jax.Array,  # [B] int32
  size: int,
) -> jax.Array:  # [B, size] int32
  """The number whose digits stand where `mask` is True, times 10^shift.

  What does not fit is lost: choose `size` for it.
  """
  from_right = jnp.cumsum(mask, axis=1, dtype=jnp.int32)
  # Of the last digit the rank is `shift`.
  rank = shift[:, None] + from_right[:, -1:] - from_right
  value = data * jnp.array([1, 10, 100], jnp.int32)[rank % 3]
  limb = jnp.where(mask, rank // 3, size)  # Beyond the end it is dropped.
  row = jnp.arange(len(data))[:, None]
  limbs = jnp.zeros((len(data), size), jnp.int32)
  return limbs.at[row, limb].add(value, mode="drop")


def padded(limbs: jax.Array, size: int) -> jax.Array:  # [B, n] -> [B, size]
  """Adds limbs of zero to a number, or takes its last limbs away."""
  missing = size - limbs.shape[1]
  return jnp.pad(limbs, ((0, 0), (0, max(missing, 0))))[:, :size]


def product(one: jax.Array, other: jax.Array) -> jax.Array:
  """[B, n] · [B, size] -> [B, size], with carries still to be made.

  Both need limbs below 1000; the shorter should be the first. What does not
  fit is lost.
  """

  def step(total: jax.Array, limb: jax.Array) -> tuple[jax.Array, None]:
    total = jnp.pad(total[:, :-1], ((0, 0), (1, 0)))
    return total + limb[:, None] * other, None

  total, _ = jax.lax.scan(step, jnp.zeros_like(other), one.T, reverse=True)
  return total


def carried(limbs: jax.Array) -> jax.Array:  # [B, size] -> [B, size]
  """Carries, so that the limbs of a non-negative number are below 1000."""

  def step(carry: jax.Array, limb: jax.Array) -> tuple[jax.Array, jax.Array]:
    total = limb + carry
    return total // _BASE, total % _BASE

  zero = jnp.zeros_like(limbs[:, 0])
  return jax.lax.scan(step, zero, limbs.T)[1].T


def sign(limbs: jax.Array) -> jax.Array:  # [..., size] -> [...] int32
  """-1, 0 or 1; of limbs of either sign, with carries still to be made."""

  def step(
    state: tuple[jax.Array, jax.Array], limb: jax.Array
  ) -> tuple[tuple[jax.Array, jax.Array], None]:
    carry, some = state
    total = limb + carry
    return (total // _BASE, some | (total % _BASE != 0)), None

  zero = jnp.zeros_like(limbs[..., 0])
  state = (zero, zero != 0)
  (carry, some), _ = jax.lax.scan(step, state, jnp.moveaxis(limbs, -1, 0))
  # What is left to carry is -1 for a small negative number: 999, 999, … - 1.
  return jnp.where(carry < 0, -1, (some | (carry > 0)).astype(jnp.int32))

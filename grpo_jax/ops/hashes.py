"""Numbers by which rows of tokens are told apart."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def identity(
  tokens: jax.Array,  # [N, L] int
  mask: jax.Array,  # [N, L] bool
) -> jax.Array:  # [N] uint32
  """A number of each row of tokens, wherever in the row they stand.

  Equal rows have equal numbers; others have the same one by accident, one pair
  in 2^32.
  """
  chex.assert_rank([tokens, mask], 2)
  chex.assert_equal_shape([tokens, mask])
  place = jnp.cumsum(mask, axis=-1).astype(jnp.uint32)
  mixed_tokens = mixed(tokens.astype(jnp.uint32) ^ mixed(place))
  return mixed(jnp.where(mask, mixed_tokens, 0).sum(axis=-1, dtype=jnp.uint32))


def mixed(x: jax.Array) -> jax.Array:  # uint32
  """A number of which each bit depends on all bits of x.

  Source: the last step of MurmurHash3, by Austin Appleby.
  """
  for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
    x = (x ^ (x >> shift)) * jnp.uint32(factor)
  return x ^ (x >> 16)

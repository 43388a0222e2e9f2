"""Hashes of rows of tokens."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def identity(
  tokens: jax.Array,  # [N, L] int
  mask: jax.Array,  # [N, L] bool
) -> jax.Array:  # [N] uint32
  """A hash of each row of tokens that does not depend on padding.

  Equal rows have equal hashes; of different rows, one pair in 2^32 has the same
  hash by accident.
  """
  chex.assert_rank([tokens, mask], 2)
  chex.assert_equal_shape([tokens, mask])
  place = jnp.cumsum(mask, axis=-1).astype(jnp.uint32)
  mixed_tokens = mixed(tokens.astype(jnp.uint32) ^ mixed(place))
  return mixed(jnp.where(mask, mixed_tokens, 0).sum(axis=-1, dtype=jnp.uint32))


def mixed(x: jax.Array) -> jax.Array:  # uint32
  """Mixes bits: each bit of the result depends on all bits of x.

  Source: the last step of MurmurHash3, by Austin Appleby.
  """
  for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
    x = (x ^ (x >> shift)) * jnp.uint32(factor)
  return x ^ (x >> 16)

"""Additions to the reward that depend on length."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def soft_overlong(
  lengths: jax.Array,  # [B] int, tokens
  max_length: int,
  cache_length: int,
) -> jax.Array:  # [B]
  """Penalty that grows over the last `cache_length` tokens of the budget.

      0                          n ≤ L_max − L_cache
      (L_max − L_cache − n) / L_cache    up to L_max
      −1                         n > L_max

  Source: Yu et al., "DAPO", arXiv:2503.14476, Eq. 13.
  """
  expected = max_length - cache_length
  return jnp.clip((expected - lengths) / cache_length, -1.0, 0.0)

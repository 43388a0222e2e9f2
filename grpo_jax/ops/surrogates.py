"""Surrogate objectives of a ratio and an advantage (to be maximised)."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def _advantages_like(advantages: jax.Array, x: jax.Array) -> jax.Array:
  """Advantages [B] or [B, T], constant, shaped to broadcast with `x`."""
  if advantages.ndim > x.ndim:
    raise ValueError(
      f"surrogates: advantages of rank {advantages.ndim} cannot weigh a"
      f" ratio of rank {x.ndim}; a sequence-level ratio needs one advantage"
      " per completion [B]."
    )
  if advantages.ndim < x.ndim:
    advantages = advantages[..., None]
  return jax.lax.stop_gradient(advantages)


def clipped(
  ratio: jax.Array,  # [B] or [B, T]
  advantages: jax.Array,  # [B] or [B, T]
  clip_low: float,
  clip_high: float,
) -> jax.Array:  # shape of ratio
  """Pessimistic clipped surrogate.

      min( r A, clip(r, 1 − ε_low, 1 + ε_high) A )

  Args:
    ratio: Importance ratios, positive.
    advantages: Constants; one per completion or per token.
    clip_low: Width of the range below 1, ≥ 0.
    clip_high: Width of the range above 1, ≥ 0.

  Returns:
    The surrogate, not aggregated. Its gradient is A ∂r inside the range, and
    0 where A > 0 and r > 1 + ε_high or A < 0 and r < 1 − ε_low.

  Source: Schulman et al., arXiv:1707.06347, Eq. 7; separate widths: Yu et
  al., "DAPO", arXiv:2503.14476, Eq. 10.
  """
  advantages = _advantages_like(advantages, ratio)
  low, high = 1.0 - clip_low, 1.0 + clip_high
  # `where` and not `jnp.clip`: at r = 1 with ε = 0 the clip's own gradient is
  # split between its bounds; here the inside keeps slope 1.
  inside = jnp.where(ratio < low, low, jnp.where(ratio > high, high, ratio))
  return jnp.minimum(ratio * advantages, inside * advantages)


def reinforce(
  logp: jax.Array,  # [B, T]
  advantages: jax.Array,  # [B] or [B, T]
) -> jax.Array:  # [B, T]
  """Score-function surrogate A log π; its gradient is A ∇ log π.

  Source: Williams, "Simple statistical gradient-following algorithms for
  connectionist reinforcement learning", Machine Learning 8, 1992.
  """
  return _advantages_like(advantages, logp) * logp

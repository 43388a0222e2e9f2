"""How per-token or per-completion losses become one number.

Whether tokens or completions are averaged is the whole difference between
several papers. Each function returns `Weighted(total, weight)` and not a
quotient: totals add up across micro-batches and devices and are divided once
by the summed weight, so gradients do not depend on how rows were split. A
weight depends on the mask only. Completions without a trained token count
nowhere.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from grpo_jax.ops import masked
from grpo_jax.types import Weighted


def over_tokens(x: jax.Array, mask: jax.Array) -> Weighted:  # [B(, T)], [B, T]
  """Every token counts equally, so long completions count more (DAPO)."""
  x = masked.wide(x)
  if x.ndim == 1:
    x = x[:, None]
  return Weighted(masked.sum(x, mask), _count(mask, x.dtype))


def over_sequences(x: jax.Array, mask: jax.Array) -> Weighted:  # [B(, T)]
  """Every completion counts equally; its tokens share it (GRPO, GSPO)."""
  x = masked.wide(x)
  per_sequence = x if x.ndim == 1 else masked.mean(x, mask, axis=-1)  # [B]
  present = mask.any(axis=-1)
  return Weighted(masked.sum(per_sequence, present), _count(present, x.dtype))


def over_sequence_sums(x: jax.Array, mask: jax.Array) -> Weighted:  # [B(, T)]
  """Mean over completions of the sum over their tokens (REINFORCE)."""
  x = masked.wide(x)
  present = mask.any(axis=-1)
  total = masked.sum(x, present if x.ndim == 1 else mask)
  return Weighted(total, _count(present, x.dtype))


def over_budget(x: jax.Array, mask: jax.Array) -> Weighted:  # [B(, T)], [B, T]
  """Sum over tokens divided by completions × T, the budget (Dr. GRPO)."""
  total, weight = over_sequence_sums(x, mask)
  return Weighted(total, weight * mask.shape[-1])


def _count(mask: jax.Array, dtype: jnp.dtype) -> jax.Array:
  return mask.sum(dtype=jnp.int32).astype(dtype)

"""Aggregation of per-token or per-completion losses into one number.

Several papers differ only in the average: over tokens or over completions. Each
function returns `Weighted(total, weight)` and not a quotient. Totals add up
across micro-batches and devices and are divided once by the summed weight, so
gradients do not depend on the split of rows. A weight depends on the mask only.
Completions without a trained token do not count, unless `count_empty` is True:
then they count among the completions, as in TRL.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from grpo_jax.ops import masked
from grpo_jax.types import Maximum, Weighted


def over_tokens(x: jax.Array, mask: jax.Array) -> Weighted:  # [B(, T)], [B, T]
  """Mean over tokens, so long completions count more (DAPO)."""
  x = masked.wide(x)
  if x.ndim == 1:
    x = x[:, None]
  return Weighted(masked.sum(x, mask), _count(mask, x.dtype))


def over_sequences(
  x: jax.Array,  # [B(, T)]
  mask: jax.Array,  # [B, T]
  count_empty: bool = False,
) -> Weighted:
  """Mean over completions of the mean over their tokens (GRPO, GSPO)."""
  x = masked.wide(x)
  per_sequence = x if x.ndim == 1 else masked.mean(x, mask, axis=-1)  # [B]
  present = mask.any(axis=-1)
  counted = present | count_empty
  return Weighted(masked.sum(per_sequence, present), _count(counted, x.dtype))


def over_sequence_sums(
  x: jax.Array,  # [B(, T)]
  mask: jax.Array,  # [B, T]
  count_empty: bool = False,
) -> Weighted:
  """Mean over completions of the sum over their tokens (REINFORCE)."""
  x = masked.wide(x)
  present = mask.any(axis=-1)
  total = masked.sum(x, present if x.ndim == 1 else mask)
  return Weighted(total, _count(present | count_empty, x.dtype))


def over_budget(
  x: jax.Array,  # [B(, T)]
  mask: jax.Array,  # [B, T]
  count_empty: bool = False,
) -> Weighted:
  """Sum over tokens divided by completions × T, the budget (Dr. GRPO)."""
  total, weight = over_sequence_sums(x, mask, count_empty)
  return Weighted(total, weight * mask.shape[-1])


def combined(
  x: Weighted | Maximum, y: Weighted | Maximum
) -> Weighted | Maximum:
  """Combines the metric of two parts: sums of means, or the larger maximum."""
  if isinstance(x, Maximum):
    return jax.tree.map(jnp.maximum, x, y)
  return jax.tree.map(lambda x, y: x + y.astype(x.dtype), x, y)


def equal_weights(
  mask: jax.Array,  # [B, T] bool
  unit: jax.Array,  # [B] int
  num_units: int,
) -> jax.Array:  # [B, 1]
  """Weights that turn a mean over tokens into a mean over units of rows.

  For example, the tokens of two groups with 10 and 30 trained tokens weigh 2
  and 2/3: each group then has half of the loss.

  Args:
    mask: Trained tokens.
    unit: The group, context or rollout that a row belongs to, in
      [0, num_units).
    num_units: Static.

  Returns:
    (mean tokens per unit that has any) / (tokens of the row's unit, at least
    1).
  """
  tokens = jax.ops.segment_sum(mask.sum(axis=-1), unit, num_units)  # [units]
  mean = tokens.sum() / jnp.maximum((tokens > 0).sum(), 1)
  return (mean / jnp.maximum(tokens, 1))[unit][:, None]


def _count(mask: jax.Array, dtype: jnp.dtype) -> jax.Array:
  return mask.sum(dtype=jnp.int32).astype(dtype)

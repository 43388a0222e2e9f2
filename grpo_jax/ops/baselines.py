"""Advantages of completions relative to the group that shares a prompt.

Groups are named by `group_id`, in any order and of any size. Rows that are
not `valid` were not scored: they enter no statistic and get advantage 0. A
group whose rewards are all equal carries no signal and gets exactly 0: the
float32 mean of equal numbers can be one unit in the last place off, which
divided by eps = 1e-6 would be visible.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import masked


class GroupStatistics(NamedTuple):
  """Statistics of the valid rewards of each group."""

  num_valid: jax.Array  # [num_groups]
  mean: jax.Array  # [num_groups]
  variance: jax.Array  # [num_groups], ddof as asked; 0 below ddof + 1 rows
  least: jax.Array  # [num_groups], +inf where empty
  greatest: jax.Array  # [num_groups], -inf where empty


def group_statistics(
  rewards: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  ddof: int = 1,
) -> GroupStatistics:
  """Count, mean, variance and range of each group's valid rewards."""
  chex.assert_rank([rewards, valid, group_id], 1)
  chex.assert_equal_shape([rewards, valid, group_id])
  kept = masked.select(rewards, valid)

  def total(x):
    return jax.ops.segment_sum(x, group_id, num_groups)

  count = total(valid.astype(kept.dtype))
  mean = total(kept) / jnp.maximum(count, 1)
  deviation = masked.select(kept - mean[group_id], valid)
  variance = total(jnp.square(deviation)) / jnp.maximum(count - ddof, 1)
  return GroupStatistics(
    num_valid=count,
    mean=mean,
    variance=variance,
    least=jax.ops.segment_min(
      jnp.where(valid, kept, jnp.inf), group_id, num_groups
    ),
    greatest=jax.ops.segment_max(
      jnp.where(valid, kept, -jnp.inf), group_id, num_groups
    ),
  )


def live_groups(
  rewards: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
) -> jax.Array:  # [num_groups] bool
  """True for groups whose valid rewards are not all equal."""
  statistics = group_statistics(rewards, valid, group_id, num_groups)
  return statistics.greatest > statistics.least


def group_centered(
  rewards: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
) -> jax.Array:  # [B]
  """A_i = R_i − mean of the group; 0 for invalid rows and equal rewards.

  Source: Liu et al., "Understanding R1-Zero-Like Training" (Dr. GRPO),
  arXiv:2503.20783, Section 3.2.
  """
  statistics = group_statistics(rewards, valid, group_id, num_groups)
  live = statistics.greatest > statistics.least
  centered = masked.select(rewards, valid) - statistics.mean[group_id]
  return jax.lax.stop_gradient(masked.select(centered, valid & live[group_id]))


def group_standardized(
  rewards: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  ddof: int = 1,
  eps: float = 1e-6,
) -> jax.Array:  # [B]
  """A_i = (R_i − mean of the group) / (std of the group + eps).

  Args:
    rewards: Scalar reward of each completion.
    valid: Rows that were scored.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.
    ddof: 1 for the sample deviation (TRL, verl), 0 for the population's; the
      paper does not say which.
    eps: Added to the deviation.

  Returns:
    Advantages; 0 for invalid rows, equal rewards and groups of one.

  Source: Shao et al., "DeepSeekMath", arXiv:2402.03300, Section 4.1.2.
  """
  statistics = group_statistics(rewards, valid, group_id, num_groups, ddof)
  scale = jnp.sqrt(statistics.variance) + eps
  centered = group_centered(rewards, valid, group_id, num_groups)
  return jax.lax.stop_gradient(centered / scale[group_id])

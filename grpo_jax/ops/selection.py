"""Selection of the completions of a group to train on, and a value memory.

`group_id` names the groups, as in `baselines.py`, and rows that are not `valid`
are never chosen.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import baselines, masked


def most_varied(
  rewards: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  num_kept: int,
) -> jax.Array:  # [B] bool
  """The k rows of each group whose rewards vary most.

      S_g = argmax_{|S| = k} Var(R_S)

  A set of the greatest variance has the s least and the k − s greatest rewards,
  for some s. So k + 1 sets are compared and not all of them.

  Args:
    rewards: Scalar reward of each completion.
    valid: Rows that were scored.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.
    num_kept: k; static. Groups with fewer valid rows keep all of them.

  Returns:
    True on the kept rows. Of equal rewards the first rows count as the least.
    Of sets whose variances differ by round-off, the one with the fewest of the
    least rewards is kept.

  Source: Xu et al., "Not All Rollouts are Useful" (PODS), arXiv:2504.13818,
  max-variance down-sampling.
  """
  chex.assert_rank([rewards, valid, group_id], 1)
  chex.assert_equal_shape([rewards, valid, group_id])
  rewards = masked.wide(masked.select(rewards, valid))
  rank = baselines.rank_in_group(rewards, valid, group_id)  # [B]
  count = jax.ops.segment_sum(valid.astype(jnp.int32), group_id, num_groups)
  from_top = count[group_id] - 1 - rank  # [B]

  def subset(num_least):  # [] int32 -> [B] bool
    return valid & ((rank < num_least) | (from_top < num_kept - num_least))

  def variance(num_least):  # [num_groups]
    return baselines.group_statistics(
      rewards, subset(num_least), group_id, num_groups, ddof=0
    ).variance

  splits = jnp.arange(num_kept + 1)
  variances = jax.vmap(variance)(splits)  # [k + 1, num_groups]
  # Sets that mirror each other have equal variances up to round-off, which
  # differs between devices.
  greatest = variances.max(axis=0) * (1 - 1e-5)
  best = jnp.argmax(variances >= greatest, axis=0)  # [num_groups]
  return subset(best[group_id])


class Memory(NamedTuple):
  """The last values of a stream, the newest in the place of the oldest."""

  values: jax.Array  # [size]
  num_seen: jax.Array  # [] int32, of all


def empty_memory(size: int) -> Memory:
  """A memory of at most `size` values."""
  return Memory(jnp.zeros(size), jnp.zeros((), jnp.int32))


def remember(
  memory: Memory,
  x: jax.Array,  # [P]
  present: jax.Array,  # [P] bool
) -> Memory:
  """Adds values to a memory.

  Args:
    memory: The memory before.
    x: Values in the order in which they come.
    present: True on values that count.
  """
  chex.assert_rank([x, present], 1)
  size = len(memory.values)
  place = jnp.cumsum(present) - 1  # [P], among those that are present
  total = present.sum(dtype=jnp.int32)
  # Two values for one place would be written in an unspecified order.
  lasting = present & (place >= total - size)
  slot = jnp.where(lasting, (memory.num_seen + place) % size, size)
  values = memory.values.at[slot].set(
    x.astype(memory.values.dtype), mode="drop"
  )
  return Memory(values, memory.num_seen + total)


def quantiles(memory: Memory, shares: jax.Array) -> jax.Array:  # [K] -> [K]
  """Quantiles of a memory, as `numpy.quantile`; NaN of an empty memory."""
  is_filled = jnp.arange(len(memory.values)) < memory.num_seen
  return jnp.nanquantile(jnp.where(is_filled, memory.values, jnp.nan), shares)

"""The influence of each prompt on updates, and bounds of that influence.

The content identifies a prompt: two records with the same tokens are one
prompt, so copies of a record share one allowance.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

# An equal share of the prompts with influence, times this, is allowed whatever
# the cap: of three prompts one has at least a third. Without this slack the
# first steps, or a task with few live groups, would be scaled to 0.
SLACK = 2.0
_MAX_STEPS = 64  # Steps of the solver: one for each kink, mostly two.
_TOLERANCE = 1e-6  # Relative tolerance of the fixed point.


def fingerprint(
  values: jax.Array,  # [N, K] int or uint32
) -> jax.Array:  # [N] uint32
  """A hash of each row; never 0.

      h = mix(Σ_k mix(v_k + mix(k + 1)))      mod 2³²

  where mix is the finaliser of MurmurHash3. Of n different rows, two share a
  hash with a probability of about n² / 2³³.
  """
  chex.assert_rank(values, 2)
  places = _mix(jnp.arange(1, values.shape[1] + 1, dtype=jnp.uint32))  # [K]
  mixed = _mix(values.astype(jnp.uint32) + places)
  digest = _mix(mixed.sum(axis=-1, dtype=jnp.uint32))
  return jnp.where(digest == 0, jnp.uint32(1), digest)


def _mix(x: jax.Array) -> jax.Array:  # uint32
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)


def of_groups(
  advantages: jax.Array,  # [B] or [B, T]
  mask: jax.Array,  # [B, T] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
) -> jax.Array:  # [num_groups]
  """The influence of the rows of each group on a step.

  I_x = Σ_i Σ_t |A_it| m_it   (|A_i| n_i for advantages of rows)
  """
  chex.assert_rank(mask, 2)
  size = jnp.abs(advantages)
  size = size if size.ndim == 2 else size[:, None]
  rows = jnp.where(mask, size, 0.0).sum(axis=-1)  # [B]
  return jax.ops.segment_sum(rows, group_id, num_groups)


class Capped(NamedTuple):
  """The result of a cap on the groups of a step.

  Attributes:
    scale: Factor of the rows of each group, in [0, 1].
    share: Share of the group's prompt in the window, before scaling.
    cap: The cap that was applied.
  """

  scale: jax.Array  # [P]
  share: jax.Array  # [P]
  cap: jax.Array  # []


def capped(
  keys: jax.Array,  # [P] uint32
  influence: jax.Array,  # [P]
  past_keys: jax.Array,  # [W, P] uint32
  past_influence: jax.Array,  # [W, P]
  cap: float,
) -> Capped:
  """Scales prompts whose share of the influence in a window is too large.

  With the influence b_x of prompt x in the steps before and I_x in this one,
  the scales s_x ∈ [0, 1] solve

      b_x + s_x I_x ≤ c T   where s_x < 1 and s_x > 0
      T = Σ_y b_y + s_y I_y,    c = max(cap, SLACK / |{y: b_y + I_y > 0}|) ≤ 1

  so that no prompt of this step has more than the share c of the scaled total,
  unless it had more before (then s_x = 0). Other prompts do not change at all.

  Args:
    keys: Prompt of each group of the step; several groups may have the same.
    influence: The influence of each group.
    past_keys, past_influence: Keys and scaled influence of the steps before.
      Entries without influence count as empty.
    cap: In (0, 1].
  """
  chex.assert_rank([keys, influence], 1)
  chex.assert_rank([past_keys, past_influence], 2)
  size = len(keys)
  every = jnp.concatenate([keys, past_keys.reshape(-1)])
  _, owner = jnp.unique(every, return_inverse=True, size=every.size)

  def per_prompt(x, owner):  # [number of entries]
    return jax.ops.segment_sum(x, owner, every.size)

  now = per_prompt(influence, owner[:size])
  past = per_prompt(past_influence.reshape(-1), owner[size:])
  live = (now + past > 0).sum()
  equal = SLACK / jnp.maximum(live, 1)
  limit = jnp.clip(equal, cap, 1.0).astype(now.dtype)
  total = _fixed_point(past, now, limit)
  room = jnp.maximum(limit * total - past, 0.0)
  is_over = (now > room) & (limit < 1)
  scale = jnp.where(is_over, room / jnp.where(is_over, now, 1.0), 1.0)
  before = jnp.maximum((now + past).sum(), jnp.finfo(now.dtype).tiny)
  return Capped(
    scale=scale[owner[:size]],
    share=((now + past) / before)[owner[:size]],
    cap=limit,
  )


def _fixed_point(
  past: jax.Array,  # [n]
  now: jax.Array,  # [n]
  limit: jax.Array,  # []
) -> jax.Array:  # []
  """The total influence T = Σ_y b_y + clip(c T − b_y, 0, I_y), from above.

  A step solves the equation of the line on which T lies. If that would pass the
  solution, it takes a step of the plain iteration instead, which never does.
  """

  def rise(total):
    room = limit * total - past
    return past.sum() + jnp.clip(room, 0.0, now).sum()

  def advance(carry):
    total, _, count = carry
    room = limit * total - past
    on_line = (room > 0) & (room < now)
    slope = jnp.minimum(limit * on_line.sum(), 1 - _TOLERANCE)
    plain = rise(total)
    jump = total + (plain - total) / (1 - slope)
    following = jnp.where(rise(jump) > jump * (1 + _TOLERANCE), plain, jump)
    following = jnp.maximum(following, 0.0)
    return following, total, count + 1

  def is_moving(carry):
    total, previous, count = carry
    return (count < _MAX_STEPS) & (previous - total > _TOLERANCE * total)

  start = (past + now).sum()
  total, _, _ = jax.lax.while_loop(
    is_moving, advance, (start, start * 2 + 1, jnp.int32(0))
  )
  return total

"""Actions: the trained tokens of a row that are in the same turn.

Rows with several turns have several actions, with observations between them.
Two actions of a row are in different turns. Sums over an action are associative
scans: the device does not choose the order of additions.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import masked, ratios, returns


def first(
  turn: jax.Array,  # [B, T] int32
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T] bool
  """True on the first token of each action."""
  chex.assert_rank([turn, mask], 2)
  chex.assert_equal_shape([turn, mask])
  # The last token of an action before each token, if there is one.
  slots = jnp.arange(mask.shape[1])
  last = jax.lax.cummax(jnp.where(mask, slots, -1), axis=1)
  last = jnp.pad(last[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
  before = jnp.take_along_axis(turn, jnp.maximum(last, 0), axis=1)
  return mask & ~((last >= 0) & (before == turn))


def spread(
  x: jax.Array,  # [B, T]
  turn: jax.Array,  # [B, T] int32
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T]
  """Copies x at the first token of an action to all its tokens; 0 if masked."""
  slots = jnp.arange(mask.shape[1])
  start = jax.lax.cummax(jnp.where(first(turn, mask), slots, 0), axis=1)
  return masked.select(jnp.take_along_axis(x, start, axis=1), mask)


def total(
  x: jax.Array,  # [B, T]
  turn: jax.Array,  # [B, T] int32
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T]
  """The sum of x over each token's action; 0 where masked."""
  continues = ~jnp.pad(first(turn, mask)[:, 1:], ((0, 0), (0, 1)))
  x = masked.select(x, mask)
  return spread(returns.recurrence(x, continues.astype(x.dtype)), turn, mask)


def lengths(
  turn: jax.Array,  # [B, T] int32
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T] float32
  """The number of tokens of each token's action; 1 where masked."""
  return jnp.maximum(total(mask.astype(jnp.float32), turn, mask), 1.0)


def ratio(
  logp: jax.Array,  # [B, T]
  old_logp: jax.Array,  # [B, T]
  turn: jax.Array,  # [B, T] int32
  mask: jax.Array,  # [B, T] bool
  clamp: float | None = 20.0,
) -> jax.Array:  # [B, T]
  """The length-normalised importance ratio of each action, at all its tokens.

      ρ_τ = exp( (1 / |a_τ|) Σ_{t in a_τ} [ log π_θ − log π_old ] )

  Args:
    logp: Log-probabilities under the policy being trained, nats.
    old_logp: Log-probabilities at the start of the update, nats.
    turn: Turn of each token.
    mask: True on trained tokens.
    clamp: Largest |log ρ|, nats; None for no clamp.

  Returns:
    Positive ratios; 1.0 where masked.

  Source: "GAGPO", arXiv:2605.13217.
  """
  difference = ratios.log_ratio(logp, old_logp, mask)
  mean = total(difference, turn, mask) / lengths(turn, mask)
  return ratios.exp_clamped(mean, clamp)


def grouped_state_advantages(
  turn_rewards: jax.Array,  # [B, T]
  turn: jax.Array,  # [B, T] int32
  state_id: jax.Array,  # [B, T] int32
  mask: jax.Array,  # [B, T] bool
  group_id: jax.Array,  # [B] int32
  num_groups: int,
  gamma: float | jax.Array,
  lam: float | jax.Array,
) -> jax.Array:  # [B, T]
  """Generalised advantages of actions, with visited states as the critic.

      G_τ = r_τ + γ G_{τ+1},   V(s) = mean of G over all visits of s in a group
      δ_τ = r_τ + γ V(s_{τ+1}) − V(s_τ),   A_τ = δ_τ + γ λ A_{τ+1}

  V is 0 after the last action of a row, whether the episode ended there or was
  cut off.

  Args:
    turn_rewards: Rewards of an action, at any of its tokens.
    turn: Turn of each token.
    state_id: State before the action of each token.
    mask: True on trained tokens.
    group_id: Group of each row, in [0, num_groups): rows in which states with
      equal numbers are the same.
    num_groups: Static.
    gamma: Discount per turn, in [0, 1].
    lam: λ in [0, 1], per turn.

  Returns:
    The advantage of an action, not normalised, at its first token; 0 elsewhere.

  Source: "GAGPO", arXiv:2605.13217, Section 3.
  """
  starts = first(turn, mask)
  rewards = _of_actions(turn_rewards, turn, mask)
  values = _means_of_equal(
    _over_actions(rewards, starts, gamma), group_id, state_id, starts
  )
  beyond = jnp.zeros(len(mask), values.dtype)
  errors = rewards + gamma * returns.successor(values, starts, beyond) - values
  # A rounding error is not an advantage: it would be standardised like one.
  size = jnp.maximum(jnp.abs(values), jnp.abs(rewards)).max(axis=-1)  # [B]
  largest = jax.ops.segment_max(size, group_id, num_groups)[group_id]
  errors = jnp.where(jnp.abs(errors) > 1e-5 * largest[:, None], errors, 0.0)
  advantages = _over_actions(masked.select(errors, starts), starts, gamma * lam)
  return jax.lax.stop_gradient(masked.select(advantages, starts))


def returns_to_go(
  turn_rewards: jax.Array,  # [B, T]
  turn: jax.Array,  # [B, T] int32
  mask: jax.Array,  # [B, T] bool
  gamma: float | jax.Array,
) -> jax.Array:  # [B, T]
  """Returns G_τ = r_τ + γ G_{τ+1} of actions, at first tokens; 0 elsewhere.

  Args:
    turn_rewards: Rewards of an action, at any of its tokens.
    turn: Turn of each token.
    mask: True on trained tokens.
    gamma: Discount per turn, in [0, 1].
  """
  starts = first(turn, mask)
  rewards = _of_actions(turn_rewards, turn, mask)
  totals = _over_actions(rewards, starts, gamma)
  return jax.lax.stop_gradient(masked.select(totals, starts))


def anchors(
  state_id: jax.Array,  # [B, T] int32
  mask: jax.Array,  # [B, T] bool
  group_id: jax.Array,  # [B] int32
) -> jax.Array:  # [B, T] int32
  """A number in [0, B T) for each pair (group, state in the group).

  Args:
    state_id: State before the action of each token, compared within a group.
    mask: True on slots with a state; other slots have other numbers.
    group_id: Group of each row.

  Source: "GiGPO", arXiv:2505.10978, Eq. 6: anchor states.
  """
  kinds = [
    y.ravel() for y in jnp.broadcast_arrays(state_id, group_id[:, None], ~mask)
  ]
  order = jnp.lexsort(kinds)  # Masked slots come last.
  new = jnp.zeros(order.shape, bool)
  for y in kinds:
    new = new.at[1:].max(y[order][1:] != y[order][:-1])
  kind = jnp.zeros_like(order).at[order].set(jnp.cumsum(new))
  return kind.reshape(mask.shape)


def _of_actions(
  turn_rewards: jax.Array,  # [B, T]
  turn: jax.Array,  # [B, T] int32
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T]
  """The reward of each action at its first token, 0 elsewhere."""
  rewards = masked.wide(masked.select(turn_rewards, mask))
  return masked.select(total(rewards, turn, mask), first(turn, mask))


def _over_actions(
  x: jax.Array,  # [B, T]
  starts: jax.Array,  # [B, T] bool
  decay: float | jax.Array,
) -> jax.Array:  # [B, T]
  """Solves y_τ = x_τ + decay · y_{τ+1} over the first tokens of actions."""
  return returns.recurrence(x, jnp.where(starts, decay, 1.0))


def _means_of_equal(
  x: jax.Array,  # [B, T]
  group_id: jax.Array,  # [B] int
  state_id: jax.Array,  # [B, T] int
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T]
  """The mean of x over True slots with the same group and state."""
  kind = anchors(state_id, mask, group_id).ravel()

  def total_of_kind(y):
    return jax.ops.segment_sum(y, kind, len(kind))[kind]

  values = masked.select(x, mask).ravel()
  count = total_of_kind(mask.ravel().astype(x.dtype))
  mean = total_of_kind(values) / jnp.maximum(count, 1)
  return masked.select(mean.reshape(x.shape), mask)

"""Several policies in one episode: seats for opponents and partners.

An environment may have seats for others (`types.Environment.seat`). The policy
that is trained has seat 0. In the other seats are opponents or partners, models
that are not trained. All read the whole row. In each step of the decode loop
every model runs, and the model whose turn it is writes. Rows are in different
turns at the same time, and each token is one draw, as without opponents.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from grpo_jax.types import Policy


@dataclasses.dataclass(frozen=True)
class Opponents:
  """The opponents in the seats from 1 on.

  Seat s of a row of prompt n has opponent number (n + s − 1) mod K of K, so all
  completions of a prompt meet the same opponents.

  Attributes:
    policies: The models beside the policy that is trained.
    models: Model of each of K ≥ 1 opponents: 0, the current policy; m,
      `policies[m - 1]`.
  """

  policies: tuple[Policy, ...]
  models: tuple[int, ...]

  def policy_id(
    self,
    seat: jax.Array,  # [B] int32
    ids: jax.Array,  # [B] int32
  ) -> jax.Array:  # [B] int32
    """`Rollout.policy_id` of the next tokens, for prompts with these ids."""
    number = (ids + seat - 1) % len(self.models)
    return jnp.where(seat == 0, 0, 1 + number)

  def model(self, policy_id: jax.Array) -> jax.Array:  # [B] -> [B] int32
    """The model that writes: 0, the policy, or the model of the opponent."""
    return jnp.asarray((0, *self.models), jnp.int32)[policy_id]


def joined(policies: Sequence[Policy]) -> Policy:
  """Joins policies that read the same rows into one policy for sampling.

  Parameters, weights, caches and h are tuples, with an entry for each policy.
  `head` has a third argument: the number of the policy [B] whose logits a row
  takes; None for the first. All policies have the same vocabulary.

  Args:
    policies: The first is the policy that is trained. Its experts are recorded.
  """
  first = policies[0]

  def prefill(params, *prompts):
    outputs = [
      policy.prefill(own, *prompts)
      for policy, own in zip(policies, params, strict=True)
    ]
    h, prefix, routing = zip(*outputs, strict=True)
    return h, prefix, routing[0]

  def weights(params):
    return tuple(
      policy.weights(own) for policy, own in zip(policies, params, strict=True)
    )

  def allocate(num_rows, num_slots, prefix):
    return tuple(
      policy.allocate(num_rows, num_slots, own)
      for policy, own in zip(policies, prefix, strict=True)
    )

  def each(steps, weights, tokens, t, slot, prefix, cache):
    outputs = [
      step(own, tokens, t, slot, *of_policy)
      for step, own, *of_policy in zip(
        steps, weights, prefix, cache, strict=True
      )
    ]
    h, cache, routing = zip(*outputs, strict=True)
    return h, cache, routing[0]

  def head(weights, h, who=None):
    logits = first.head(weights[0], h[0])
    if who is None:
      return logits
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    for number in range(1, len(policies)):
      other = policies[number].head(weights[number], h[number])
      other = other.astype(logits.dtype)
      logits = jnp.where((who == number)[:, None], other, logits)
    return logits

  return dataclasses.replace(
    first,
    prefill=prefill,
    weights=weights,
    allocate=allocate,
    decode=functools.partial(each, [policy.decode for policy in policies]),
    extend=functools.partial(each, [policy.extend for policy in policies]),
    head=head,
    embeddings=None,
  )


def credited(
  rewards: jax.Array,  # [B, T] float32
  own: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T] float32
  """Moves each reward to the policy's own token at or before it.

  A game may be won by a mistake of the opponent. Rewards before the first own
  token do not belong to an action, and are left out.
  """
  slots = jnp.arange(rewards.shape[1])
  last = jax.lax.cummax(jnp.where(own, slots, -1), axis=1)  # [B, T]
  rows = jnp.arange(rewards.shape[0])[:, None]
  place = jnp.where(last < 0, rewards.shape[1], last)  # Out of range: left out.
  return jnp.zeros_like(rewards).at[rows, place].add(rewards, mode="drop")

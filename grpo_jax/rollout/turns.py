"""Turns inside the decode loop: an environment answers what rows have written.

A row is an episode. Each step of the loop writes one token of every row: one
that the policy draws, or the next one of an observation that is pending. Where
a token ends an action, the environment steps. So rows may be in different turns
at the same time, and nothing waits.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.types import Environment, Extras, PyTree

# Folded into a row's key for the environment; no token has this position.
_RESET = 2**31 - 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Episodes:
  """Of every row, between two tokens.

  Attributes:
    state: The environment's.
    observation: What is, or was last, to be read.
    left: Tokens of it that are not written yet; they are its last ones.
    size: Tokens of it.
    start: Slot of the first token of the action that comes next, or is being
      written.
    turn: Actions so far.
    reward: Of the action that ended with the last token; else 0.
    done: The environment has ended the episode.
    total: Rewards so far.
  """

  state: PyTree  # each [B, ...]
  observation: jax.Array  # [B, O] int32
  left: jax.Array  # [B] int32
  size: jax.Array  # [B] int32
  start: jax.Array  # [B] int32
  turn: jax.Array  # [B] int32
  reward: jax.Array  # [B] float32
  done: jax.Array  # [B] bool
  total: jax.Array  # [B] float32


def begin(
  environment: Environment,
  keys: jax.Array,  # [B] keys of the rows
  extras: Extras,  # each [B, ...]
) -> Episodes:
  """Before the first token."""
  of_rows = jax.vmap(lambda key: jax.random.fold_in(key, _RESET))(keys)
  zero = jnp.zeros(len(keys), jnp.int32)
  size = len(keys), environment.max_observation_len
  return Episodes(
    state=jax.vmap(environment.reset)(of_rows, extras),
    observation=jnp.zeros(size, jnp.int32),
    left=zero,
    size=zero,
    start=zero,
    turn=zero,
    reward=jnp.zeros(len(keys), jnp.float32),
    done=jnp.zeros(len(keys), bool),
    total=jnp.zeros(len(keys), jnp.float32),
  )


def pending(episodes: Episodes) -> tuple[jax.Array, jax.Array]:
  """Which rows have a token of an observation next [B], and that token [B]."""
  place = jnp.maximum(episodes.size - episodes.left, 0)[:, None]
  place = jnp.minimum(place, episodes.observation.shape[1] - 1)
  token = jnp.take_along_axis(episodes.observation, place, axis=1)[:, 0]
  return episodes.left > 0, token


def advance(
  environment: Environment,
  episodes: Episodes,
  tokens: jax.Array,  # [B, T] int32
  t: jax.Array,  # [B] int32
  writes: jax.Array,  # [B] bool
) -> Episodes:
  """After every row has got the token in slot t.

  Args:
    environment: Of all rows.
    episodes: Before that token.
    tokens: What rows have written, and read.
    t: The slot.
    writes: Rows that are not over.
  """
  observed = episodes.left > 0
  left = episodes.left - (observed & writes)
  token = jnp.take_along_axis(tokens, t[:, None], axis=1)[:, 0]
  ends = jnp.asarray(environment.action_ends, jnp.int32)
  length = t - episodes.start + 1  # Of the action, with this token.
  limit: jax.Array | int = environment.max_action_len
  if environment.action_len is not None:
    limit = jax.vmap(environment.action_len)(episodes.state)
  is_end = (token[:, None] == ends).any(axis=-1) | (length >= limit)
  acts = writes & ~observed & is_end

  def step(episodes: Episodes) -> Episodes:
    slots = jnp.arange(environment.max_action_len)
    place = jnp.minimum(episodes.start[:, None] + slots, tokens.shape[1] - 1)
    action = jnp.take_along_axis(tokens, place, axis=1)  # [B, A]
    state, turn = jax.vmap(environment.step)(
      episodes.state, action, slots < length[:, None]
    )
    size = turn.mask.sum(axis=-1, dtype=jnp.int32)
    new = Episodes(
      state=state,
      observation=turn.observation,
      left=size,
      size=size,
      start=t + 1 + size,
      turn=episodes.turn + 1,
      reward=turn.reward,
      done=turn.done,
      total=episodes.total + turn.reward,
    )

    def chosen(new, old):
      rows = acts.reshape(-1, *[1] * (new.ndim - 1))
      return jnp.where(rows, new, old)

    return jax.tree.map(chosen, new, episodes)

  episodes = dataclasses.replace(
    episodes, left=left, reward=jnp.zeros_like(episodes.reward)
  )
  return lax.cond(acts.any(), step, lambda episodes: episodes, episodes)


def records(
  environment: Environment, episodes: Episodes
) -> dict[str, jax.Array]:  # each [B]
  """What a `Rollout` has of the next token of every row, but its reward."""
  found = {"turn": episodes.turn}
  if environment.state_id is not None:
    found["state_id"] = jax.vmap(environment.state_id)(episodes.state)
  return found


def scores(
  environment: Environment, episodes: Episodes
) -> dict[str, jax.Array]:  # each [B] float32
  """What the environment says of every row, and "return", its rewards."""
  found = jax.vmap(environment.scores)(episodes.state)
  return {**found, "return": episodes.total}

"""Turns inside the decode loop: an environment answers the actions of rows.

A row is an episode. Each step of the loop writes one token of every row: one
that the policy draws, or the next one of a pending observation. If a token ends
an action, the environment steps. So rows may be in different turns at the same
time, and no row waits.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.ops import hashes
from grpo_jax.types import Compaction, Environment, Extras, PyTree

# Folded into a row's key for the environment; no token has this position.
_RESET = 2**31 - 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Contexts:
  """The state of the contexts of every row, with a compaction.

  Attributes:
    compaction: Settings for replacing contexts.
    size: Number of tokens of the context's prompt.
    turns: Number of actions in the context.
    number: Number of compactions so far.
    summarizes: True if the summary is being written, or `<sum>` comes next.
    closed: True if the summary is complete, and the context is over.
    held: The observation with which the next context continues.
    held_size: Number of tokens of that observation.
  """

  size: jax.Array  # [B] int32
  turns: jax.Array  # [B] int32
  number: jax.Array  # [B] int32
  summarizes: jax.Array  # [B] bool
  closed: jax.Array  # [B] bool
  held: jax.Array  # [B, O] int32
  held_size: jax.Array  # [B] int32
  compaction: Compaction = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Episodes:
  """The state of every episode between two tokens.

  Attributes:
    state: State of the environment.
    observation: The current or last observation.
    left: Number of its last tokens that are not written yet.
    size: Number of its tokens.
    start: Slot of the first token of the current or next action.
    turn: Number of actions so far.
    reward: Reward of the action that ended with the last token; else 0.
    done: True if the environment has ended the episode.
    total: Sum of rewards so far.
    contexts: State of contexts; None without a compaction.
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
  contexts: Contexts | None = None

  @property
  def over(self) -> jax.Array:  # [B] bool
    """True if the episode or its context has ended: no token follows."""
    return (
      self.done if self.contexts is None else self.done | self.contexts.closed
    )


def seed(key: jax.Array) -> jax.Array:  # [] key of a row -> [] uint32
  """Seed of an environment on the host; `begin` takes the key itself."""
  return jax.random.bits(jax.random.fold_in(key, _RESET), dtype=jnp.uint32)


def begin(
  environment: Environment,
  keys: jax.Array,  # [B] keys of the rows
  extras: Extras,  # each [B, ...]
  compaction: Compaction | None = None,
) -> Episodes:
  """The episodes before the first token."""
  contexts = None
  if compaction is not None:
    none, nothing = jnp.zeros(len(keys), bool), jnp.zeros(len(keys), jnp.int32)
    contexts = Contexts(
      size=nothing,
      turns=nothing,
      number=nothing,
      summarizes=none,
      closed=none,
      held=jnp.zeros((len(keys), environment.max_observation_len), jnp.int32),
      held_size=nothing,
      compaction=compaction,
    )
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
    contexts=contexts,
  )


def shift(
  episodes: Episodes,
  by: jax.Array,  # [B] int32
) -> Episodes:
  """Shifts the slots of each episode by `by`."""
  return dataclasses.replace(episodes, start=episodes.start + by)


def pending(episodes: Episodes) -> tuple[jax.Array, jax.Array]:
  """Returns (True if an observation's token is next [B], that token [B])."""
  place = jnp.maximum(episodes.size - episodes.left, 0)[:, None]
  place = jnp.minimum(place, episodes.observation.shape[1] - 1)
  token = jnp.take_along_axis(episodes.observation, place, axis=1)[:, 0]
  return episodes.left > 0, token


def untrained(episodes: Episodes) -> jax.Array:  # [B] bool
  """True on rows whose next token the policy writes but does not train on."""
  contexts = episodes.contexts
  if contexts is None or contexts.compaction.trains_summary:
    return jnp.zeros(len(episodes.left), bool)
  return contexts.summarizes


def advance(
  environment: Environment,
  episodes: Episodes,
  tokens: jax.Array,  # [B, T] int32
  t: jax.Array,  # [B] int32
  writes: jax.Array,  # [B] bool
) -> Episodes:
  """The episodes after every row has got the token in slot t.

  Args:
    environment: Environment of all rows.
    episodes: State before that token.
    tokens: Tokens of the rows, written and observed.
    t: The slot.
    writes: True on rows that are not over.
  """
  observed = episodes.left > 0
  rest = episodes.left - (observed & writes)
  token = jnp.take_along_axis(tokens, t[:, None], axis=1)[:, 0]
  ends = jnp.asarray(environment.action_ends, jnp.int32)
  length = t - episodes.start + 1  # Length of the action, with this token.
  limit: jax.Array | int = environment.max_action_len
  if environment.action_len is not None:
    limit = jax.vmap(environment.action_len)(episodes.state)
  is_end = (token[:, None] == ends).any(axis=-1) | (length >= limit)
  acts = writes & ~observed & is_end
  if episodes.contexts is not None:
    contexts = episodes.contexts
    compaction = contexts.compaction
    acts &= ~contexts.summarizes
    ends_summary = (token == compaction.close_id) | (
      length >= compaction.max_summary_len
    )
    closed = writes & ~observed & contexts.summarizes & ends_summary
    closed |= contexts.closed  # Other rows may still be written.
    episodes = dataclasses.replace(
      episodes, contexts=dataclasses.replace(contexts, closed=closed)
    )

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
      observation=turn.observation.astype(jnp.int32),
      left=size,
      size=size,
      start=t + 1 + size,
      turn=episodes.turn + 1,
      reward=turn.reward.astype(jnp.float32),
      done=turn.done,
      total=episodes.total + turn.reward.astype(jnp.float32),
      contexts=episodes.contexts,
    )
    if new.contexts is not None:
      new = _with_summary(new, new.contexts, t)

    def select(new, old):
      rows = acts.reshape(-1, *[1] * (new.ndim - 1))
      return jnp.where(rows, new, old)

    return jax.tree.map(select, new, episodes)

  episodes = dataclasses.replace(
    episodes, left=rest, reward=jnp.zeros_like(episodes.reward)
  )
  return lax.cond(acts.any(), step, lambda episodes: episodes, episodes)


def _with_summary(
  episodes: Episodes, contexts: Contexts, t: jax.Array
) -> Episodes:
  """Puts a summary before the observation of an action, if it is due."""
  compaction = contexts.compaction
  contexts = dataclasses.replace(contexts, turns=contexts.turns + 1)
  room = compaction.context_len - (contexts.size + t + 1 + episodes.size)
  due = room < compaction.reserve
  if compaction.every:
    due |= contexts.turns >= compaction.every
  due &= ~episodes.done & (contexts.number < compaction.max_compactions)
  opening = (
    jnp.zeros_like(episodes.observation).at[:, 0].set(compaction.open_id)
  )

  def select(new, old):
    return jnp.where(due.reshape(-1, *[1] * (jnp.ndim(old) - 1)), new, old)

  return dataclasses.replace(
    episodes,
    observation=select(opening, episodes.observation),
    left=select(1, episodes.left),
    size=select(1, episodes.size),
    start=select(t + 2, episodes.start),
    contexts=dataclasses.replace(
      contexts,
      turns=select(0, contexts.turns),
      number=contexts.number + due,
      summarizes=due,
      held=select(episodes.observation, contexts.held),
      held_size=select(episodes.size, contexts.held_size),
    ),
  )


def records(
  environment: Environment, episodes: Episodes
) -> dict[str, jax.Array]:  # each [B]
  """Records of the next token of every row, by names of `Rollout`."""
  if environment.state_id is not None:
    state = jax.vmap(environment.state_id)(episodes.state)
  else:
    state = observation_id(episodes.observation, episodes.size)
  return {"turn": episodes.turn, "state_id": state}


def observation_id(
  observation: jax.Array,  # [B, O] int32
  size: jax.Array,  # [B] int32
) -> jax.Array:  # [B] int32
  """Hash of the last observation, as the number of the state."""
  exists = jnp.arange(observation.shape[1]) < size[:, None]
  identity = hashes.identity(observation, exists)
  return jax.lax.bitcast_convert_type(identity, jnp.int32)


def seat(
  environment: Environment, episodes: Episodes
) -> jax.Array:  # [B] int32
  """The seat of the writer of each row's next action; see `Environment`."""
  assert environment.seat is not None
  return jax.vmap(environment.seat)(episodes.state).astype(jnp.int32)


def scores(
  environment: Environment, episodes: Episodes
) -> dict[str, jax.Array]:  # each [B] float32
  """Scores of every episode by name, and "return", the sum of its rewards."""
  by_name = jax.vmap(environment.scores)(episodes.state)
  return {**by_name, "return": episodes.total}

"""The state of host episodes between two calls of the device.

`host_turns.py` uses these types: the state of all rows, the answers of the
host, and the actions for the host.

With a compaction, summaries replace contexts. A context is a row with a prompt
of its own. An episode has up to J contexts, one after another, in adjacent
rows. Its sizes are those of its current context; earlier contexts stay in their
rows. The host decides when a summary is due, and builds the beginning of the
next context (`training/phases/episodes.py`). The device only reads its ids.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.rollout import resumed, turns
from grpo_jax.types import HostCompaction, Prompts, PyTree, Traces


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HostContexts:
  """Contexts of E episodes with J rows each, and of W lanes.

  Attributes:
    number: Number of the current context of each episode, from 0.
    summarizes: True if a summary is being written, or was written last.
    room: Most tokens of the completion in this context.
    prompt_tokens, prompt_mask: Prompt of each row, as in `Traces`.
    first_h, prefix: As in `Fixed`, for each lane.
  """

  number: jax.Array  # [E] int32
  summarizes: jax.Array  # [E] bool
  room: jax.Array  # [E] int32
  prompt_tokens: jax.Array  # [E · J, S'] int32
  prompt_mask: jax.Array  # [E · J, S'] bool
  first_h: PyTree  # [W, D]
  prefix: PyTree  # each [W, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Openings:
  """The beginnings of the next contexts of some episodes, left-padded.

  Attributes:
    tokens, mask: As in `Prompts`; arbitrary for other episodes.
    came: True on episodes with a next context.
  """

  tokens: jax.Array  # [E, S'] int32
  mask: jax.Array  # [E, S'] bool
  came: jax.Array  # [E] bool


def padded(prompts: Prompts, num_slots: int) -> Prompts:
  """Pads first prompts to the slots of a context's beginning.

  Raises:
    ValueError: The prompts have more slots.
  """
  more = num_slots - prompts.tokens.shape[1]
  if more < 0:
    raise ValueError(
      f"HostTurns: prompts have {prompts.tokens.shape[1]} slots, and contexts"
      f" begin with at most {num_slots} tokens; raise"
      " config.environment.compaction.max_prompt_len."
    )
  pad = ((0, 0), (more, 0))
  return dataclasses.replace(
    prompts,
    tokens=jnp.pad(prompts.tokens, pad),
    mask=jnp.pad(prompts.mask, pad),
  )


def _room(
  compaction: HostCompaction, mask: jax.Array, num_slots: int
) -> jax.Array:
  size = mask.sum(axis=-1, dtype=jnp.int32)
  return jnp.clip(compaction.context_len - size, 1, num_slots)


def begin(
  compaction: HostCompaction,
  prompts: Prompts,  # padded
  group_size: int,
  num_slots: int,
  of_lanes: tuple[PyTree, PyTree],
) -> HostContexts:
  """The contexts of episodes before the first token.

  Args:
    compaction: Settings for replacing contexts.
    prompts: P prompts with S' slots.
    group_size: Episodes of each prompt.
    num_slots: T.
    of_lanes: Prefix of each lane, and the h that predicts its first token.
  """
  tokens, mask = (
    jnp.repeat(x, group_size, axis=0) for x in (prompts.tokens, prompts.mask)
  )
  zero = jnp.zeros(len(mask), jnp.int32)
  first = jnp.arange(compaction.num_contexts) == 0  # [J]

  def rows(x):  # [E, S'] -> [E · J, S'], with nothing in later contexts
    every = jnp.where(first[:, None], x[:, None], jnp.zeros((), x.dtype))
    return every.reshape(-1, x.shape[1])

  prefix, first_h = of_lanes
  return HostContexts(
    number=zero,
    summarizes=zero > 0,
    room=_room(compaction, mask, num_slots),
    prompt_tokens=rows(tokens),
    prompt_mask=rows(mask),
    first_h=first_h,
    prefix=prefix,
  )


def opened(
  contexts: HostContexts,
  compaction: HostCompaction,
  openings: Openings,
  num_slots: int,
) -> HostContexts:
  """Moves episodes to their next contexts; prefixes stay the old ones."""
  came = openings.came
  number = contexts.number + came
  rows = jnp.arange(len(came)) * compaction.num_contexts + number
  rows = jnp.where(came, rows, len(contexts.prompt_mask))  # Else out of range.
  return dataclasses.replace(
    contexts,
    number=number,
    room=jnp.where(
      came, _room(compaction, openings.mask, num_slots), contexts.room
    ),
    prompt_tokens=contexts.prompt_tokens.at[rows].set(
      openings.tokens, mode="drop"
    ),
    prompt_mask=contexts.prompt_mask.at[rows].set(openings.mask, mode="drop"),
  )


def select(which: jax.Array, new: PyTree, old: PyTree) -> PyTree:
  """Takes the new value of each lane [W, ...] if `which`, else the old."""

  def choose(new, old):
    return jnp.where(which.reshape(-1, *[1] * (old.ndim - 1)), new, old)

  return jax.tree.map(choose, new, old)


def of_rollout(
  contexts: HostContexts, buffers: dict[str, jax.Array]
) -> dict[str, Any]:
  """Adds the `Traces` of a `Rollout` to its fields."""
  num_rows = len(contexts.prompt_mask)
  num_contexts = num_rows // len(contexts.number)
  rows = jnp.arange(num_rows, dtype=jnp.int32)
  order = rows % num_contexts
  exists = contexts.prompt_mask.any(axis=-1)
  continues = jnp.roll(exists, -1) & (order < num_contexts - 1)
  return {
    **buffers,
    "traces": Traces(
      id=rows // num_contexts,
      order=order,
      num_contexts=num_contexts,
      is_last=exists & ~continues,
      prompt_tokens=contexts.prompt_tokens,
      prompt_mask=contexts.prompt_mask,
    ),
  }


# New contexts are run for all lanes once one lane in so many waits for one.
_PATIENCE = 8

# The activity of a row.
WRITES = 0  # Writes an action; also before it has a lane.
ENDED = 1  # Its action has ended in this call.
WAITS = 2  # Waits for an answer of the host.
OVER = 3
PAUSES = 4  # Has the tokens of this step, and continues in a later step.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HostAnswers:
  """Answers of the host to actions.

  Attributes:
    observation: Tokens that are read next, from slot 0 on.
    size: Number of tokens of the observation; 0 at the end of an episode.
    reward: Reward of the action.
    continues: True if another action follows.
    came: True if there is an answer; the other fields are read only then.
    summarizes: True if the observation asks for a summary, which is written
      next; None without a compaction.
  """

  observation: jax.Array  # [B, O] int32
  size: jax.Array  # [B] int32
  reward: jax.Array  # [B] float32
  continues: jax.Array  # [B] bool
  came: jax.Array  # [B] bool
  summarizes: jax.Array | None = None  # [B] bool


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed:
  """Inputs that do not change during the episodes.

  Attributes:
    weights: `Policy.weights` of the parameters.
    keys: Keys of all rows, also of later contexts.
    first_h: h that predicts the first token after each prompt.
    prefix: Policy's prefix of each prompt. None, like `first_h`, if contexts
      are replaced and no lane will need another first prompt.
    prompt_routing: As in `Rollout`; None if it is not recorded.
    limits: As in `host_turns.Resumed`; None if rows do not wait for a step.
  """

  weights: PyTree
  keys: jax.Array  # [B] keys
  first_h: PyTree  # [P, D]
  prefix: PyTree  # each [P, ...]
  prompt_routing: jax.Array | None  # [P, S, layers, k] int32
  limits: jax.Array | None = None  # [B] int32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HostEpisodes:
  """The state of all rows between two calls, and of W lanes with a row each.

  If contexts are replaced, a row is an episode in its current context, and only
  `buffers` has rows for all J contexts.

  Attributes:
    buffers: Records by name, as in `Rollout`; empty slots hold a fill value.
    size: Number of tokens written or observed.
    start: Slot of the first token of the current or last action.
    turn: Number of actions before that.
    state: Hash of the last observation.
    doing: `WRITES`, `ENDED`, `WAITS`, `OVER` or `PAUSES`.
    row: Row of each lane.
    read: Number of tokens of that row in the cache.
    next_row: The first row that was not in a lane yet.
    cache: Cache of the policy; token n of a row is in slot n of its lane.
    contexts: State of contexts; None without a compaction.
  """

  buffers: dict[str, jax.Array]  # each [B, T, ...]
  size: jax.Array  # [B] int32
  start: jax.Array  # [B] int32
  turn: jax.Array  # [B] int32
  state: jax.Array  # [B] int32
  doing: jax.Array  # [B] int32
  row: jax.Array  # [W] int32
  read: jax.Array  # [W] int32
  next_row: jax.Array  # [] int32
  cache: PyTree
  contexts: HostContexts | None = None

  @property
  def rows(self) -> jax.Array:  # [B] int32
    """Current row of each row or episode in `buffers`."""
    rows = jnp.arange(len(self.size))
    if self.contexts is None:
      return rows
    num_contexts = len(self.buffers["tokens"]) // len(self.size)
    return rows * num_contexts + self.contexts.number


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Actions:
  """Actions and summaries that have ended in a call.

  Attributes:
    tokens: Tokens of the actions, from slot 0 on.
    length: Number of tokens; 0 on rows whose action has not ended.
    ended: True if the action is whole: the budget of T tokens did not cut it.
    size: Number of tokens of the completion so far, with these.
  """

  tokens: jax.Array  # [B, A] int32
  length: jax.Array  # [B] int32
  ended: jax.Array  # [B] bool
  size: jax.Array  # [B] int32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Left:
  """The remaining work of the rows of all processes.

  Attributes:
    writes: True if a row has a token to write before the next answer.
    continues: True if a row is not over and does not pause.
    reopens: True if it is time to run the beginnings of next contexts.
  """

  writes: jax.Array  # [] bool
  continues: jax.Array  # [] bool
  reopens: jax.Array  # [] bool


def continues(doing: jax.Array) -> jax.Array:  # [B] int32 -> [] bool
  """True if a row has work left in this step."""
  return ((doing != OVER) & (doing != PAUSES)).any()


def paused(episodes: HostEpisodes, limits: jax.Array) -> HostEpisodes:
  """Pauses episodes that would write beyond their limit."""
  is_full = (episodes.doing == WRITES) & (episodes.size >= limits)
  doing = jnp.where(is_full, PAUSES, episodes.doing)
  return dataclasses.replace(episodes, doing=doing)


def reopens(episodes: HostEpisodes, writes: jax.Array) -> jax.Array:  # [] bool
  """True if enough episodes wait for a context, or nothing else is left to do.

  The beginnings of contexts are run for all lanes at once.
  """
  in_contexts = episodes.contexts
  if in_contexts is None:
    return jnp.zeros((), bool)
  doing = episodes.doing
  closed = in_contexts.summarizes & ((doing == ENDED) | (doing == WAITS))
  closed = closed.sum()
  num_playing = jnp.minimum((doing != OVER).sum(), len(episodes.row))
  return (closed > 0) & (~writes | (closed * _PATIENCE >= num_playing))


def with_answers(episodes: HostEpisodes, answers: HostAnswers) -> HostEpisodes:
  """Adds rewards at the ends of actions, and the observations after them."""
  buffers: dict[str, Any] = dict(episodes.buffers)
  in_contexts = episodes.contexts
  num_slots: jax.Array | int = buffers["tokens"].shape[1]
  came, acted = answers.came, answers.came
  if in_contexts is not None:
    num_slots = in_contexts.room
    assert answers.summarizes is not None
    # A held observation belongs to the turn in which the summary was written.
    acted = came & ~in_contexts.summarizes
    asks = jnp.where(came, answers.summarizes, in_contexts.summarizes)
    in_contexts = dataclasses.replace(in_contexts, summarizes=asks)
  size = jnp.minimum(answers.size, num_slots - episodes.size)
  size = jnp.where(came, size, 0)
  exists = jnp.arange(answers.observation.shape[1]) < size[:, None]
  turn = episodes.turn + acted
  for name, x in (
    ("tokens", answers.observation),
    ("completion_mask", exists),
    ("observed", exists),
    ("turn", jnp.broadcast_to(turn[:, None], exists.shape)),
  ):
    buffers[name] = resumed.put(
      *(buffers[name], episodes.size, exists, x), rows=episodes.rows
    )
  rows = episodes.rows
  last = jnp.maximum(episodes.size - 1, 0)
  reward = jnp.where(came, answers.reward, 0)
  buffers["turn_rewards"] = buffers["turn_rewards"].at[rows, last].add(reward)
  start = jnp.where(came, episodes.size + size, episodes.start)
  continues = answers.continues & (start < num_slots)
  doing = jnp.where(episodes.doing == ENDED, WAITS, episodes.doing)
  doing = jnp.where(came, jnp.where(continues, WRITES, OVER), doing)
  state = turns.observation_id(answers.observation, answers.size)
  return dataclasses.replace(
    episodes,
    buffers=buffers,
    size=episodes.size + size,
    start=start,
    turn=turn,
    state=jnp.where(came, state, episodes.state),
    doing=doing,
    contexts=in_contexts,
  )

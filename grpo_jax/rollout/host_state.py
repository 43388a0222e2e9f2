"""Episodes whose environment is on the host, between two calls of the device.

What `host_turns.py` passes around: the state of all rows, what the host says,
and what it is told.

Contexts of episodes that the host plays, where summaries replace them.

A context is a row with a prompt of its own. An episode has up to J of them, one
after another, and its rows are adjacent. Its sizes are those of the context in
which it is; what was written in those before stays where it is.

The host decides when a summary is due, and puts together what the next context
begins with (`training/phases/episodes.py`). So the device reads ids and asks
for no reasons.
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
    number: Of the context in which each episode is, from 0.
    summarizes: A summary is what is written, or was written last.
    room: Tokens that may follow what the context begins with.
    prompt_tokens, prompt_mask: What each row begins with, as in `Traces`.
    first_h, prefix: As in `host_state.Fixed`, of each lane.
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
  """What the next contexts of some episodes begin with, left-padded.

  Attributes:
    tokens, mask: As in `Prompts`; anything of other episodes.
    came: Which ones have a next context.
  """

  tokens: jax.Array  # [E, S'] int32
  mask: jax.Array  # [E, S'] bool
  came: jax.Array  # [E] bool


def padded(prompts: Prompts, num_slots: int) -> Prompts:
  """First prompts with as many slots as what any context begins with.

  Raises:
    ValueError: They have more.
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
  """Before the first token.

  Args:
    compaction: When contexts are replaced.
    prompts: With S' slots.
    group_size: Episodes of each.
    num_slots: T.
    of_lanes: Prefix of each lane, and what predicts its first token.
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
  """In the next context, where there is one; prefixes are the old ones."""
  came = openings.came
  number = contexts.number + came
  rows = jnp.arange(len(came)) * compaction.num_contexts + number
  rows = jnp.where(came, rows, len(contexts.prompt_mask))  # That one: nowhere.
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


def chosen(which: jax.Array, new: PyTree, old: PyTree) -> PyTree:
  """Takes the new value of each lane [W, ...] where `which`, else the old."""

  def choose(new, old):
    return jnp.where(which.reshape(-1, *[1] * (old.ndim - 1)), new, old)

  return jax.tree.map(choose, new, old)


def of_rollout(
  contexts: HostContexts, written: dict[str, jax.Array]
) -> dict[str, Any]:
  """The fields of a `Rollout` that tell contexts from each other."""
  num_rows = len(contexts.prompt_mask)
  num_contexts = num_rows // len(contexts.number)
  rows = jnp.arange(num_rows, dtype=jnp.int32)
  order = rows % num_contexts
  exists = contexts.prompt_mask.any(axis=-1)
  goes_on = jnp.roll(exists, -1) & (order < num_contexts - 1)
  return {
    **written,
    "traces": Traces(
      id=rows // num_contexts,
      order=order,
      num_contexts=num_contexts,
      is_last=exists & ~goes_on,
      prompt_tokens=contexts.prompt_tokens,
      prompt_mask=contexts.prompt_mask,
    ),
  }


# One in so many lanes waits for a prompt before those of all lanes are run.
_PATIENCE = 8

# What a row is doing.
WRITES = 0  # An action; also before it has a lane.
ENDED = 1  # Its action has ended in this call.
WAITS = 2  # For an answer, which the host knows.
OVER = 3
PAUSES = 4  # It has the tokens of this step, and goes on in another one.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HostAnswers:
  """What the host says of actions.

  Attributes:
    observation: What is read next, from slot 0 on.
    size: Tokens of it; none at the end of an episode.
    reward: The reward of the action.
    goes_on: Another action is to be drawn.
    came: There is an answer; without one nothing else of a row is read.
    summarizes: What is read asks for a summary, which is written next; None
      without a compaction.
  """

  observation: jax.Array  # [B, O] int32
  size: jax.Array  # [B] int32
  reward: jax.Array  # [B] float32
  goes_on: jax.Array  # [B] bool
  came: jax.Array  # [B] bool
  summarizes: jax.Array | None = None  # [B] bool


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed:
  """What does not change while episodes are played.

  Attributes:
    weights: Of the policy, of its parameters.
    keys: Of every row, also of contexts to come.
    first_h: What predicts the first token after each prompt.
    prefix: Of the policy, of each prompt. None, as `first_h`, where contexts
      are replaced and no lane will need another first prompt.
    prompt_routing: As in `Rollout`; None if it is not recorded.
    limits: As in `host_resumed.Resumed`; None where no row waits for a step.
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
  """All rows between two calls, and W lanes that each have one of them.

  Where contexts are replaced, a row is an episode in its context of the moment,
  and only `written` has rows for all J of them.

  Attributes:
    written: By name, as in `Rollout`; what does not exist holds its fill.
    size: Tokens written, or observed.
    start: Slot of the first token of the action that is, or was last, written.
    turn: Actions before that.
    state: A number of the last observation.
    doing: `WRITES`, `ENDED`, `WAITS`, `OVER` or `PAUSES`.
    row: What each lane works on.
    read: Tokens of that row which the cache holds.
    next_row: The first row that no lane has taken.
    cache: The policy's own; token n of a row is in slot n of its lane.
    contexts: None unless summaries replace them.
  """

  written: dict[str, jax.Array]  # each [B, T, ...]
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
    """Row of `written` in which each row or episode is."""
    rows = jnp.arange(len(self.size))
    if self.contexts is None:
      return rows
    num_contexts = len(self.written["tokens"]) // len(self.size)
    return rows * num_contexts + self.contexts.number


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Actions:
  """Actions, and summaries, that have ended in a call.

  Attributes:
    tokens: From slot 0 on.
    length: Tokens that exist; 0 where no action has ended.
    ended: The action is whole: the budget of T tokens did not cut it off.
    size: Tokens of the completion so far, with these.
  """

  tokens: jax.Array  # [B, A] int32
  length: jax.Array  # [B] int32
  ended: jax.Array  # [B] bool
  size: jax.Array  # [B] int32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Left:
  """What is left to do, of the rows of all processes.

  Attributes:
    writes: Some row has a token to write before the next answer comes.
    goes_on: Some row is not over, and does not pause.
    reopens: It is time to run what next contexts begin with.
  """

  writes: jax.Array  # [] bool
  goes_on: jax.Array  # [] bool
  reopens: jax.Array  # [] bool


def goes_on(doing: jax.Array) -> jax.Array:  # [B] int32 -> [] bool
  """Whether some row has anything left to do in this step."""
  return ((doing != OVER) & (doing != PAUSES)).any()


def paused(episodes: HostEpisodes, limits: jax.Array) -> HostEpisodes:
  """The episodes, of which those pause that would write beyond their limit."""
  is_full = (episodes.doing == WRITES) & (episodes.size >= limits)
  doing = jnp.where(is_full, PAUSES, episodes.doing)
  return dataclasses.replace(episodes, doing=doing)


def reopens(episodes: HostEpisodes, writes: jax.Array) -> jax.Array:  # [] bool
  """Whether enough episodes wait for a context, or there is nothing else to do.

  What contexts begin with is run for all lanes at once.
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
  """Rewards at the ends of actions, and the observations after them."""
  written: dict[str, Any] = dict(episodes.written)
  in_contexts = episodes.contexts
  num_slots: jax.Array | int = written["tokens"].shape[1]
  came, acted = answers.came, answers.came
  if in_contexts is not None:
    num_slots = in_contexts.room
    assert answers.summarizes is not None
    # What was held back is of the turn in which the summary was written.
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
    written[name] = resumed.put(
      *(written[name], episodes.size, exists, x), rows=episodes.rows
    )
  rows = episodes.rows
  last = jnp.maximum(episodes.size - 1, 0)
  reward = jnp.where(came, answers.reward, 0)
  written["turn_rewards"] = written["turn_rewards"].at[rows, last].add(reward)
  start = jnp.where(came, episodes.size + size, episodes.start)
  goes_on = answers.goes_on & (start < num_slots)
  doing = jnp.where(episodes.doing == ENDED, WAITS, episodes.doing)
  doing = jnp.where(came, jnp.where(goes_on, WRITES, OVER), doing)
  seen = turns.last_seen(answers.observation, answers.size)
  return dataclasses.replace(
    episodes,
    written=written,
    size=episodes.size + size,
    start=start,
    turn=turn,
    state=jnp.where(came, seen, episodes.state),
    doing=doing,
    contexts=in_contexts,
  )

"""Rollouts of several turns whose environment is on the host.

A row is an episode: the policy writes an action, the host answers it, and so
on. The sampler lives on the device between the calls of one program, `advance`,
with the keys and values of all that rows have read. So a turn runs its new
tokens and nothing else: those of an observation in chunks, those of an action
one by one.

Rows do not wait for each other. Each call first takes the answers that have
come. Rows with an answer go on, the others stay where they are, until the
program returns with the actions that have ended: when nobody has anything to
do, or some steps after the first end. Where rows are more than lanes, a lane
whose row is over takes the next row.

What a row writes does not depend on when answers come. The key of a draw has
the place of a token in its completion, as everywhere; token n of a row is in
slot n of its lane, and what of its tokens are read together depends on the
row alone. So the tokens are those of `sampling.sample` with an environment in
the graph that gives the same answers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.rollout import contexts, drawing, sampling, turns
from grpo_jax.types import HostEnvironment, Policy, Prompts, PyTree, Rollout

_CHUNK = 32  # Most tokens of an observation that are read at once.
_INTERVAL = 8  # Decode steps between looks for actions that have ended.

# What a row is doing.
WRITES = 0  # An action; also before it has a lane.
ENDED = 1  # Its action has ended in this call.
WAITS = 2  # For an answer, which the host knows.
OVER = 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Answers:
  """What the host says of actions.

  Attributes:
    observation: What is read next, from slot 0 on.
    size: Tokens of it; none at the end of an episode.
    reward: The reward of the action.
    goes_on: Another action is to be drawn.
    came: There is an answer; without one nothing else of a row is read.
  """

  observation: jax.Array  # [B, O] int32
  size: jax.Array  # [B] int32
  reward: jax.Array  # [B] float32
  goes_on: jax.Array  # [B] bool
  came: jax.Array  # [B] bool


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed:
  """What does not change while episodes are played.

  Attributes:
    weights: Of the policy, of its parameters.
    keys: Of every row.
    first_h: What predicts the first token after each prompt.
    prefix: Of the policy, of each prompt.
    prompt_routing: As in `Rollout`; None if it is not recorded.
  """

  weights: PyTree
  keys: jax.Array  # [B] keys
  first_h: PyTree  # [P, D]
  prefix: PyTree  # each [P, ...]
  prompt_routing: jax.Array | None  # [P, S, layers, k] int32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Episodes:
  """All rows between two calls, and W lanes that each have one of them.

  Attributes:
    written: By name, as in `Rollout`; what does not exist holds its fill.
    size: Tokens written, or observed.
    start: Slot of the first token of the action that is, or was last, written.
    turn: Actions before that.
    state: A number of the last observation.
    doing: `WRITES`, `ENDED`, `WAITS` or `OVER`.
    row: What each lane works on.
    read: Tokens of that row which the cache holds.
    next_row: The first row that no lane has taken.
    cache: The policy's own; token n of a row is in slot n of its lane.
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Actions:
  """Actions that have ended in a call.

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
    goes_on: Some row is not over.
  """

  writes: jax.Array  # [] bool
  goes_on: jax.Array  # [] bool


@dataclasses.dataclass(frozen=True)
class HostTurns:
  """The compiled parts of such a rollout; pure functions.

  `begin`, then `advance` until no row goes on, each with the answers that have
  come since the one before, then `finish`.

  Attributes:
    policy: What to sample from.
    config: How to draw. Its end ids are not looked at: episodes end where the
      environment says so.
    group_size: Completions per prompt.
    environment: Sizes of turns.

  Raises:
    ValueError: A size is less than 1, or experts of a model without them are to
      be recorded.
  """

  policy: Policy
  config: sampling.SamplingConfig
  group_size: int
  environment: HostEnvironment

  def __post_init__(self):
    if self.config.record_routing and not self.policy.num_experts:
      raise ValueError(
        "HostTurns: record_routing is True, but the model has no experts;"
        " record none, or use a model with num_experts > 0."
      )
    sizes = {
      "group_size": self.group_size,
      **{
        name: getattr(self.environment, name)
        for name in ("max_turns", "max_action_len", "max_observation_len")
      },
    }
    for name, size in sizes.items():
      if size < 1:
        raise ValueError(f"HostTurns: {name} is {size}; it must be at least 1.")

  def begin(
    self, params: PyTree, prompts: Prompts, key: jax.Array
  ) -> tuple[Fixed, Episodes, jax.Array]:
    """Runs the prompts; no action is drawn yet.

    Args:
      params: The parameters of the policy.
      prompts: P prompts.
      key: As in `sampling.sample`.

    Returns:
      What stays, the episodes, and a seed for the session of each row [B]
      uint32.
    """
    config = self.config
    keys = drawing.row_keys(key, prompts.ids, self.group_size)
    num_rows = len(keys)
    with jax.named_scope("prefill"):
      first_h, prefix, routing = self.policy.prefill(
        params, prompts.tokens, prompts.mask
      )
    fixed = Fixed(
      self.policy.weights(params),
      keys,
      first_h,
      prefix,
      routing if config.record_routing else None,
    )
    num_lanes = min(config.lanes or num_rows, num_rows)
    lanes = jnp.arange(num_lanes, dtype=jnp.int32)
    of_lanes, _ = self._of_lanes(fixed, lanes)
    zero = jnp.zeros(num_rows, jnp.int32)
    episodes = Episodes(
      written=self._empty(fixed, routing, num_rows),
      size=zero,
      start=zero,
      turn=zero,
      state=turns.last_seen(zero[:, None], zero),
      doing=zero + WRITES,
      row=lanes,
      read=jnp.zeros_like(lanes),
      next_row=jnp.int32(num_lanes),
      cache=self.policy.allocate(num_lanes, config.max_new_tokens, of_lanes),
    )
    return fixed, episodes, jax.vmap(turns.seed)(keys)

  def _empty(
    self, fixed: Fixed, routing: jax.Array | None, num_rows: int
  ) -> dict[str, jax.Array]:
    """What nobody has written yet."""
    shape = num_rows, self.config.max_new_tokens
    logits = jax.eval_shape(self.policy.head, fixed.weights, fixed.first_h)
    return drawing.nothing(self.config, num_rows, logits, routing) | {
      "observed": jnp.zeros(shape, bool),
      "turn": jnp.zeros(shape, jnp.int32),
      "turn_rewards": jnp.zeros(shape, jnp.float32),
      "state_id": jnp.zeros(shape, jnp.int32),
    }

  def _of_lanes(
    self, fixed: Fixed, row: jax.Array
  ) -> tuple[PyTree, PyTree]:  # [W] -> each [P', ...], [W, D]
    """Prefixes of the rows in the lanes, and what predicts their first tokens.

    Where each row has a lane, prefixes are shared by the rows of a prompt.
    """
    num_rows = len(fixed.keys)
    prompt = row // self.group_size

    def of_prompts(tree):
      return jax.tree.map(lambda x: x[prompt], tree)

    has_all = len(row) == num_rows
    prefix = fixed.prefix if has_all else of_prompts(fixed.prefix)
    return prefix, of_prompts(fixed.first_h)

  def advance(
    self, fixed: Fixed, episodes: Episodes, answers: Answers
  ) -> tuple[Episodes, Actions, Left]:
    """Reads the answers that have come, and writes actions.

    Args:
      fixed: From `begin`.
      episodes: After the call before.
      answers: Those that have come since.
    """
    episodes = _with_answers(episodes, answers)
    episodes = self._refilled(fixed, episodes)
    of_lanes = self._of_lanes(fixed, episodes.row)
    if self.environment.max_observation_len > 1:
      with jax.named_scope("read"):
        episodes = self._read(fixed, of_lanes, episodes)
    with jax.named_scope("decode"):
      episodes = self._write(fixed, of_lanes, episodes)
    doing = episodes.doing[episodes.row]
    waiting = episodes.next_row < len(fixed.keys)  # For a lane.
    left = Left(
      writes=((doing == WRITES) | ((doing == OVER) & waiting)).any(),
      goes_on=(episodes.doing != OVER).any(),
    )
    return episodes, self._ended(episodes), left

  def _refilled(self, fixed: Fixed, episodes: Episodes) -> Episodes:
    """Gives lanes whose rows are over the next rows, while there are any."""
    num_rows, num_lanes = len(fixed.keys), len(episodes.row)
    if num_lanes == num_rows:
      return episodes
    free = episodes.doing[episodes.row] == OVER
    row = episodes.next_row + jnp.cumsum(free, dtype=jnp.int32) - 1
    takes = free & (row < num_rows)
    row = jnp.where(takes, row, episodes.row)
    prefix, _ = self._of_lanes(fixed, row)
    return dataclasses.replace(
      episodes,
      row=row,
      read=jnp.where(takes, 0, episodes.read),
      next_row=episodes.next_row + takes.sum(dtype=jnp.int32),
      cache=self.policy.admit(prefix, episodes.cache, num_lanes),
    )

  def _extended(
    self,
    fixed: Fixed,
    of_lanes: tuple[PyTree, PyTree],
    episodes: Episodes,
    count: jax.Array,  # [W] int32
    most: int,
  ) -> tuple[Episodes, PyTree]:
    """The next tokens of some lanes are read; what predicts those after."""
    num_slots = self.config.max_new_tokens
    row, place = episodes.row[:, None], episodes.read[:, None]
    place = place + jnp.arange(most)  # [W, L]
    at = jnp.minimum(place, num_slots - 1)
    h, cache, routing = self.policy.extend(
      fixed.weights,
      episodes.written["tokens"][row, at],
      episodes.read,
      count,
      of_lanes[0],
      episodes.cache,
    )
    written = dict(episodes.written)
    if self.config.record_routing:
      exists = jnp.arange(most) < count[:, None]
      place = jnp.where(exists, place, num_slots)  # That one: nowhere.
      written["routing"] = (
        written["routing"].at[row, place].set(routing, mode="drop")
      )
    episodes = dataclasses.replace(
      episodes, written=written, cache=cache, read=episodes.read + count
    )
    return episodes, h

  def _read(
    self, fixed: Fixed, of_lanes: tuple[PyTree, PyTree], episodes: Episodes
  ) -> Episodes:
    """All that rows have not read but for its last token, in chunks."""
    most = min(self.environment.max_observation_len, _CHUNK)

    def unread(episodes):  # [W] int32
      row = episodes.row
      writes = episodes.doing[row] == WRITES
      left = episodes.size[row] - 1 - episodes.read
      return jnp.where(writes, jnp.clip(left, 0, most), 0)

    def step(episodes):
      count = unread(episodes)
      return self._extended(fixed, of_lanes, episodes, count, most)[0]

    return lax.while_loop(
      lambda episodes: unread(episodes).any(), step, episodes
    )

  def _write(
    self, fixed: Fixed, of_lanes: tuple[PyTree, PyTree], episodes: Episodes
  ) -> Episodes:
    """Draws tokens, one of each lane at a time."""

    def step(carry):
      episodes, number = carry
      writes = episodes.doing[episodes.row] == WRITES
      is_first = episodes.size[episodes.row] == 0
      count = (writes & ~is_first).astype(jnp.int32)
      episodes, h = self._extended(fixed, of_lanes, episodes, count, 1)
      h = jax.tree.map(
        lambda first, x: jnp.where(is_first[:, None], first, x), of_lanes[1], h
      )
      return self._drawn(fixed, episodes, h, writes), number + 1

    def goes_on(carry):
      episodes, number = carry
      writes = (episodes.doing[episodes.row] == WRITES).any()
      is_due = (number % _INTERVAL == 0) & (number > 0)
      return writes & ~(is_due & (episodes.doing == ENDED).any())

    return lax.while_loop(goes_on, step, (episodes, jnp.int32(0)))[0]

  def _drawn(
    self,
    fixed: Fixed,
    episodes: Episodes,
    h: PyTree,  # [W, D]
    writes: jax.Array,  # [W] bool
  ) -> Episodes:
    """With one token more in every lane that writes."""
    config, environment = self.config, self.environment
    num_rows = len(fixed.keys)
    row = episodes.row
    place = episodes.size[row]  # [W]
    tokens, records, kept_ids, _ = drawing.draw(
      self.policy.head(fixed.weights, h), fixed.keys[row], place, config
    )
    values: dict[str, Any] = {
      "tokens": tokens,
      "completion_mask": writes,
      **records,
      "turn": episodes.turn[row],
      "state_id": episodes.state[row],
    }
    if config.record_kept:
      values["kept_ids"] = kept_ids
    to = jnp.where(writes, row, num_rows)  # That one: nowhere.
    written = dict(episodes.written)
    for name, x in values.items():
      buffer = written[name]
      written[name] = buffer.at[to, place].set(
        x.astype(buffer.dtype), mode="drop"
      )
    size = place + 1
    length = size - episodes.start[row]
    ends = jnp.asarray(environment.action_ends, jnp.int32)
    is_end = (tokens[:, None] == ends).any(axis=-1)
    is_end |= (length == environment.max_action_len) | (
      size == config.max_new_tokens
    )
    return dataclasses.replace(
      episodes,
      written=written,
      size=episodes.size.at[to].set(size, mode="drop"),
      doing=episodes.doing.at[jnp.where(is_end, to, num_rows)].set(
        ENDED, mode="drop"
      ),
    )

  def _ended(self, episodes: Episodes) -> Actions:
    """The actions of rows whose action has ended in this call."""
    most = self.environment.max_action_len
    length = jnp.where(
      episodes.doing == ENDED, episodes.size - episodes.start, 0
    )
    slots = jnp.arange(most)
    num_slots = self.config.max_new_tokens
    at = jnp.minimum(episodes.start[:, None] + slots, num_slots - 1)
    tokens = jnp.take_along_axis(episodes.written["tokens"], at, axis=1)
    tokens = jnp.where(slots < length[:, None], tokens, self.config.pad_id)
    last = jnp.maximum(length - 1, 0)[:, None]
    token = jnp.take_along_axis(tokens, last, axis=1)[:, 0]
    ends = jnp.asarray(self.environment.action_ends, jnp.int32)
    is_end = (token[:, None] == ends).any(axis=-1) | (length == most)
    return Actions(tokens, length, is_end & (length > 0), episodes.size)

  def finish(
    self,
    prompts: Prompts,
    fixed: Fixed,
    episodes: Episodes,
    done: jax.Array,  # [B] bool
    scores: dict[str, jax.Array],  # each [B]
  ) -> Rollout:
    """The rollout, once no episode goes on.

    Args:
      prompts, fixed: As in `begin`.
      episodes: After the last call.
      done: The environment has ended the episode, or its last turn has.
      scores: Of the sessions, and "return"; NaN where one does not apply, and
        all of them where a row has failed.
    """
    fields: dict[str, Any] = episodes.written
    num_prompts = len(prompts.ids)
    index = jnp.repeat(
      jnp.arange(num_prompts, dtype=jnp.int32), self.group_size
    )
    return Rollout(
      **fields,
      terminated=done,
      prompt_index=index,
      group_id=index,
      num_groups=num_prompts,
      prompt_routing=fixed.prompt_routing,
      scores=scores,
    )


def _with_answers(episodes: Episodes, answers: Answers) -> Episodes:
  """Rewards at the ends of actions, and the observations after them."""
  written: dict[str, Any] = dict(episodes.written)
  num_slots = written["tokens"].shape[1]
  came = answers.came
  size = jnp.minimum(answers.size, num_slots - episodes.size)
  size = jnp.where(came, size, 0)
  exists = jnp.arange(answers.observation.shape[1]) < size[:, None]
  turn = episodes.turn + came
  for name, x in (
    ("tokens", answers.observation),
    ("completion_mask", exists),
    ("observed", exists),
    ("turn", jnp.broadcast_to(turn[:, None], exists.shape)),
  ):
    written[name] = contexts.put(written[name], episodes.size, exists, x)
  rows = jnp.arange(len(size))
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
  )


@dataclasses.dataclass(frozen=True)
class HostPlayer:
  """Who writes the completions of a phase, with the host between the turns.

  Attributes:
    play: The compiled parts of a rollout.
    greedy: The greedy completion of each prompt; None if no algorithm needs it.
  """

  play: HostTurns
  greedy: HostTurns | None = None

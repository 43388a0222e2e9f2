"""Rollouts of several turns whose environment is on the host.

A row is an episode: the policy writes an action, the host answers it, and so
on. The sampler's state stays on the device between the calls of one program,
`advance`, with the keys and values of all tokens of the rows. So a turn runs
its new tokens and nothing else: an observation in chunks, an action token by
token.

Rows do not wait for each other. Each call first takes the answers that have
come. Rows with an answer continue, and the others stay where they are. The
program returns with the actions that have ended: when no row has work left, or
some steps after the first end. If there are more rows than lanes, a lane whose
row is over takes the next row.

The tokens of a row do not depend on when answers come. The key of a draw has
the place of a token in its completion, as everywhere; token n of a row is in
slot n of its lane; and the division of its tokens into chunks depends on the
row alone. So the tokens are those of `sampling.sample` with an environment in
the graph that gives the same answers.

With a compaction an episode is several contexts, each a row of the rollout
(`host_state.py`). `HostTurns.reopen` runs the beginnings of the next contexts.

In partial rollouts a row pauses when it has the tokens of the step, in an
action or behind an observation, and continues in the next step:

    step 7    action 1, observation 1, the first tokens of action 2
    step 8    the rest of action 2, observation 2, action 3    by its parameters

A row that continues reads its prompt and its tokens again, with the current
parameters, as with an environment in the graph (`resumed.py`). Only arrays are
kept between steps (`CutTurn`). A session lives for one step: if its episode
continues, a new session is made with the same seed, gets the same actions, and
has to answer as before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.rollout import drawing, host_state, sampling, turns
from grpo_jax.types import (
  HostCompaction,
  HostEnvironment,
  Policy,
  Prompts,
  PyTree,
  Rollout,
)

_CHUNK = 32  # Most tokens of an observation that are read at once.
_INTERVAL = 8  # Decode steps between looks for actions that have ended.


@dataclasses.dataclass(frozen=True)
class HostTurns:
  """The compiled parts of a rollout with the host, as pure functions.

  Callers run `begin`, then `advance` until no row continues, each time with the
  answers since the last call, then `finish`.

  Attributes:
    policy: The policy to sample from.
    config: Sampling settings. End ids are not read: the environment ends
      episodes.
    group_size: Completions per prompt.
    environment: Sizes of turns.
    compaction: Settings for replacing contexts by summaries, or None.

  Raises:
    ValueError: A size is less than 1, or the routing of a model without experts
      is to be recorded.
  """

  policy: Policy
  config: sampling.SamplerConfig
  group_size: int
  environment: HostEnvironment
  compaction: HostCompaction | None = None

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

  @property
  def max_read_len(self) -> int:
    """Most tokens of an answer."""
    instruction = () if self.compaction is None else self.compaction.instruction
    return max(self.environment.max_observation_len, len(instruction))

  @property
  def max_written_len(self) -> int:
    """Most tokens that a row writes before the host answers."""
    if self.compaction is None:
      return self.environment.max_action_len
    return max(self.environment.max_action_len, self.compaction.max_summary_len)

  def shapes(
    self,
    params: PyTree,
    prompts: Prompts,
    key: jax.Array,
    score_names: Iterable[str],
  ) -> Rollout:
    """Shapes of a rollout; runs no computation.

    The names of the scores of sessions are beside "return".
    """

    def play(params, prompts, key):
      fixed, episodes, seeds = self.begin(params, prompts, key)
      scores = jnp.zeros(len(seeds), jnp.float32)
      names = *sorted(score_names), "return"
      return self.finish(
        *(prompts, fixed, episodes, jnp.zeros(len(seeds), bool)),
        dict.fromkeys(names, scores),
      )

    return jax.eval_shape(play, params, prompts, key)

  def begin(
    self, params: PyTree, prompts: Prompts, key: jax.Array
  ) -> tuple[host_state.Fixed, host_state.HostEpisodes, jax.Array]:
    """Prefills the prompts; does not draw actions.

    Returns:
      The fixed inputs, the episodes, and a seed for the session of each row
      [B] uint32.
    """
    config, compaction = self.config, self.compaction
    keys = drawing.row_keys(key, prompts.ids, self.group_size)
    num_rows = len(keys)
    if compaction is not None:
      prompts = host_state.padded(prompts, compaction.prompt_len)
    with jax.named_scope("prefill"):
      first_h, prefix, routing = self.policy.prefill(
        params, prompts.tokens, prompts.mask
      )
    fixed = host_state.Fixed(
      self.policy.weights(params),
      keys,
      first_h,
      prefix,
      routing if config.record_routing and compaction is None else None,
    )
    num_lanes = min(config.lanes or num_rows, num_rows)
    lanes = jnp.arange(num_lanes, dtype=jnp.int32)
    of_lanes = self._of_lanes(fixed, lanes)
    buffers = self._empty(fixed, routing, num_rows)
    seeds = jax.vmap(turns.seed)(keys)
    in_contexts = None
    if compaction is not None:
      in_contexts = host_state.begin(
        *(compaction, prompts, self.group_size, config.max_new_tokens),
        of_lanes,
      )
      fixed = self._with_contexts(fixed, prompts, key, num_lanes)
    zero = jnp.zeros(num_rows, jnp.int32)
    episodes = host_state.HostEpisodes(
      buffers=buffers,
      size=zero,
      start=zero,
      turn=zero,
      state=turns.observation_id(zero[:, None], zero),
      doing=zero + host_state.WRITES,
      row=lanes,
      read=jnp.zeros_like(lanes),
      next_row=jnp.int32(num_lanes),
      cache=self.policy.allocate(num_lanes, config.max_new_tokens, of_lanes[0]),
      contexts=in_contexts,
    )
    return fixed, episodes, seeds

  def _with_contexts(
    self,
    fixed: host_state.Fixed,
    prompts: Prompts,
    key: jax.Array,
    num_lanes: int,
  ) -> host_state.Fixed:
    """Adds a key for each context, and drops prompts if all rows have lanes."""
    assert self.compaction is not None
    keys = [
      drawing.row_keys(key, prompts.ids, self.group_size, number)
      for number in range(self.compaction.num_contexts)
    ]
    fields: dict[str, Any] = {"keys": jnp.stack(keys, axis=1).reshape(-1)}
    if num_lanes == len(fixed.keys):
      fields |= {"first_h": None, "prefix": None}
    return dataclasses.replace(fixed, **fields)

  def _empty(
    self, fixed: host_state.Fixed, routing: jax.Array | None, num_rows: int
  ) -> dict[str, jax.Array]:
    """Empty records of all rows."""
    num_episodes = num_rows
    if self.compaction is not None:
      num_rows *= self.compaction.num_contexts
    shape = num_rows, self.config.max_new_tokens
    logits = jax.eval_shape(self.policy.head, fixed.weights, fixed.first_h)
    buffers = drawing.nothing(self.config, num_rows, logits, routing) | {
      "observed": jnp.zeros(shape, bool),
      "turn": jnp.zeros(shape, jnp.int32),
      "turn_rewards": jnp.zeros(shape, jnp.float32),
      "state_id": jnp.zeros(shape, jnp.int32),
    }
    if self.config.record_routing and self.compaction is not None:
      assert routing is not None
      of_first = jnp.repeat(routing, self.group_size, axis=0)
      empty = jnp.zeros((num_rows, *routing.shape[1:]), jnp.int32)
      step = num_rows // num_episodes
      buffers["prompt_routing"] = empty.at[::step].set(of_first)
    return buffers

  def _of_lanes(
    self, fixed: host_state.Fixed, row: jax.Array
  ) -> tuple[PyTree, PyTree]:  # [W] -> each [P', ...], [W, D]
    """Prefixes of first prompts, and the h that predict their first tokens.

    If each row has a lane, the rows of a prompt share its prefix, unless each
    will have contexts of its own.
    """
    prompt = row // self.group_size

    def of_prompts(tree):
      return jax.tree.map(lambda x: x[prompt], tree)

    has_all = self.compaction is None and len(row) == len(fixed.keys)
    prefix = fixed.prefix if has_all else of_prompts(fixed.prefix)
    return prefix, of_prompts(fixed.first_h)

  def _in_lanes(
    self, fixed: host_state.Fixed, episodes: host_state.HostEpisodes
  ) -> tuple[PyTree, PyTree]:  # each [P', ...], [W, D]
    """Prefixes and first h of the current contexts of lanes."""
    if episodes.contexts is None:
      return self._of_lanes(fixed, episodes.row)
    return episodes.contexts.prefix, episodes.contexts.first_h

  def advance(
    self,
    fixed: host_state.Fixed,
    episodes: host_state.HostEpisodes,
    answers: host_state.HostAnswers,
  ) -> tuple[host_state.HostEpisodes, host_state.Actions, host_state.Left]:
    """Reads the answers that have come, and writes actions.

    Returns:
      The state, the actions that have ended, and the remaining work.
    """
    episodes = host_state.with_answers(episodes, answers)
    if fixed.limits is not None:
      episodes = host_state.paused(episodes, fixed.limits)
    episodes = self._refill(fixed, episodes)
    of_lanes = self._in_lanes(fixed, episodes)
    # Rows that continue from an earlier step read all of their tokens.
    if self.max_read_len > 1 or fixed.limits is not None:
      with jax.named_scope("read"):
        episodes = self._read(fixed, of_lanes, episodes)
    with jax.named_scope("decode"):
      episodes = self._write(fixed, of_lanes, episodes)
    doing = episodes.doing[episodes.row]
    waiting = episodes.next_row < len(episodes.size)  # Rows wait for a lane.
    writes = (
      (doing == host_state.WRITES) | ((doing == host_state.OVER) & waiting)
    ).any()
    work = host_state.Left(
      writes=writes,
      continues=host_state.continues(episodes.doing),
      reopens=host_state.reopens(episodes, writes),
    )
    return episodes, self._actions(episodes), work

  def _refill(
    self, fixed: host_state.Fixed, episodes: host_state.HostEpisodes
  ) -> host_state.HostEpisodes:
    """Gives the next rows to lanes whose rows are over, while there are any."""
    num_rows, num_lanes = len(episodes.size), len(episodes.row)
    if num_lanes == num_rows:
      return episodes
    free = episodes.doing[episodes.row] == host_state.OVER
    row = episodes.next_row + jnp.cumsum(free, dtype=jnp.int32) - 1
    takes = free & (row < num_rows)
    row = jnp.where(takes, row, episodes.row)
    of_lanes = self._of_lanes(fixed, row)
    in_contexts = episodes.contexts
    if in_contexts is not None:
      of_lanes = host_state.select(
        takes, of_lanes, (in_contexts.prefix, in_contexts.first_h)
      )
      in_contexts = dataclasses.replace(
        in_contexts, prefix=of_lanes[0], first_h=of_lanes[1]
      )
    return dataclasses.replace(
      episodes,
      row=row,
      contexts=in_contexts,
      read=jnp.where(takes, 0, episodes.read),
      next_row=episodes.next_row + takes.sum(dtype=jnp.int32),
      cache=self.policy.admit(of_lanes[0], episodes.cache, num_lanes),
    )

  def _extend(
    self,
    fixed: host_state.Fixed,
    of_lanes: tuple[PyTree, PyTree],
    episodes: host_state.HostEpisodes,
    count: jax.Array,  # [W] int32
    most: int,
  ) -> tuple[host_state.HostEpisodes, PyTree]:
    """Reads the next tokens of some lanes; returns h after them, too."""
    num_slots = self.config.max_new_tokens
    row, place = episodes.rows[episodes.row][:, None], episodes.read[:, None]
    place = place + jnp.arange(most)  # [W, L]
    at = jnp.minimum(place, num_slots - 1)
    h, cache, routing = self.policy.extend(
      fixed.weights,
      episodes.buffers["tokens"][row, at],
      episodes.read,
      count,
      of_lanes[0],
      episodes.cache,
    )
    buffers = dict(episodes.buffers)
    if self.config.record_routing:
      exists = jnp.arange(most) < count[:, None]
      place = jnp.where(exists, place, num_slots)  # Else out of range.
      buffers["routing"] = (
        buffers["routing"].at[row, place].set(routing, mode="drop")
      )
    episodes = dataclasses.replace(
      episodes, buffers=buffers, cache=cache, read=episodes.read + count
    )
    return episodes, h

  def _read(
    self,
    fixed: host_state.Fixed,
    of_lanes: tuple[PyTree, PyTree],
    episodes: host_state.HostEpisodes,
  ) -> host_state.HostEpisodes:
    """Reads the unread tokens of rows, except the last one, in chunks."""
    most = min(self.max_read_len, _CHUNK)
    if fixed.limits is not None:
      most = min(self.config.max_new_tokens, _CHUNK)

    def unread(episodes):  # [W] int32
      row = episodes.row
      writes = episodes.doing[row] == host_state.WRITES
      rest = episodes.size[row] - 1 - episodes.read
      return jnp.where(writes, jnp.clip(rest, 0, most), 0)

    def step(episodes):
      count = unread(episodes)
      return self._extend(fixed, of_lanes, episodes, count, most)[0]

    return lax.while_loop(
      lambda episodes: unread(episodes).any(), step, episodes
    )

  def _write(
    self,
    fixed: host_state.Fixed,
    of_lanes: tuple[PyTree, PyTree],
    episodes: host_state.HostEpisodes,
  ) -> host_state.HostEpisodes:
    """Draws tokens, one for each lane at a time."""

    def step(carry):
      episodes, number = carry
      writes = episodes.doing[episodes.row] == host_state.WRITES
      is_first = episodes.size[episodes.row] == 0
      count = (writes & ~is_first).astype(jnp.int32)
      episodes, h = self._extend(fixed, of_lanes, episodes, count, 1)
      h = jax.tree.map(
        lambda first, x: jnp.where(is_first[:, None], first, x), of_lanes[1], h
      )
      return self._draw(fixed, episodes, h, writes), number + 1

    def continues(carry):
      episodes, number = carry
      writes = (episodes.doing[episodes.row] == host_state.WRITES).any()
      is_due = (number % _INTERVAL == 0) & (number > 0)
      return writes & ~(is_due & (episodes.doing == host_state.ENDED).any())

    return lax.while_loop(continues, step, (episodes, jnp.int32(0)))[0]

  def _draw(
    self,
    fixed: host_state.Fixed,
    episodes: host_state.HostEpisodes,
    h: PyTree,  # [W, D]
    writes: jax.Array,  # [W] bool
  ) -> host_state.HostEpisodes:
    """Draws and records one token in every lane that writes."""
    config = self.config
    num_rows = len(episodes.size)
    row = episodes.row
    at = episodes.rows[row]
    place = episodes.size[row]  # [W]
    tokens, records, kept_ids, _ = drawing.draw(
      self.policy.head(fixed.weights, h), fixed.keys[at], place, config
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
    room: jax.Array | int = config.max_new_tokens
    if episodes.contexts is not None:
      room = episodes.contexts.room[row]
      assert self.compaction is not None
      if not self.compaction.trains_summary:
        values["observed"] = episodes.contexts.summarizes[row]
    buffers = dict(episodes.buffers)
    for name, x in values.items():
      buffer = buffers[name]
      to = jnp.where(writes, at, len(buffer))  # Else out of range.
      buffers[name] = buffer.at[to, place].set(
        x.astype(buffer.dtype), mode="drop"
      )
    to = jnp.where(writes, row, num_rows)
    size = place + 1
    length = size - episodes.start[row]
    is_end = self._is_end(episodes, row, tokens, length) | (size == room)
    episodes = dataclasses.replace(
      episodes,
      buffers=buffers,
      size=episodes.size.at[to].set(size, mode="drop"),
      doing=episodes.doing.at[jnp.where(is_end, to, num_rows)].set(
        host_state.ENDED, mode="drop"
      ),
    )
    if fixed.limits is None:
      return episodes
    return host_state.paused(episodes, fixed.limits)

  def _is_end(
    self,
    episodes: host_state.HostEpisodes,
    row: jax.Array,  # [n] int32
    token: jax.Array,  # [n] int32
    length: jax.Array,  # [n] int32, with this token
  ) -> jax.Array:  # [n] bool
    """True if a token ends the action or summary of a row."""
    environment, compaction = self.environment, self.compaction

    def ends(ids, most):
      ids = jnp.asarray(ids, jnp.int32)
      return (token[:, None] == ids).any(axis=-1) | (length == most)

    is_end = ends(environment.action_ends, environment.max_action_len)
    if compaction is None:
      return is_end
    assert episodes.contexts is not None
    return jnp.where(
      episodes.contexts.summarizes[row],
      ends(compaction.ends, compaction.max_summary_len),
      is_end,
    )

  def _actions(self, episodes: host_state.HostEpisodes) -> host_state.Actions:
    """The actions that have ended in this call."""
    most = self.max_written_len
    length = jnp.where(
      episodes.doing == host_state.ENDED, episodes.size - episodes.start, 0
    )
    slots = jnp.arange(most)
    num_slots = self.config.max_new_tokens
    at = jnp.minimum(episodes.start[:, None] + slots, num_slots - 1)
    tokens = episodes.buffers["tokens"][episodes.rows[:, None], at]
    tokens = jnp.where(slots < length[:, None], tokens, self.config.pad_id)
    last = jnp.maximum(length - 1, 0)[:, None]
    token = jnp.take_along_axis(tokens, last, axis=1)[:, 0]
    rows = jnp.arange(len(length))
    is_end = self._is_end(episodes, rows, token, length)
    return host_state.Actions(
      tokens, length, is_end & (length > 0), episodes.size
    )

  def reopen(
    self,
    params: PyTree,
    episodes: host_state.HostEpisodes,
    openings: host_state.Openings,
  ) -> host_state.HostEpisodes:
    """Begins the next contexts of episodes whose summaries have ended.

    The answers that were held back come with the next call of `advance`.
    """
    compaction, in_contexts = self.compaction, episodes.contexts
    assert compaction is not None
    assert in_contexts is not None
    row = episodes.row
    starts = openings.came[row]  # [W]
    # A lane without tokens would have nothing to attend to.
    last = jnp.arange(openings.mask.shape[1]) == openings.mask.shape[1] - 1
    mask = jnp.where(starts[:, None], openings.mask[row], last)
    with jax.named_scope("prefill"):
      first_h, prefix, routing = self.policy.prefill(
        params, openings.tokens[row], mask
      )
    prefix, first_h = host_state.select(
      starts, (prefix, first_h), (in_contexts.prefix, in_contexts.first_h)
    )
    in_contexts = host_state.opened(
      in_contexts, compaction, openings, self.config.max_new_tokens
    )
    episodes = dataclasses.replace(
      episodes,
      size=jnp.where(openings.came, 0, episodes.size),
      start=jnp.where(openings.came, 0, episodes.start),
      read=jnp.where(starts, 0, episodes.read),
      cache=self.policy.admit(prefix, episodes.cache, len(row)),
      contexts=dataclasses.replace(in_contexts, first_h=first_h, prefix=prefix),
    )
    if not self.config.record_routing:
      return episodes
    of_prompts = episodes.buffers["prompt_routing"]
    to = jnp.where(starts, episodes.rows[row], len(of_prompts))
    of_prompts = of_prompts.at[to].set(routing, mode="drop")
    return dataclasses.replace(
      episodes, buffers={**episodes.buffers, "prompt_routing": of_prompts}
    )

  def finish(
    self,
    prompts: Prompts,
    fixed: host_state.Fixed,
    episodes: host_state.HostEpisodes,
    done: jax.Array,  # [B] bool
    scores: dict[str, jax.Array],  # each [B]
  ) -> Rollout:
    """The rollout, once no episode continues.

    Args:
      done: True if the environment or the last turn has ended the episode.
      scores: Scores of the sessions, and "return"; NaN if a score does not
        apply, and all NaN if the row has failed.
    """
    fields: dict[str, Any] = {
      "prompt_routing": fixed.prompt_routing,
      **episodes.buffers,
    }
    num_prompts = len(prompts.ids)
    num_rows = self.group_size
    if (in_contexts := episodes.contexts) is not None:
      fields = host_state.of_rollout(in_contexts, fields)
      num_contexts = fields["traces"].num_contexts
      num_rows *= num_contexts
      done, scores = jax.tree.map(
        lambda x: jnp.repeat(x, num_contexts), (done, scores)
      )
    index = jnp.repeat(jnp.arange(num_prompts, dtype=jnp.int32), num_rows)
    return Rollout(
      **fields,
      terminated=done,
      prompt_index=index,
      group_id=index,
      num_groups=num_prompts,
      scores=scores,
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CutTurn:
  """The progress of rows that are cut at the end of a step.

  Attributes:
    start, turn, state: As in `host_state.HostEpisodes`.
    over: True if the episode has ended, or its session has failed.
  """

  start: jax.Array  # [B] int32
  turn: jax.Array  # [B] int32
  state: jax.Array  # [B] int32
  over: jax.Array  # [B] bool

  @classmethod
  def nothing(cls, num_rows: int) -> CutTurn:
    """The progress of rows that have not begun."""
    # Separate arrays: a donated array must not appear twice.
    start, turn = (jnp.zeros(num_rows, jnp.int32) for _ in range(2))
    state = turns.observation_id(start[:, None], start)
    return cls(start, turn, state, jnp.zeros(num_rows, bool))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Resumed:
  """Rows that begin or continue in a step, and need not end in it.

  Attributes:
    keys: Keys of the rows, from the step in which each one began.
    limits: Most tokens of each row, old and new. A row with so many waits for
      the next step, unless the limit is T.
    rollout: Tokens so far, perhaps none, the G rows of each prompt adjacent.
    cut: Progress of the rows.
  """

  keys: jax.Array  # [B] keys
  limits: jax.Array  # [B] int32
  rollout: Rollout
  cut: CutTurn


def begin(
  play: HostTurns, params: PyTree, prompts: Prompts, resumed: Resumed
) -> tuple[host_state.Fixed, host_state.HostEpisodes, jax.Array]:
  """Begins a step of partial rollouts; see `HostTurns.begin`."""
  fixed, episodes, _ = play.begin(params, prompts, resumed.keys[0])
  fixed = dataclasses.replace(fixed, keys=resumed.keys, limits=resumed.limits)
  before, cut = resumed.rollout, resumed.cut
  episodes = dataclasses.replace(
    episodes,
    buffers={name: getattr(before, name) for name in episodes.buffers},
    size=before.completion_mask.sum(axis=1, dtype=jnp.int32),
    start=cut.start,
    turn=cut.turn,
    state=cut.state,
    doing=jnp.where(cut.over, host_state.OVER, episodes.doing),
  )
  return fixed, episodes, jax.vmap(turns.seed)(resumed.keys)


def pause(
  play: HostTurns,
  prompts: Prompts,
  resumed: Resumed,
  fixed: host_state.Fixed,
  episodes: host_state.HostEpisodes,
  done: jax.Array,  # [B] bool
  scores: dict[str, jax.Array],  # each [B]
) -> tuple[Rollout, CutTurn]:
  """The rollout so far and its progress, once no row has work left.

  Args:
    play, prompts, resumed: As in `begin`.
    fixed, episodes, done, scores: As in `HostTurns.finish`; `done` and `scores`
      of rows whose episodes did not end in this step are not read.
  """
  before = resumed.rollout
  is_over = episodes.doing == host_state.OVER
  assert before.scores is not None
  all_scores = {
    name: jnp.where(
      resumed.cut.over, before.scores[name], jnp.where(is_over, x, 0)
    )
    for name, x in scores.items()
  }
  done = before.terminated | (done & is_over)
  rollout = play.finish(prompts, fixed, episodes, done, all_scores)
  cut = CutTurn(episodes.start, episodes.turn, episodes.state, is_over)
  return dataclasses.replace(rollout, version=before.version), cut

"""Rollouts of several turns whose environment is on the host.

The host loops over turns. In each, one program draws the next action of every
row whose episode goes on, from the whole context: prompt and all that has been
written are run again, and then the action is decoded. Shapes are the same in
all turns, so it is compiled once. Nothing of the cache is kept in between: each
turn prefills B · (S + T) slots, where a rollout in the graph prefills P · S
once, and for as long keys and values of as many exist.

The key of a draw has the place of a token in its completion, as everywhere, so
the tokens are those of `sampling.sample` with an environment in the graph that
gives the same answers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.rollout import contexts, drawing, sampling, turns
from grpo_jax.types import HostEnvironment, Policy, Prompts, PyTree, Rollout


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Answers:
  """What the host says of the actions of a turn.

  Attributes:
    observation: What is read next, from slot 0 on.
    size: Tokens of it; none at the end of an episode.
    reward: The reward of the action.
    goes_on: Another action is to be drawn.
  """

  observation: jax.Array  # [B, O] int32
  size: jax.Array  # [B] int32
  reward: jax.Array  # [B] float32
  goes_on: jax.Array  # [B] bool


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Episodes:
  """Of every row, between two actions.

  Attributes:
    written: By name, as in `Rollout`; what does not exist holds its fill.
    size: Tokens written, or read.
    prompt_routing: As in `Rollout`.
  """

  written: dict[str, jax.Array]  # each [B, T, ...]
  size: jax.Array  # [B] int32
  prompt_routing: jax.Array | None  # [P, S, layers, k] int32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Actions:
  """What rows have done in a turn.

  Attributes:
    tokens: From slot 0 on.
    length: Tokens that exist; 0 where an episode is over.
    ended: The action is whole: the budget of T tokens did not cut it off.
    size: Tokens of the completion so far, with these.
  """

  tokens: jax.Array  # [B, A] int32
  length: jax.Array  # [B] int32
  ended: jax.Array  # [B] bool
  size: jax.Array  # [B] int32


@dataclasses.dataclass(frozen=True)
class HostTurns:
  """The compiled parts of such a rollout; pure functions.

  `begin`, then `act` once per turn, each with the answers to the turn before
  (for the first one nothing is read and all go on), then `finish`.

  Attributes:
    policy: What to sample from.
    config: How to draw. Its end ids are not looked at: episodes end where the
      environment says so.
    group_size: Completions per prompt.
    environment: Sizes of turns.

  Raises:
    ValueError: Rows are to be decoded in lanes, a size is less than 1, or
      experts of a model without them are to be recorded.
  """

  policy: Policy
  config: sampling.SamplingConfig
  group_size: int
  environment: HostEnvironment

  def __post_init__(self):
    if self.config.lanes is not None:
      raise ValueError(
        f"HostTurns: lanes is {self.config.lanes}, and the rows of an"
        " environment are all decoded at once; pass None."
      )
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
  ) -> tuple[Episodes, jax.Array]:
    """Before the first action.

    Args:
      params: The parameters of the policy.
      prompts: P prompts.
      key: As in `sampling.sample`.

    Returns:
      Episodes, of which nothing is written, and a seed for the session of each
      row [B] uint32.
    """
    keys = drawing.row_keys(key, prompts.ids, self.group_size)
    num_rows, num_slots = len(keys), self.config.max_new_tokens
    zero = jnp.zeros(num_rows, jnp.int32)
    shapes, routing = jax.eval_shape(
      self._draw, params, prompts, keys, self._nothing(num_rows), zero, zero > 0
    )
    fills = {"tokens": self.config.pad_id, "kept_ids": -1}
    written = {
      name: jnp.full(
        (num_rows, num_slots, *x.shape[2:]), fills.get(name, 0), x.dtype
      )
      for name, x in shapes.items()
    }
    for name, dtype in (
      ("observed", bool),
      ("turn", jnp.int32),
      ("turn_rewards", jnp.float32),
      ("state_id", jnp.int32),
    ):
      written[name] = jnp.zeros((num_rows, num_slots), dtype)
    if self.config.record_routing:
      assert routing is not None
      shape = *prompts.tokens.shape, *routing.shape[2:]
      routing = jnp.zeros(shape, jnp.int32)
    episodes = Episodes(
      written, zero, routing if self.config.record_routing else None
    )
    return episodes, jax.vmap(turns.seed)(keys)

  def act(
    self,
    params: PyTree,
    prompts: Prompts,
    key: jax.Array,
    episodes: Episodes,
    answers: Answers,
    number: jax.Array,  # [] int32
  ) -> tuple[Episodes, Actions]:
    """Reads the answers to the turn before, and draws the next actions.

    Args:
      params, prompts, key: As in `begin`.
      episodes: After the turn before.
      answers: To its actions.
      number: Of this turn, from 0.
    """
    config, most = self.config, self.environment.max_action_len
    unread = jnp.maximum(episodes.size - 1, 0)  # The last token drawn.
    episodes = _read(episodes, answers, number)
    start = episodes.size
    goes_on = answers.goes_on & (start < config.max_new_tokens)
    keys = drawing.row_keys(key, prompts.ids, self.group_size)
    drawn, routing = self._draw(
      params, prompts, keys, episodes.written, start, goes_on
    )
    length = drawn["completion_mask"].sum(axis=1, dtype=jnp.int32)
    slots = jnp.arange(most)
    exists = slots < length[:, None]
    turn = jnp.full(exists.shape, number, jnp.int32)
    state = turns.last_seen(answers.observation, answers.size)
    state_id = jnp.broadcast_to(state[:, None], exists.shape)
    written = dict(episodes.written)
    prompt_routing = episodes.prompt_routing
    if config.record_routing:
      assert routing is not None
      assert prompt_routing is not None
      of_prompts, of_rows = self._split(routing, start)
      # What was not read when it was drawn is read now.
      known = jnp.arange(config.max_new_tokens)
      new = (known >= unread[:, None]) & (known < start[:, None])
      written["routing"] = jnp.where(
        new[:, :, None, None], of_rows, written["routing"]
      )
      first = of_prompts[:: self.group_size]
      prompt_routing = jnp.where(number == 0, first, prompt_routing)
    own = {"turn": turn, "state_id": state_id}
    for name, x in (drawn | own).items():
      written[name] = contexts.put(written[name], start, exists, x)
    last = jnp.maximum(length - 1, 0)[:, None]
    token = jnp.take_along_axis(drawn["tokens"], last, axis=1)[:, 0]
    ends = jnp.asarray(self.environment.action_ends, jnp.int32)
    is_end = (token[:, None] == ends).any(axis=-1) | (length == most)
    size = start + length
    return Episodes(written, size, prompt_routing), Actions(
      tokens=drawn["tokens"],
      length=length,
      ended=is_end & (length > 0),
      size=size,
    )

  def finish(
    self,
    prompts: Prompts,
    episodes: Episodes,
    answers: Answers,
    number: jax.Array,  # [] int32
    done: jax.Array,  # [B] bool
    scores: dict[str, jax.Array],  # each [B]
  ) -> Rollout:
    """The rollout, once no episode goes on.

    Args:
      prompts: As in `begin`.
      episodes: After the last turn.
      answers: To its actions.
      number: Turns.
      done: The environment has ended the episode, or its last turn has.
      scores: Of the sessions, and "return"; NaN where one does not apply, and
        all of them where a row has failed.
    """
    episodes = _read(episodes, answers, number)
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
      prompt_routing=episodes.prompt_routing,
      scores=scores,
    )

  def _nothing(self, num_rows: int) -> dict[str, jax.Array]:
    """As much of what is written as `_draw` reads."""
    shape = num_rows, self.config.max_new_tokens
    return {"tokens": jnp.zeros(shape, jnp.int32)}

  def _draw(
    self,
    params: PyTree,
    prompts: Prompts,
    keys: jax.Array,  # [B] keys
    written: dict[str, jax.Array],
    size: jax.Array,  # [B] int32
    goes_on: jax.Array,  # [B] bool
  ) -> tuple[dict[str, jax.Array], jax.Array | None]:
    """The next actions as a `Rollout` has them, and the routing of contexts."""
    environment = self.environment
    tokens, mask = contexts.joined(
      prompts, written["tokens"], size, self.config.pad_id
    )
    with jax.named_scope("prefill"):
      first_h, prefix, routing = self.policy.prefill(params, tokens, mask)
    left = self.config.max_new_tokens - size
    decoder = sampling.Decoder(
      self.policy,
      self.policy.weights(params),
      dataclasses.replace(
        self.config,
        max_new_tokens=environment.max_action_len,
        end_ids=environment.action_ends,
      ),
      keys,
      first_h,
      prefix,
      jnp.clip(left, 1, environment.max_action_len),
      offsets=size,
    )
    with jax.named_scope("decode"):
      state = decoder.start(routing, busy=goes_on)
      _, *first = decoder.of_lanes(state.row)
      state = decoder.run_all(decoder.draw(state, *first))
    return state.written, routing

  def _split(
    self,
    x: jax.Array,  # [B, S + T, ...], of contexts
    size: jax.Array,  # [B] int32
  ) -> tuple[jax.Array, jax.Array]:  # [B, S, ...], [B, T, ...]
    """The inverse of `contexts.joined`; anything where there is no token."""
    num_slots = self.config.max_new_tokens
    place = jnp.arange(x.shape[1]) + (num_slots - size)[:, None]
    place = jnp.minimum(place, x.shape[1] - 1)
    place = place.reshape(*place.shape, *[1] * (x.ndim - 2))
    x = jnp.take_along_axis(x, place, axis=1)
    return x[:, :-num_slots], x[:, -num_slots:]


def _read(episodes: Episodes, answers: Answers, number: jax.Array) -> Episodes:
  """Rewards at the ends of actions, and the observations after them."""
  written: dict[str, Any] = dict(episodes.written)
  num_slots = written["tokens"].shape[1]
  size = jnp.minimum(answers.size, num_slots - episodes.size)
  exists = jnp.arange(answers.observation.shape[1]) < size[:, None]
  for name, x in (
    ("tokens", answers.observation),
    ("completion_mask", exists),
    ("observed", exists),
    ("turn", jnp.full(exists.shape, number, jnp.int32)),
  ):
    written[name] = contexts.put(written[name], episodes.size, exists, x)
  rows = jnp.arange(len(size))
  last = jnp.maximum(episodes.size - 1, 0)
  written["turn_rewards"] = (
    written["turn_rewards"].at[rows, last].add(answers.reward)
  )
  return dataclasses.replace(
    episodes, written=written, size=episodes.size + size
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

"""Rollouts with compaction: summaries of the policy replace contexts.

A rollout is a few contexts, one after another, each a row of its own with its
own prompt. All rollouts are in their first context, then in their second, in a
loop that is compiled once; a rollout that is over leaves empty rows. The
beginning of a context was written in the context before, and is trained there.
Here it is a prompt, so every token is trained once.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.ops import returns
from grpo_jax.rollout import drawing, sampling, turns
from grpo_jax.rollout.sampling import SamplerConfig
from grpo_jax.types import (
  Compaction,
  Environment,
  Policy,
  Prompts,
  PyTree,
  Rollout,
  Traces,
)


def _check(
  num_slots: int, config: SamplerConfig, compaction: Compaction
) -> None:
  """Raises the ValueErrors of `sample`."""
  least = compaction.head_len + 1 + compaction.max_summary_len
  if num_slots < least:
    raise ValueError(
      f"compaction.sample: prompts have {num_slots} slots, and a context begins"
      f" with up to {least} tokens (head, <sum>, summary); pad them to that."
    )
  if config.lanes is not None:
    raise ValueError(
      f"compaction.sample: lanes is {config.lanes}, and the rows of an"
      " environment are all decoded at once; pass None."
    )


def sample(
  policy: Policy,
  params: PyTree,
  prompts: Prompts,
  key: jax.Array,  # [] key of (seed, step)
  config: SamplerConfig,
  group_size: int,
  *,
  environment: Environment,
  compaction: Compaction,
) -> Rollout:
  """Samples `group_size` episodes of every prompt, in contexts of limited size.

  Args:
    policy, params, prompts, key, config, group_size, environment: As in
      `sampling.sample`. T slots hold the tokens of one context.
    compaction: Settings for replacing contexts. Static.

  Returns:
    Rows b = (p · G + g) · J + j, j = 0 … J − 1 the contexts of a rollout and J
    = max_compactions + 1; contexts that do not exist have no tokens. Each row
    has the `scores` of its whole episode.

  Raises:
    ValueError: The prompts have no room for a summary; or rows are to be
      decoded in lanes.
  """
  _check(prompts.tokens.shape[1], config, compaction)
  num_contexts = compaction.max_compactions + 1
  index = jnp.repeat(
    jnp.arange(len(prompts.ids), dtype=jnp.int32), group_size
  )  # [R], of rollouts
  extras = jax.tree.map(lambda x: x[index], prompts.extras)
  weights = policy.weights(params)
  first = _Context(prompts.tokens[index], prompts.mask[index])

  def play(carry, number):
    context, episodes, exists = carry
    with jax.named_scope("prefill"):
      first_h, prefix, routing = policy.prefill(
        params, context.tokens, context.mask
      )
    size = context.mask.sum(axis=-1, dtype=jnp.int32)
    room = jnp.clip(compaction.context_len - size, 1, config.max_new_tokens)
    assert episodes.contexts is not None
    episodes = dataclasses.replace(
      episodes, contexts=dataclasses.replace(episodes.contexts, size=size)
    )
    decoder = sampling.Decoder(
      policy,
      weights,
      config,
      drawing.row_keys(key, prompts.ids, group_size, number),
      first_h,
      prefix,
      room,
      environment,
    )
    with jax.named_scope("decode"):
      state = decoder.run_from_start(routing, episodes, exists)
    buffers = dict(state.buffers)
    if config.record_routing:
      assert routing is not None
      buffers["prompt_routing"] = routing
    ended = state.episodes
    assert ended is not None
    assert ended.contexts is not None
    continues = exists & ended.contexts.closed & ~ended.done
    following = _next(compaction, first, context, buffers, ended)
    trace = {
      "prompt_tokens": context.tokens,
      "prompt_mask": context.mask,
      "is_last": exists & ~continues,
    }
    return (following, _next_episodes(ended), continues), (buffers, trace)

  episodes = turns.begin(
    environment,
    drawing.row_keys(key, prompts.ids, group_size),
    extras,
    compaction,
  )
  everyone = jnp.ones(len(index), bool)
  (_, episodes, _), (buffers, trace) = lax.scan(
    play,
    (first, episodes, everyone),
    jnp.arange(num_contexts, dtype=jnp.int32),
  )
  return _as_rollout(
    environment, episodes, buffers, trace, index, len(prompts.ids), num_contexts
  )


def _as_rollout(
  environment: Environment,
  episodes: turns.Episodes,
  buffers: dict[str, jax.Array],  # each [J, R, ...]
  trace: dict[str, jax.Array],  # each [J, R, ...]
  index: jax.Array,  # [R]
  num_prompts: int,
  num_contexts: int,
) -> Rollout:
  """The contexts of R episodes as rows, those of an episode adjacent."""

  def rows(x):  # [J, R, ...] -> [R · J, ...]
    return jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:])

  def of_rollouts(x):  # [R, ...] -> [R · J, ...]
    return jnp.repeat(x, num_contexts, axis=0)

  fields: dict[str, Any] = jax.tree.map(rows, buffers)
  of_traces: dict[str, Any] = jax.tree.map(rows, trace)
  scores = turns.scores(environment, episodes)
  prompt_index = of_rollouts(index)
  rollouts = jnp.arange(len(index), dtype=jnp.int32)
  order = jnp.tile(jnp.arange(num_contexts, dtype=jnp.int32), len(index))
  return Rollout(
    **fields,
    scores=jax.tree.map(of_rollouts, scores),
    terminated=of_rollouts(episodes.done),
    prompt_index=prompt_index,
    group_id=prompt_index,
    num_groups=num_prompts,
    traces=Traces(
      id=of_rollouts(rollouts),
      order=order,
      num_contexts=num_contexts,
      **of_traces,
    ),
  )


class _Context(NamedTuple):
  """The beginning of rows: prompts, left-padded."""

  tokens: jax.Array  # [R, S] int32
  mask: jax.Array  # [R, S] bool


def _next_episodes(episodes: turns.Episodes) -> turns.Episodes:
  """Episodes at the start of the next context, with the held observations."""
  contexts = episodes.contexts
  assert contexts is not None
  none = jnp.zeros_like(contexts.closed)
  return dataclasses.replace(
    episodes,
    observation=contexts.held,
    left=contexts.held_size,
    size=contexts.held_size,
    start=contexts.held_size,
    contexts=dataclasses.replace(contexts, summarizes=none, closed=none),
  )


def _next(
  compaction: Compaction,
  first: _Context,
  context: _Context,
  buffers: dict[str, jax.Array],
  episodes: turns.Episodes,
) -> _Context:
  """The next contexts: head, `<sum>`, summary, `</sum>`, last turns that fit.

  Args:
    compaction: Sizes of these parts.
    first: Beginning of the first contexts.
    context: Beginning of the contexts that end; for its shape.
    buffers: Records of the contexts that end, each [R, T, ...].
    episodes: State at their end.
  """
  num_rows, num_slots = context.tokens.shape
  tokens, exists = buffers["tokens"], buffers["completion_mask"]
  slots = jnp.arange(tokens.shape[1])
  start = episodes.start[:, None]  # Start of the summary.

  places = jnp.arange(compaction.max_summary_len)
  at = jnp.minimum(start + places, tokens.shape[1] - 1)
  summary = jnp.take_along_axis(tokens, at, axis=1)
  present = jnp.take_along_axis(exists, at, axis=1) & (
    start + places < tokens.shape[1]
  )
  size = present.sum(axis=-1, keepdims=True)
  # In a summary that ran out of tokens, `</sum>` replaces the last token.
  summary = jnp.where(places == size - 1, compaction.close_id, summary)

  # A turn is an observation and the action that answered it. The observation
  # of turn 0 is in the first prompt.
  before = exists & (slots < start - 1) & (buffers["turn"] > 0)
  age = episodes.turn[:, None] - buffers["turn"]  # 1 for the last one.
  allowed = num_slots - compaction.head_len - 1 - size  # [R, 1]
  is_kept = jnp.zeros_like(before)
  for count in range(1, compaction.keep_turns + 1):
    more = before & (age <= count)
    fits = more.sum(axis=-1, keepdims=True) <= allowed
    is_kept = jnp.where(fits, more, is_kept)

  head = jnp.sort(jnp.where(first.mask, jnp.arange(num_slots), num_slots))
  head = head[:, : compaction.head_len]  # Slots of the first tokens.
  opening = jnp.full((num_rows, 1), compaction.open_id, tokens.dtype)
  keeps = compaction.keeps_summary
  pieces = (
    (
      jnp.take_along_axis(
        first.tokens, jnp.minimum(head, num_slots - 1), axis=1
      ),
      head < num_slots,
    ),
    (opening, jnp.full_like(opening, keeps, bool)),
    (summary, present & keeps),
    (tokens, is_kept),
  )
  every, mask = (jnp.concatenate(x, axis=1) for x in zip(*pieces, strict=True))
  total = mask.sum(axis=-1, keepdims=True)
  place = num_slots - total + jnp.cumsum(mask, axis=1) - 1
  place = jnp.where(mask, place, num_slots)  # Out of range: not written.
  rows = jnp.arange(num_rows)[:, None]
  empty = jnp.zeros(context.tokens.shape, tokens.dtype)
  return _Context(
    empty.at[rows, place].set(every, mode="drop"),
    jnp.arange(num_slots) >= num_slots - total,
  )


def last_index(traces: Traces) -> jax.Array:  # [R] int32
  """The row of the last context of each rollout."""
  last = jnp.where(traces.is_last, traces.order, 0)
  last = last.reshape(-1, traces.num_contexts).max(axis=1)
  return jnp.arange(len(last)) * traces.num_contexts + last


def last_rows(rollout: Rollout) -> Rollout:
  """Returns one row for each rollout: its last context."""
  traces = rollout.traces
  if traces is None:
    return rollout
  index = last_index(traces)
  lengths = returns.over_traces(rollout.lengths, traces.id)
  rollout = dataclasses.replace(rollout, traces=None, trace_lengths=lengths)
  return jax.tree.map(lambda x: x[index], rollout)

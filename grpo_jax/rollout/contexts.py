"""What a row continues where it has begun already: its prompt and its tokens.

Rows that go on after the program of their first tokens has ended read all of it
again, as one prompt of their own.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.rollout import drawing, sampling, turns
from grpo_jax.types import (
  Environment,
  Images,
  Policy,
  Prompts,
  PyTree,
  Rollout,
)


def joined(
  prompts: Prompts,
  tokens: jax.Array,  # [B, T] int32
  size: jax.Array,  # [B] int32
  pad_id: int,
) -> tuple[jax.Array, jax.Array]:  # [B, S + T] int32, [B, S + T] bool
  """Each row's prompt and the first tokens after it, left-padded.

  Args:
    prompts: P prompts, each of B / P adjacent rows.
    tokens: What stands after them.
    size: How many of these tokens there are, at most T.
    pad_id: In empty slots.
  """
  num_slots = tokens.shape[1]
  group_size = len(tokens) // len(prompts.ids)
  repeat = functools.partial(jnp.repeat, repeats=group_size, axis=0)
  exists = jnp.arange(num_slots) < size[:, None]
  both = jnp.concatenate([repeat(prompts.tokens), tokens], axis=1)
  mask = jnp.concatenate([repeat(prompts.mask), exists], axis=1)
  # Prompts end where completions begin: a shift makes the context end last.
  place = jnp.arange(both.shape[1]) - (num_slots - size)[:, None]
  at = jnp.maximum(place, 0)
  mask = jnp.take_along_axis(mask, at, axis=1) & (place >= 0)
  both = jnp.take_along_axis(both, at, axis=1)
  return jnp.where(mask, both, pad_id), mask


def _images(prompts: Prompts, num_rows: int) -> tuple[Images, ...]:
  """Those of each row's prompt, if there are any."""
  if prompts.images is None:
    return ()
  group_size = num_rows // len(prompts.ids)
  repeat = functools.partial(jnp.repeat, repeats=group_size, axis=0)
  return (jax.tree.map(repeat, prompts.images),)


def put(
  buffer: jax.Array,  # [B, T, ...]
  start: jax.Array,  # [B] int32
  exists: jax.Array,  # [B, n] bool
  x: jax.Array,  # [B, n, ...]
  rows: jax.Array | None = None,  # [B] int32
) -> jax.Array:  # [B, T, ...]
  """Writes what exists into each row from a slot on, as far as it fits.

  With `rows` into these ones of a buffer that has more of them.
  """
  num_slots = buffer.shape[1]
  slots = start[:, None] + jnp.arange(exists.shape[1])
  slots = jnp.where(exists, slots, num_slots)  # That one: nowhere.
  if rows is None:
    rows = jnp.arange(len(buffer))
  return buffer.at[rows[:, None], slots].set(
    x.astype(buffer.dtype), mode="drop"
  )


def gone_on(
  policy: Policy,
  params: PyTree,
  prompts: Prompts,
  tokens: jax.Array,  # [B, t] int32
  rollout: Rollout,
  keys: jax.Array,  # [B] keys
  size: jax.Array,  # [B] int32
  limits: jax.Array,  # [B] int32
  is_open: jax.Array,  # [B] bool
  config: sampling.SamplingConfig,
  environment: Environment | None = None,
  episodes: turns.Episodes | None = None,
) -> tuple[Rollout, jax.Array, turns.Episodes | None]:  # and [B, n] bool
  """A rollout with more tokens in its open rows, and which of them exist.

  All of these rows are decoded at once, whatever `config.lanes` is. Draws count
  their positions on behind the tokens that are read.

  Args:
    policy, params: What to sample from, and its parameters.
    prompts: P prompts.
    tokens: What is read after them: the first slots of the rollout.
    rollout: What is written, the G rows of each prompt adjacent.
    keys: Of the rows.
    size: Tokens of each row that are read, behind which it goes on.
    limits: Most tokens that are drawn of each row.
    is_open: Rows that go on.
    config: How to draw; its `max_new_tokens` is the largest limit. Static.
    environment: What answers, or None. Static.
    episodes: Of the rows, as far as they have come; their slots are those of
      the rollout. None without an environment.

  Returns:
    The rollout, the tokens that are new, and the episodes after them.
  """
  with jax.named_scope("prefill"):
    first_h, prefix, routing = policy.prefill(
      params,
      *joined(prompts, tokens, size, config.pad_id),
      *_images(prompts, len(tokens)),
    )
  before = None
  shift = size  # From slots of what is drawn to those of the rollout.
  if environment is not None and episodes is not None:
    length = environment.max_action_len
    at = size[:, None] - length + jnp.arange(length)
    before = jnp.take_along_axis(tokens, jnp.maximum(at, 0), axis=1)
    shift = size - length
    episodes = turns.moved(episodes, -shift)
  decoder = sampling.Decoder(
    policy,
    policy.weights(params),
    dataclasses.replace(config, lanes=None),
    keys,
    first_h,
    prefix,
    limits,
    environment,
    offsets=size,
    before=before,
  )
  with jax.named_scope("decode"):
    state = decoder.run_from_start(routing, episodes, busy=is_open)
  exists = state.written["completion_mask"]
  fields: dict[str, Any] = {
    name: put(getattr(rollout, name), size, exists, x)
    for name, x in state.written.items()
  }
  episodes = state.episodes
  if environment is None or episodes is None:
    ends = drawing.is_end(state.written["tokens"], config) & exists
    fields["terminated"] = rollout.terminated | ends.any(axis=1)
  else:
    fields["terminated"] = episodes.done
    fields["scores"] = turns.scores(environment, episodes)
    episodes = turns.moved(episodes, shift)
  return dataclasses.replace(rollout, **fields), exists, episodes


def budgets(
  of_domains: tuple[int, ...], prompts: Prompts, group_size: int, num_slots: int
) -> jax.Array:  # [B] int32
  """Most tokens of each row: those of its prompt's domain.

  Where there are none, or prompts have no domain, as somebody asks for them, a
  row has all slots.
  """
  if not of_domains or "domain" not in prompts.extras:
    return jnp.full(len(prompts.ids) * group_size, num_slots, jnp.int32)
  own = jnp.array(of_domains, jnp.int32)[prompts.extras["domain"]]  # [P]
  return jnp.repeat(own, group_size)

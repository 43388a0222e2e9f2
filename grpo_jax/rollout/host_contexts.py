"""Contexts of episodes that the host plays, where summaries replace them.

A context is a row with a prompt of its own. An episode has up to J of them, one
after another, and its rows are adjacent. Its sizes are those of the context in
which it is; what was written in those before stays where it is.

The host decides when a summary is due, and puts together what the next context
begins with (`training/phases/summaries.py`). So the device reads ids and asks
for no reasons.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.types import HostCompaction, Prompts, PyTree, Traces


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Contexts:
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
) -> Contexts:
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
  return Contexts(
    number=zero,
    summarizes=zero > 0,
    room=_room(compaction, mask, num_slots),
    prompt_tokens=rows(tokens),
    prompt_mask=rows(mask),
    first_h=first_h,
    prefix=prefix,
  )


def opened(
  contexts: Contexts,
  compaction: HostCompaction,
  openings: Openings,
  num_slots: int,
) -> Contexts:
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
  contexts: Contexts, written: dict[str, jax.Array]
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

"""What a row continues where it has begun already: its prompt and its tokens.

Rows that go on after the program of their first tokens has ended read all of it
again, as one prompt of their own.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from grpo_jax.types import Prompts


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


def put(
  buffer: jax.Array,  # [B, T, ...]
  start: jax.Array,  # [B] int32
  exists: jax.Array,  # [B, n] bool
  x: jax.Array,  # [B, n, ...]
) -> jax.Array:  # [B, T, ...]
  """Writes what exists into each row from a slot on, as far as it fits."""
  num_rows, num_slots = buffer.shape[:2]
  slots = start[:, None] + jnp.arange(exists.shape[1])
  slots = jnp.where(exists, slots, num_slots)  # That one: nowhere.
  rows = jnp.arange(num_rows)[:, None]
  return buffer.at[rows, slots].set(x.astype(buffer.dtype), mode="drop")

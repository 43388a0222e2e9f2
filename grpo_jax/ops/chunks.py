"""Working through an array a few positions at a time.

Arrays are [B, T, ...]; a chunk is `size` positions of every row. Positions are
split and rows are not, because rows are what a mesh shards.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def positions(h, size):
  """Shape and dtype of `size` positions of every row."""
  return jax.ShapeDtypeStruct((h.shape[0], size, *h.shape[2:]), h.dtype)


def hoisted(function, h, size):
  """`function` of `size` positions, what it closes over made arguments.

  A custom rule must not close over traced values. `jax.closure_convert` would
  hoist those of float type only, and leave an integer one (quantised
  weights) to leak into the backward pass.

  Returns:
    (weights, others, h) -> function(h), the float arrays and the others.
  """
  closed = jax.make_jaxpr(function)(positions(h, size))
  is_weight = [
    jnp.issubdtype(jnp.result_type(c), jnp.inexact) for c in closed.consts
  ]
  weights = [c for c, w in zip(closed.consts, is_weight, strict=True) if w]
  others = [c for c, w in zip(closed.consts, is_weight, strict=True) if not w]

  def call(weights, others, h):
    sources = {True: iter(weights), False: iter(others)}
    constants = [next(sources[w]) for w in is_weight]
    return jax.core.eval_jaxpr(closed.jaxpr, constants, h)[0]

  return call, weights, others


def fold(body, carry, num_slots, size):
  """Folds body(start, is_new [size], carry) over chunks of positions.

  The last chunk begins early instead of being padded, so that no array is
  copied and no head sees states that do not exist; `is_new` is False on the
  positions it shares with the chunk before.
  """

  def step(i, carry):
    start = jnp.minimum(i * size, num_slots - size)
    return body(start, start + jnp.arange(size) >= i * size, carry)

  num_chunks = -(-num_slots // size)
  if num_chunks == 1:
    return body(0, jnp.ones(size, bool), carry)
  return lax.fori_loop(0, num_chunks, step, carry)


def take(tree, start, size):  # each [B, T, ...] -> [B, size, ...]
  """Positions from `start` on of every array."""
  return jax.tree.map(
    lambda x: lax.dynamic_slice_in_dim(x, start, size, axis=1), tree
  )


def put(tree, chunks, start):  # each [B, T, ...], [B, size, ...]
  """The arrays with `chunks` written over their positions from `start` on."""
  return jax.tree.map(
    lambda x, chunk: lax.dynamic_update_slice_in_dim(x, chunk, start, axis=1),
    tree,
    chunks,
  )

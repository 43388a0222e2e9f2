"""Segments of a completion, and their credits.

A completion is cut into K segments. The utility V̂(s_k) is the expected reward
after segment k, and the credit of a segment is the change of V̂ that it made.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import masked


def uncertain(
  entropy: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  quantile: float | jax.Array,
) -> jax.Array:  # [B, T] bool
  """True on tokens with entropy above this quantile of their row; 1: none."""
  chex.assert_rank([entropy, mask], 2)
  chex.assert_equal_shape([entropy, mask])
  entropy = masked.wide(entropy)
  values = jnp.where(mask, entropy, jnp.nan)
  # NaN for a row without tokens; no entropy is above it.
  level = jnp.nanquantile(values, quantile, axis=1, keepdims=True)  # [B, 1]
  return mask & (entropy > level)


def ends(
  delimiter: jax.Array,  # [B, T] bool
  begins: jax.Array,  # [B, T] bool
  mask: jax.Array,  # [B, T] bool
  min_gap: int,
  max_segments: int,
) -> jax.Array:  # [B, T] bool
  """True at ends of segments: after a delimiter, or before a new beginning.

  Args:
    delimiter: True on tokens that end a segment, however short it is.
    begins: True on tokens that begin a segment if the segment before them has
      `min_gap` tokens by then.
    mask: True on tokens that exist; they are adjacent and begin at slot 0.
    min_gap: See `begins`.
    max_segments: K, the most segments of a row. After K − 1 ends the next end
      is the last token.

  Returns:
    True on the last token of each segment. A row without tokens has none.

  Source: the segments "by keywords and entropy" of RREDCoT, arXiv:2606.06475;
  the rule is ours.
  """
  chex.assert_rank([delimiter, begins, mask], 2)
  chex.assert_equal_shape([delimiter, begins, mask])
  follows, before = (
    jnp.pad(x[:, 1:], ((0, 0), (0, 1))) for x in (mask, begins)
  )

  def step(carry, slot):
    size, count = carry
    delimiter, before, mask, follows = slot
    size = size + 1
    is_due = delimiter | (before & (size >= min_gap))
    is_end = mask & follows & is_due & (count < max_segments - 1)
    carry = jnp.where(is_end, 0, size), count + is_end
    return carry, is_end | (mask & ~follows)

  zero = jnp.zeros(mask.shape[0], jnp.int32)
  slots = tuple(x.T for x in (delimiter, before, mask, follows))
  _, marks = jax.lax.scan(step, (zero, zero), slots)
  return marks.T


def numbers(segment_end: jax.Array) -> jax.Array:  # [B, T] bool -> int32
  """Segment of each token, from 0; behind the last end, one more."""
  return jnp.cumsum(segment_end, axis=1) - segment_end


def credits(
  utility: jax.Array,  # [B, T]
  segment_end: jax.Array,  # [B, T] bool
  rewards: jax.Array,  # [B]
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T]
  """The credit of each segment, at its last token.

      r_k = V̂(s_k) − V̂(s_{k−1}),  k < K        r_K = R − V̂(s_{K−1})
      Σ_k r_k = R − V̂(s_0)

  Args:
    utility: V̂ of the prefix before the segment that a token is part of.
    segment_end: True on the last token of each segment.
    rewards: R.
    mask: True on trained tokens.

  Returns:
    Credits; 0 where no segment ends.

  Source: Arjona-Medina et al., "RUDDER", arXiv:1806.07857, Eq. 4, of utilities
  as in RREDCoT, arXiv:2606.06475.
  """
  chex.assert_rank([utility, segment_end, mask], 2)
  chex.assert_equal_shape([utility, segment_end, mask])
  is_end = last_included(segment_end, mask)
  utility = masked.select(utility, mask)
  following = jnp.pad(utility[:, 1:], ((0, 0), (0, 1)))
  after = jnp.where(_last(mask), rewards[:, None], following)
  return masked.select(after - utility, is_end)


def last_included(
  segment_end: jax.Array,  # [B, T] bool
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T] bool
  """The ends of segments among trained tokens, the last one included."""
  return mask & (segment_end | _last(mask))


def spread(
  values: jax.Array,  # [B, T]
  is_end: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T]
  """Copies the value at the end of a segment to all its tokens; 0 behind."""
  num_slots = values.shape[1]
  slots = jnp.where(is_end, jnp.arange(num_slots), num_slots)
  end = jax.lax.cummin(slots, axis=1, reverse=True)  # [B, T]
  return jnp.take_along_axis(
    values, end, axis=1, mode="fill", fill_value=0
  ).astype(values.dtype)


def _last(mask: jax.Array) -> jax.Array:  # [B, T] bool
  """True on the last trained token of each row."""
  later = jnp.flip(jnp.cumsum(jnp.flip(mask, 1), axis=1), 1)
  return mask & (later == 1)

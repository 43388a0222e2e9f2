"""Searching in rows of bytes: where a pattern, a space, the first hit is.

A row of a batch is UTF-8 text with zeros behind its end. A pattern in ASCII
occurs in the bytes where it occurs in the characters, for no byte of another
character is ASCII. Positions are counted in bytes from 0.

Every function takes time linear in the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import chex
import jax
import jax.numpy as jnp
import numpy as np


def shifted(data: jax.Array, by: int) -> jax.Array:  # [B, L] -> [B, L]
  """What stands `by` places further on (before, if negative); zero beyond."""
  chex.assert_rank(data, 2)
  size = data.shape[1]
  if abs(by) >= size:
    return jnp.zeros_like(data)
  if by >= 0:
    return jnp.pad(data[:, by:], ((0, 0), (0, by)))
  return jnp.pad(data[:, :by], ((0, 0), (-by, 0)))


def words(data: jax.Array) -> jax.Array:  # [B, L] uint8 -> [B, L] uint32
  """The four bytes from each place on, the first in the lowest bits.

  Patterns are compared by them: four bytes at once, and without shifting the
  bytes anew for each pattern, which takes most of the time to compile.
  """
  packed = jnp.zeros(data.shape, jnp.uint32)
  for k in range(4):
    packed |= shifted(data, k).astype(jnp.uint32) << (8 * k)
  return jax.lax.optimization_barrier(packed)


def _pieces(pattern: bytes) -> Iterator[tuple[int, np.uint32, np.uint32]]:
  """Cuts a pattern into four bytes: offset, which bits count, the bits."""
  for k in range(0, len(pattern), 4):
    piece = pattern[k : k + 4]
    bits = np.uint32(256 ** len(piece) - 1)
    yield k, bits, np.uint32(int.from_bytes(piece, "little"))


def starts(words: jax.Array, pattern: bytes) -> jax.Array:  # [B, L] bool
  """Where `pattern` begins; patterns may overlap."""
  found = jnp.ones(words.shape, bool)
  for offset, bits, value in _pieces(pattern):
    found &= shifted(words, offset) & bits == value
  return found


def one_of(data: jax.Array, characters: bytes) -> jax.Array:  # [B, L] bool
  """Where one of these bytes stands."""
  found = jnp.zeros(data.shape, bool)
  for byte in characters:
    found |= data == byte
  return found


def digits(data: jax.Array) -> jax.Array:  # [B, L] bool
  """Where 0 to 9 stand; other digits of Unicode are none."""
  return (data >= ord("0")) & (data <= ord("9"))


def lower(data: jax.Array) -> jax.Array:  # [B, L] bool
  """Where a to z stand."""
  return (data >= ord("a")) & (data <= ord("z"))


def spaces(words: jax.Array) -> jax.Array:  # [B, L] bool
  """All bytes of white space, as `str.strip` and `\\s` understand it.

  They are U+0009 to U+000D, U+001C to U+0020, U+0085, U+00A0, U+1680, U+2000
  to U+200A, U+2028, U+2029, U+202F, U+205F and U+3000.
  """
  data, pair, triple = (words & (256**k - 1) for k in (1, 2, 3))
  one = ((data >= 9) & (data <= 13)) | ((data >= 28) & (data <= 32))
  two = (pair == 0x85C2) | (pair == 0xA0C2)
  three = (triple & 0xFFFF == 0x80E2) & _general(triple >> 16)
  for code in (0x1680, 0x205F, 0x3000):
    three |= triple == int.from_bytes(chr(code).encode(), "little")
  size = jnp.where(three, 3, jnp.where(two, 2, one)).astype(jnp.int8)
  size = jax.lax.optimization_barrier(size)
  return (size > 0) | (shifted(size, -1) > 1) | (shifted(size, -2) > 2)


def _general(last: jax.Array) -> jax.Array:
  """Whether E2 80 and this byte are white space."""
  listed = (last == 0xA8) | (last == 0xA9) | (last == 0xAF)
  return listed | ((last >= 0x80) & (last <= 0x8A))


def places(data: jax.Array) -> jax.Array:  # [L] int32
  """The position of each byte."""
  return jnp.arange(data.shape[-1], dtype=jnp.int32)


def first(mask: jax.Array) -> jax.Array:  # [..., L] -> [...] int32
  """Position of the first True; L if there is none."""
  return jnp.min(jnp.where(mask, places(mask), mask.shape[-1]), axis=-1)


def last(mask: jax.Array) -> jax.Array:  # [..., L] -> [...] int32
  """Position of the last True; -1 if there is none."""
  return jnp.max(jnp.where(mask, places(mask), -1), axis=-1)


def before(mask: jax.Array, end: jax.Array) -> jax.Array:  # [..., L] bool
  """The part of `mask` [..., L] that lies before `end` [...]."""
  return mask & (places(mask) < end[..., None])


def behind(mask: jax.Array, start: jax.Array) -> jax.Array:  # [..., L] bool
  """The part of `mask` [..., L] that lies at `start` [...] or behind it."""
  return mask & (places(mask) >= start[..., None])


def at(data: jax.Array, index: jax.Array) -> jax.Array:  # as `index`
  """Elements of each row, at `index` [B] or [B, n]; zero outside the row."""
  size = data.shape[1]
  clipped = jnp.clip(index, 0, size - 1).reshape(len(data), -1)
  value = jnp.take_along_axis(
    data, clipped, axis=1, mode="promise_in_bounds"
  ).reshape(index.shape)
  inside = (index >= 0) & (index < size)
  return jnp.where(inside, value, jnp.zeros_like(value))


def kept(
  data: jax.Array,  # [B, L]
  start: jax.Array,  # [B]
  end: jax.Array,  # [B]
) -> jax.Array:  # [B, L]
  """The row with zeros outside of [start, end)."""
  inside = behind(before(jnp.ones(data.shape, bool), end), start)
  return jnp.where(inside, data, jnp.zeros_like(data))


def stripped(
  space: jax.Array,  # [B, L] bool
  start: jax.Array,  # [B]
  end: jax.Array,  # [B]
) -> tuple[jax.Array, jax.Array]:  # [B], [B]
  """[start, end) without the white space at its ends."""
  word = behind(before(~space, end), start)
  end = last(word) + 1
  found = end > 0
  return jnp.where(found, first(word), start), jnp.where(found, end, start)

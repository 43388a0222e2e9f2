"""Sampled tokens as rows of bytes, and searches in them, in a compiled program.

    data = text.table(tokenizer.token_bytes())
    written = text.written(data, tokens, mask, max_bytes=4096)

The bytes are those that `tokenizer.decode` writes, except for bytes that are
not UTF-8: `decode` writes U+FFFD for them, and here they stay as they are.
Neither is part of a number, a tag, a letter or white space.

A row of a batch is UTF-8 text with zeros behind its end. A pattern in ASCII
occurs in the bytes where it occurs in the characters, because no byte of
another character is ASCII. Positions are counted in bytes from 0. Every
function takes time linear in the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

_SPACE = ord(" ")
_MAX_STRIPS = 8


class ByteTable(NamedTuple):
  """The bytes that each token writes, N together.

  Attributes:
    bytes: Bytes of all tokens, one after another, and a zero.
    starts: Place where the bytes of each token begin.
    lengths: Bytes of each token; 0 for tokens that are not written.
    strips: Most spaces that are dropped at the beginning of a text.
  """

  bytes: jax.Array  # [N + 1] uint8
  starts: jax.Array  # [V] int32
  lengths: jax.Array  # [V] int32
  strips: jax.Array  # [] int32


class Text(NamedTuple):
  """Rows of UTF-8.

  Attributes:
    bytes: The text; zero behind its end.
    length: Bytes of each row's text, L at most.
    cut: True if the text was longer than L, so that its end is missing.
  """

  bytes: jax.Array  # [B, L] uint8
  length: jax.Array  # [B] int32
  cut: jax.Array  # [B] bool


def table(tokens: Sequence[bytes], strips: int = 0) -> ByteTable:
  """Makes a table of the bytes of all tokens, in the order of their ids.

  Args:
    tokens: As `data.tokenizer.Tokenizer.token_bytes` returns them.
    strips: Spaces that the decoder drops at the beginning of a text, 0 to 8,
      as `data.tokenizer.Tokenizer.stripped_spaces` counts them.

  Raises:
    ValueError: There are no tokens, or `strips` is out of range.
  """
  if not 0 <= strips <= _MAX_STRIPS:
    raise ValueError(
      f"text.table: strips is {strips}; needs 0 to {_MAX_STRIPS} spaces."
    )
  if not tokens:
    raise ValueError("text.table: received no tokens; pass at least one.")
  lengths = np.array([len(token) for token in tokens], np.int32)
  joined = np.frombuffer(b"".join(tokens) + b"\0", np.uint8)
  return ByteTable(
    jnp.asarray(joined),
    jnp.asarray(np.cumsum(lengths, dtype=np.int32) - lengths),
    jnp.asarray(lengths),
    jnp.int32(strips),
  )


def _lengths(
  table: ByteTable,
  tokens: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T] int32
  is_known = (tokens >= 0) & (tokens < table.lengths.shape[0])
  lengths = table.lengths[jnp.where(is_known, tokens, 0)]
  return jnp.where(mask & is_known, lengths, 0)


def _stripped(
  table: ByteTable,
  tokens: jax.Array,  # [B, T]
  ends: jax.Array,  # [B, T]
  lengths: jax.Array,  # [B, T]
) -> jax.Array:  # [B] int32
  """Counts the spaces at the beginning of each row that are not written."""
  place = jnp.arange(_MAX_STRIPS)[None, :]
  opening = _bytes(table, tokens, ends, lengths, place)
  leading = jnp.cumprod(opening == _SPACE, axis=1).sum(axis=1)
  return jnp.minimum(leading, table.strips).astype(jnp.int32)


def _bytes(
  table: ByteTable,
  tokens: jax.Array,  # [B, T]
  ends: jax.Array,  # [B, T]
  lengths: jax.Array,  # [B, T]
  places: jax.Array,  # [B or 1, L]
) -> jax.Array:  # [B, L] uint8
  """Returns the bytes of all tokens one after another, at `places`."""
  num_rows, num_tokens = tokens.shape
  places = jnp.broadcast_to(places, (num_rows, places.shape[1]))
  which = jax.vmap(lambda e, p: jnp.searchsorted(e, p, side="right"))(
    ends, places
  )  # [B, L]
  inside = which < num_tokens
  which = jnp.minimum(which, num_tokens - 1)

  def of(x: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, which, axis=1)

  offset = places - of(ends - lengths)
  token = jnp.clip(of(tokens), 0, table.lengths.shape[0] - 1)
  value = table.bytes[table.starts[token] + offset]
  return jnp.where(inside, value, jnp.uint8(0))


def written(
  table: ByteTable,
  tokens: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  max_bytes: int,
) -> Text:
  """Returns the text of the tokens where `mask` is True.

  Args:
    table: The tokenizer's table. Ids that it does not have write nothing.
    tokens: Token ids.
    mask: True for tokens that exist.
    max_bytes: L, the room for each row. Bytes that do not fit are left out.
  """
  chex.assert_rank([tokens, mask], 2)
  chex.assert_equal_shape([tokens, mask])
  lengths = _lengths(table, tokens, mask)
  ends = jnp.cumsum(lengths, axis=1)  # [B, T]
  start = _stripped(table, tokens, ends, lengths)  # [B]
  places = jnp.arange(max_bytes)[None, :] + start[:, None]  # [B, L]
  data = _bytes(table, tokens, ends, lengths, places)
  total = ends[:, -1] - start
  return Text(data, jnp.minimum(total, max_bytes), total > max_bytes)


def ends(
  table: ByteTable,
  tokens: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T] int32
  """Counts the bytes of the text up to the end of each token.

  A token that writes nothing ends where the token before it does.
  """
  chex.assert_rank([tokens, mask], 2)
  chex.assert_equal_shape([tokens, mask])
  lengths = _lengths(table, tokens, mask)
  total = jnp.cumsum(lengths, axis=1)
  start = _stripped(table, tokens, total, lengths)
  return jnp.maximum(total - start[:, None], 0)


def encoded(texts: Sequence[str], max_bytes: int) -> Text:
  """Encodes texts as rows of UTF-8 bytes on the host, for tests and pages.

  A longer text is cut. A lone surrogate becomes three bytes.
  """
  rows = [text.encode("utf-8", "surrogatepass") for text in texts]
  data = np.zeros((len(rows), max_bytes), np.uint8)
  for row, content in zip(data, rows, strict=True):
    part = content[:max_bytes]
    row[: len(part)] = np.frombuffer(part, np.uint8)
  lengths = np.array([len(row) for row in rows], np.int32)
  return Text(
    jnp.asarray(data),
    jnp.asarray(np.minimum(lengths, max_bytes)),
    jnp.asarray(lengths > max_bytes),
  )


def shifted(data: jax.Array, by: int) -> jax.Array:  # [B, L] -> [B, L]
  """Returns the data `by` places further on (back, if negative), or zero."""
  chex.assert_rank(data, 2)
  size = data.shape[1]
  if abs(by) >= size:
    return jnp.zeros_like(data)
  if by >= 0:
    return jnp.pad(data[:, by:], ((0, 0), (0, by)))
  return jnp.pad(data[:, :by], ((0, 0), (-by, 0)))


def words(data: jax.Array) -> jax.Array:  # [B, L] uint8 -> [B, L] uint32
  """Returns the four bytes from each place on, the first in the lowest bits.

  Patterns are compared by them: four bytes at once, and without shifting the
  bytes anew for each pattern, which takes most of the time to compile.
  """
  packed = jnp.zeros(data.shape, jnp.uint32)
  for k in range(4):
    packed |= shifted(data, k).astype(jnp.uint32) << (8 * k)
  return jax.lax.optimization_barrier(packed)


def _pieces(pattern: bytes) -> Iterator[tuple[int, np.uint32, np.uint32]]:
  """Cuts a pattern into four bytes: offset, mask of bits, the bits."""
  for k in range(0, len(pattern), 4):
    piece = pattern[k : k + 4]
    bits = np.uint32(256 ** len(piece) - 1)
    yield k, bits, np.uint32(int.from_bytes(piece, "little"))


def starts(words: jax.Array, pattern: bytes) -> jax.Array:  # [B, L] bool
  """Marks the places where `pattern` begins; patterns may overlap."""
  matches = jnp.ones(words.shape, bool)
  for offset, bits, value in _pieces(pattern):
    matches &= shifted(words, offset) & bits == value
  return matches


def one_of(data: jax.Array, characters: bytes) -> jax.Array:  # [B, L] bool
  """Marks the places of any of these bytes."""
  matches = jnp.zeros(data.shape, bool)
  for byte in characters:
    matches |= data == byte
  return matches


def digits(data: jax.Array) -> jax.Array:  # [B, L] bool
  """Marks the places of 0 to 9; other digits of Unicode do not count."""
  return (data >= ord("0")) & (data <= ord("9"))


def lower(data: jax.Array) -> jax.Array:  # [B, L] bool
  """Marks the places of a to z."""
  return (data >= ord("a")) & (data <= ord("z"))


def spaces(words: jax.Array) -> jax.Array:  # [B, L] bool
  r"""Marks all bytes of white space, as in `str.strip` and `\s`.

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
  """Returns True if E2 80 and this byte are white space."""
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


def within(
  data: jax.Array,  # [B, L]
  start: jax.Array,  # [B]
  end: jax.Array,  # [B]
) -> jax.Array:  # [B, L]
  """Returns the rows with zeros outside [start, end)."""
  inside = behind(before(jnp.ones(data.shape, bool), end), start)
  return jnp.where(inside, data, jnp.zeros_like(data))


def stripped(
  space: jax.Array,  # [B, L] bool
  start: jax.Array,  # [B]
  end: jax.Array,  # [B]
) -> tuple[jax.Array, jax.Array]:  # [B], [B]
  """Returns [start, end) without the white space at its ends."""
  word = behind(before(~space, end), start)
  end = last(word) + 1
  filled = end > 0
  return jnp.where(filled, first(word), start), jnp.where(filled, end, start)

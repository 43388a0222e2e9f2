"""Sampled tokens as rows of bytes, inside a compiled program.

    data = text.table(tokenizer.token_bytes())
    written = text.written(data, tokens, mask, max_bytes=4096)

The bytes are those that `tokenizer.decode` writes, but for bytes that are no
UTF-8: `decode` writes U+FFFD for them, and here they stay as they are. Neither
is part of a number, a tag, a letter or white space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

_SPACE = ord(" ")
_MAX_STRIPS = 8


class Table(NamedTuple):
  """What each token writes, N bytes together.

  Attributes:
    bytes: Of all tokens, one after another, and a zero.
    starts: Where the bytes of each token begin.
    lengths: Bytes of each token; 0 for tokens that are not written.
    strips: Spaces that are dropped at the beginning of a text, at most.
  """

  bytes: jax.Array  # [N + 1] uint8
  starts: jax.Array  # [V] int32
  lengths: jax.Array  # [V] int32
  strips: jax.Array  # [] int32


class Text(NamedTuple):
  """Rows of UTF-8.

  Attributes:
    bytes: Zero behind the end.
    length: Bytes of each row that are there, L at most.
    cut: Whether the text was longer than L. Its end is missing then.
  """

  bytes: jax.Array  # [B, L] uint8
  length: jax.Array  # [B] int32
  cut: jax.Array  # [B] bool


def table(tokens: Sequence[bytes], strips: int = 0) -> Table:
  """A table of the bytes of all tokens, in the order of their ids.

  Args:
    tokens: As `data.tokenizer.Tokenizer.token_bytes` returns them.
    strips: Spaces that the decoder drops at the beginning of a text, 0 to 8,
      as `data.tokenizer.Tokenizer.stripped_spaces` counts them.

  Raises:
    ValueError: There are no tokens, or `strips` is out of range.
  """
  if not 0 <= strips <= _MAX_STRIPS:
    raise ValueError(
      f"text.table: strips is {strips}; needed is 0 to {_MAX_STRIPS} spaces."
    )
  if not tokens:
    raise ValueError("text.table: received no tokens; pass at least one.")
  lengths = np.array([len(token) for token in tokens], np.int32)
  joined = np.frombuffer(b"".join(tokens) + b"\0", np.uint8)
  return Table(
    jnp.asarray(joined),
    jnp.asarray(np.cumsum(lengths, dtype=np.int32) - lengths),
    jnp.asarray(lengths),
    jnp.int32(strips),
  )


def _lengths(
  table: Table,
  tokens: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T] int32
  known = (tokens >= 0) & (tokens < table.lengths.shape[0])
  lengths = table.lengths[jnp.where(known, tokens, 0)]
  return jnp.where(mask & known, lengths, 0)


def _stripped(
  table: Table,
  tokens: jax.Array,  # [B, T]
  ends: jax.Array,  # [B, T]
  lengths: jax.Array,  # [B, T]
) -> jax.Array:  # [B] int32
  """How many spaces at the beginning of each row are not written."""
  place = jnp.arange(_MAX_STRIPS)[None, :]
  opening = _bytes(table, tokens, ends, lengths, place)
  leading = jnp.cumprod(opening == _SPACE, axis=1).sum(axis=1)
  return jnp.minimum(leading, table.strips).astype(jnp.int32)


def _bytes(
  table: Table,
  tokens: jax.Array,  # [B, T]
  ends: jax.Array,  # [B, T]
  lengths: jax.Array,  # [B, T]
  places: jax.Array,  # [B or 1, L]
) -> jax.Array:  # [B, L] uint8
  """The bytes of all tokens one after another, at `places`."""
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
  table: Table,
  tokens: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  max_bytes: int,
) -> Text:
  """The text of the tokens where `mask` is True.

  Args:
    table: Of the tokenizer. Ids that it does not have write nothing.
    tokens: Ids.
    mask: Which of them exist.
    max_bytes: L, the room for each row. What does not fit is left out.
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
  table: Table,
  tokens: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T] int32
  """How many bytes of the text are written once a token is.

  A token that writes nothing ends where the one before it does.
  """
  chex.assert_rank([tokens, mask], 2)
  chex.assert_equal_shape([tokens, mask])
  lengths = _lengths(table, tokens, mask)
  total = jnp.cumsum(lengths, axis=1)
  start = _stripped(table, tokens, total, lengths)
  return jnp.maximum(total - start[:, None], 0)


def encoded(texts: Sequence[str], max_bytes: int) -> Text:
  """Rows of bytes of texts that are known on the host, for tests and pages.

  Half a surrogate pair is written as the three bytes that it would have.
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

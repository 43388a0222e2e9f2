"""Verdicts in the replies of a judge, inside a compiled program.

`read` does the same as `rewards.rubrics.read`.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from grpo_jax.rewards import rubrics
from grpo_jax.rewards.in_graph import text as text_lib
from grpo_jax.rewards.in_graph.text import Text


def read(
  text: Text, verdicts: Mapping[str, float], marker: str = ""
) -> jax.Array:  # [B] float32
  """Returns the reward of each row's verdict; NaN without a verdict.

  See `rewards.rubrics.read`. Without a marker, a row that was cut has no
  verdict: its last word is unknown.
  """
  data = text.bytes
  upper = (data >= ord("A")) & (data <= ord("Z"))
  data = jnp.where(upper, data + 32, data)
  words = text_lib.words(data)
  start = jnp.zeros_like(text.length)
  is_readable = ~text.cut
  if marker:
    opening = rubrics.lowered(marker).encode()
    last = text_lib.last(text_lib.starts(words, opening))
    start, is_readable = last + len(opening), last >= 0
  best = jnp.full(text.length.shape, -1)
  value = jnp.full(text.length.shape, jnp.nan, jnp.float32)
  longest = max(map(len, verdicts))
  for word, reward in verdicts.items():
    where = text_lib.behind(_word_starts(data, words, word), start)
    place = text_lib.last(where) + len(word)  # The end of the word.
    if marker:
      place = data.shape[1] - text_lib.first(where)
    # The longest of the words that begin, or end, at the same place.
    rank = jnp.where(where.any(axis=1), place * (longest + 1) + len(word), -1)
    value = jnp.where(rank > best, jnp.float32(reward), value)
    best = jnp.maximum(best, rank)
  return jnp.where(is_readable, value, jnp.nan)


def _word_starts(
  data: jax.Array,  # [B, L] uint8
  words: jax.Array,  # [B, L] uint32
  word: str,
) -> jax.Array:  # [B, L] bool
  """Marks the starts of a word that is not part of another, or of a number."""
  pattern = rubrics.lowered(word).encode()
  matches = text_lib.starts(words, pattern)
  before = text_lib.shifted(data, -1)
  behind, second = (text_lib.shifted(data, len(pattern) + k) for k in (0, 1))
  matches &= ~_of_words(before) & ~_of_words(behind)
  if word[0].isdigit():
    matches &= ~text_lib.one_of(before, rubrics.BEFORE_DIGITS.encode())
  if word[-1].isdigit():
    is_sign = text_lib.one_of(behind, rubrics.IN_NUMBERS.encode())
    matches &= ~(is_sign & text_lib.digits(second))
  return matches


def _of_words(data: jax.Array) -> jax.Array:
  """Marks bytes of words, with all bytes of characters beyond ASCII."""
  return (
    text_lib.digits(data)
    | text_lib.lower(data)
    | (data == ord("_"))
    | (data >= 0x80)
  )

"""Rewards for the form of a completion, inside a compiled program.

The rewards are the same numbers as those of `rewards.form`.

For the share of a script's letters, bytes of UTF-8 become code points inside
the program. A table of the places in Unicode where runs of letters begin and
end, which is made once, tells letters from other characters.
"""

from __future__ import annotations

import functools
import sys
import unicodedata

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rewards.in_graph import text as text_lib
from grpo_jax.rewards.in_graph.text import Text

# First and last code points of the blocks that hold a script's letters. Other
# characters of a block are not letters, and do not count.
BLOCKS: dict[str, tuple[tuple[int, int], ...]] = {
  "latin": (
    *((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x250, 0x2AF)),
    *((0x1D00, 0x1D25), (0x1D62, 0x1D65), (0x1D6B, 0x1D77), (0x1D79, 0x1D9A)),
    *((0x1E00, 0x1EFF), (0x2090, 0x209C), (0x2C60, 0x2C7C), (0x2C7E, 0x2C7F)),
    *((0xA722, 0xA76F), (0xA771, 0xA787), (0xA78B, 0xA7CA)),
    *((0xA7CB, 0xA7F1), (0xA7F5, 0xA7F7), (0xA7FA, 0xA7FF)),
    *((0xAB30, 0xAB5A), (0xAB60, 0xAB64), (0xAB66, 0xAB68)),
    *((0xFB00, 0xFB06), (0xFF21, 0xFF3A), (0xFF41, 0xFF5A)),
    *((0x1DF00, 0x1DFFF), (0x2184, 0x2184)),
  ),
  "cyrillic": (
    *((0x400, 0x52F), (0x1C80, 0x1C8F), (0x1D2B, 0x1D2B)),
    *((0xA640, 0xA69B), (0x1E030, 0x1E08F)),
  ),
  "greek": (
    *((0x370, 0x374), (0x376, 0x3E1), (0x3F0, 0x3FF), (0x1F00, 0x1FFF)),
    *((0x1D26, 0x1D2A), (0x1D66, 0x1D6A), (0xAB65, 0xAB65)),
  ),
  "arabic": (
    *((0x600, 0x6FF), (0x750, 0x77F), (0x870, 0x8FF), (0xFB50, 0xFDFF)),
    *((0xFE70, 0xFEFC), (0x10EC0, 0x10EFF), (0x1EE00, 0x1EEFF)),
  ),
  "devanagari": ((0x900, 0x97F), (0xA8E0, 0xA8FF), (0x11B00, 0x11B5F)),
  "han": (
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)),
    *((0x20000, 0x323AF), (0x323B0, 0x3347F)),
  ),
  "kana": (
    *((0x3041, 0x3096), (0x309D, 0x309F), (0x30A1, 0x30FF)),
    *((0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F)),
  ),
  "hangul": (
    *((0x1100, 0x11FF), (0x3131, 0x318E), (0xA960, 0xA97F)),
    *((0xAC00, 0xD7FF), (0xFFA0, 0xFFDC)),
  ),
}


@functools.cache
def _letters() -> np.ndarray:  # [R] int32
  """Returns the code points where runs of letters begin and, in turn, end."""
  is_letter = np.array(
    [unicodedata.category(chr(x))[0] == "L" for x in range(sys.maxunicode + 1)]
  )
  padded = np.concatenate([[False], is_letter, [False]])
  return np.flatnonzero(padded[1:] != padded[:-1]).astype(np.int32)


def code_points(
  data: jax.Array,  # [B, L] uint8
) -> jax.Array:  # [B, L] int32
  """Returns the character that begins at each byte, or 0.

  No character begins inside another one, nor at bytes that are not UTF-8.
  """
  later = [text_lib.shifted(data, k).astype(jnp.int32) for k in (1, 2, 3)]
  continues = [(x >= 0x80) & (x < 0xC0) for x in later]
  lead = data.astype(jnp.int32)
  point = jnp.where(lead < 0x80, lead, 0)
  good = jnp.ones(data.shape, bool)
  value = lead
  for size, (mark, least) in enumerate(
    ((0xC0, 0x80), (0xE0, 0x800), (0xF0, 0x10000)), start=1
  ):
    good &= continues[size - 1]
    value = (value << 6) | (later[size - 1] & 0x3F)
    bits = 6 - size  # Bits of the first byte below its mark.
    number = value & (2 ** (bits + 6 * size) - 1)
    is_lead = (lead >> bits) == (mark >> bits)
    valid = is_lead & good & (number >= least) & (number <= sys.maxunicode)
    point = jnp.where(valid, number, point)
  return point


def letters_of(
  data: jax.Array,  # [B, L] uint8
  script: str,
) -> tuple[jax.Array, jax.Array]:  # [B, L] bool, [B, L] bool
  """Marks the bytes where letters begin, and where those of a script do.

  Raises:
    KeyError: The script is unknown.
  """
  if script not in BLOCKS:
    raise KeyError(
      f"forms.letters_of: no script {script!r}; choose from {sorted(BLOCKS)}."
    )
  point = code_points(data)
  runs = jnp.asarray(_letters())
  is_letter = jnp.searchsorted(runs, point, side="right") % 2 == 1
  inside = jnp.zeros(data.shape, bool)
  for low, high in BLOCKS[script]:
    inside |= (point >= low) & (point <= high)
  return is_letter, is_letter & inside


_TAGS = (b"<think>", b"</think>", b"<answer>", b"</answer>")


def _tag_starts(text: Text) -> jax.Array:  # [4, B, L] bool
  """Marks the bytes where each of the four tags begins."""
  words = text_lib.words(text.bytes)
  return jnp.stack([text_lib.starts(words, tag) for tag in _TAGS])


def tag_count(text: Text) -> jax.Array:  # [B] float32
  """0.25 for each of the four tags that occurs exactly once.

  See `rewards.form.tag_count`.
  """
  once = _tag_starts(text).sum(axis=2) == 1  # [4, B]
  return 0.25 * once.sum(axis=0).astype(jnp.float32)


def think_answer_format(text: Text) -> jax.Array:  # [B] float32
  """1.0 if the completion is one thought followed by one answer, else 0.0.

  See `rewards.form.think_answer_format`. A text that was cut has 0.0.
  """
  tags = _tag_starts(text)
  once = (tags.sum(axis=2) == 1).all(axis=0)
  think, end_think, answer, end_answer = starts = text_lib.first(tags)
  # Each tag, and the words between it and the next tag, or the end.
  begins = starts + np.array([len(tag) for tag in _TAGS])[:, None]
  ends = jnp.stack([end_think, answer, end_answer, text.length])
  word = ~text_lib.spaces(text_lib.words(text.bytes))
  words = text_lib.behind(text_lib.before(word, ends), begins).any(axis=2)
  good = once & ~text.cut & (think == 0)
  good &= words[0] & ~words[1] & words[2] & ~words[3]
  good &= (end_think < answer) & (answer < end_answer)
  return good.astype(jnp.float32)


def language_consistency(
  text: Text, script: str = "latin"
) -> jax.Array:  # [B] float32
  """The share of the letters of the thought that belong to a script.

  See `rewards.form.language_consistency`.

  Returns:
    0 to 1; NaN if the thought has no letters.

  Raises:
    KeyError: The script is not in `BLOCKS`.
  """
  think, end_think, _, _ = _tag_starts(text)
  opening = text_lib.first(think)
  opened = think.any(axis=1)
  start = jnp.where(opened, opening + len(_TAGS[0]), 0)
  end = text_lib.first(text_lib.behind(end_think, start))
  end = jnp.minimum(end, text.length)
  letters, own = (
    text_lib.behind(text_lib.before(mask, end), start).sum(axis=1)
    for mask in letters_of(text.bytes, script)
  )
  share = own / jnp.maximum(letters, 1)
  return jnp.where(letters > 0, share, jnp.nan).astype(jnp.float32)

"""Rewards for the form of a completion, inside a compiled program.

The same numbers as the functions of `rewards.formatting`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rewards.in_graph import scripts, strings
from grpo_jax.rewards.in_graph.text import Text

_TAGS = (b"<think>", b"</think>", b"<answer>", b"</answer>")


def _found(text: Text) -> jax.Array:  # [4, B, L] bool
  """Where each of the four tags begins."""
  words = strings.words(text.bytes)
  return jnp.stack([strings.starts(words, tag) for tag in _TAGS])


def tag_count(text: Text) -> jax.Array:  # [B] float32
  """0.25 for each of the four tags that occurs exactly once.

  See `rewards.formatting.tag_count`.
  """
  once = _found(text).sum(axis=2) == 1  # [4, B]
  return 0.25 * once.sum(axis=0).astype(jnp.float32)


def think_answer_format(text: Text) -> jax.Array:  # [B] float32
  """1.0 where the completion is one thought followed by one answer, else 0.0.

  See `rewards.formatting.think_answer_format`. A text that was cut is neither.
  """
  found = _found(text)
  once = (found.sum(axis=2) == 1).all(axis=0)
  think, end_think, answer, end_answer = starts = strings.first(found)
  # Each tag, and the words between it and what is next.
  begins = starts + np.array([len(tag) for tag in _TAGS])[:, None]
  ends = jnp.stack([end_think, answer, end_answer, text.length])
  word = ~strings.spaces(strings.words(text.bytes))
  words = strings.behind(strings.before(word, ends), begins).any(axis=2)
  good = once & ~text.cut & (think == 0)
  good &= words[0] & ~words[1] & words[2] & ~words[3]
  good &= (end_think < answer) & (answer < end_answer)
  return good.astype(jnp.float32)


def language_consistency(
  text: Text, script: str = "latin"
) -> jax.Array:  # [B] float32
  """The share of the letters of the thought that belong to a script.

  See `rewards.formatting.language_consistency`.

  Returns:
    0 to 1; NaN where the thought has no letters.

  Raises:
    KeyError: No such script; `scripts.BLOCKS` has them.
  """
  think, end_think, _, _ = _found(text)
  opening = strings.first(think)
  opened = think.any(axis=1)
  start = jnp.where(opened, opening + len(_TAGS[0]), 0)
  end = strings.first(strings.behind(end_think, start))
  end = jnp.minimum(end, text.length)
  letters, own = (
    strings.behind(strings.before(mask, end), start).sum(axis=1)
    for mask in scripts.letters(text.bytes, script)
  )
  share = own / jnp.maximum(letters, 1)
  return jnp.where(letters > 0, share, jnp.nan).astype(jnp.float32)

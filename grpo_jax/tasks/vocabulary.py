"""The 64 tokens that the toy tasks share, and the parsers of completions.

Ids 0-13 are structure, 14-23 digits, 24-37 signs, 38-63 letters. Completions
follow one grammar,

    [<think> W* </think>] <answer> ANS </answer> EOS

or the bare `ANS EOS` if a task has the option `tags` off. Each in-graph parser
has a readable twin on lists of strings, and tests compare the two. A parser is
strict: if a tag occurs twice, or an end token is missing or not last, there is
no answer.

A policy from a checkpoint has more ids than these. An id beyond them is a wrong
token like any other, and its text is `<123>`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

# id -> text. Ids are part of every checkpoint: append, never reorder.
TOKENS = (
  *("<pad>", "<bos>", "<eos>", "<think>", "</think>", "<answer>", "</answer>"),
  *("<tool>", "</tool>", "<obs>", "</obs>", "<sum>", "</sum>", ";"),
  *"0123456789+-*=()[]{},:?#abcdefghijklmnopqrstuvwxyz",
)
VOCAB_SIZE = len(TOKENS)
_IDS = {text: i for i, text in enumerate(TOKENS)}

PAD, BOS, EOS = 0, 1, 2
THINK, THINK_END = 3, 4
ANSWER, ANSWER_END = 5, 6
TOOL, TOOL_END = 7, 8
OBS, OBS_END = 9, 10
SUM, SUM_END = 11, 12
SEMICOLON = _IDS[";"]
DIGIT_0 = _IDS["0"]
PLUS, MINUS, TIMES, EQUALS = (_IDS[sign] for sign in "+-*=")
COMMA, COLON, QUESTION, HASH = (_IDS[sign] for sign in ",:?#")
LETTER_A = _IDS["a"]
NUM_LETTERS = 26


class Span(NamedTuple):
  """Slots [start, end) of a completion; 0, 0 if `ok` is False."""

  start: jax.Array  # [] int32
  end: jax.Array  # [] int32
  ok: jax.Array  # [] bool


def encode(text: str, more: Sequence[str] = ()) -> list[int]:
  """Token ids of a text such as `"<answer>12</answer><eos>"`.

  Args:
    text: Tags and single characters of `TOKENS`; white space is ignored.
    more: Further tags of a task, with ids from 64 on.

  Raises:
    ValueError: A piece is not in the vocabulary.
  """
  ids = _IDS | {piece: VOCAB_SIZE + i for i, piece in enumerate(more)}
  pieces = re.findall(r"<[^<>]*>|\S", text)
  unknown = sorted({piece for piece in pieces if piece not in ids})
  if unknown:
    raise ValueError(
      f"encode: {unknown} in {text!r} are not tokens; use those of"
      f" vocabulary.TOKENS: {' '.join([*TOKENS, *more])}"
    )
  return [ids[piece] for piece in pieces]


def decode(ids: Iterable[int], more: Sequence[str] = ()) -> str:
  """Readable text of token ids; padding at both ends is dropped."""
  words = [_text(int(i), more) for i in ids]
  while words and words[-1] == "<pad>":
    words.pop()
  while words and words[0] == "<pad>":
    words.pop(0)
  return "".join(words)


def _text(token: int, more: Sequence[str] = ()) -> str:
  pieces = (*TOKENS, *more)
  return pieces[token] if token < len(pieces) else f"<{token}>"


def of_task(more: Sequence[str] = ()) -> dict[str, Any]:
  """The fields of a `Task` whose tokens these are; `more` as in `encode`."""
  return {
    "vocab_size": VOCAB_SIZE + len(more),
    "pad_id": PAD,
    "bos_id": BOS,
    "end_ids": (EOS,),
    "encode": functools.partial(encode, more=more),
    "decode": functools.partial(decode, more=more),
  }


def number(value: int) -> list[int]:
  """Token ids of a non-negative decimal number, most significant first."""
  return [DIGIT_0 + int(digit) for digit in str(value)]


def padded(ids: Sequence[int], size: int) -> np.ndarray:  # [size] int32
  """Pads ids at the end."""
  return np.array([*ids, *[PAD] * (size - len(ids))], np.int32)


def wrapped(answer: Sequence[int], tags: bool) -> list[int]:
  """Makes a whole completion of an answer, with or without tags."""
  return [ANSWER, *answer, ANSWER_END, EOS] if tags else [*answer, EOS]


def span(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  opening: int,
  closing: int,
) -> Span:
  """Finds the slots between the only `opening` and the only `closing`.

  Tokens where the mask is False may be anything.

  Returns:
    The slots between the tags; not ok unless each occurs once, in order.
  """
  chex.assert_rank([tokens, completion_mask], 1)
  chex.assert_equal_shape([tokens, completion_mask])
  is_open = completion_mask & (tokens == opening)  # [T]
  is_close = completion_mask & (tokens == closing)  # [T]
  start = jnp.argmax(is_open) + 1
  end = jnp.argmax(is_close)
  ok = (is_open.sum() == 1) & (is_close.sum() == 1) & (start <= end)
  return Span(jnp.where(ok, start, 0), jnp.where(ok, end, 0), ok)


def last_span(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  opening: int,
  closing: int,
) -> Span:
  """Finds the slots between the last `opening` and the `closing` after it.

  Returns:
    The slots between the tags; not ok if there is no opening tag, or if the
    number of closing tags after it is not one.
  """
  chex.assert_rank([tokens, completion_mask], 1)
  chex.assert_equal_shape([tokens, completion_mask])
  slots = jnp.arange(len(tokens))
  is_open = completion_mask & (tokens == opening)  # [T]
  start = jnp.max(jnp.where(is_open, slots, -1)) + 1
  is_close = completion_mask & (tokens == closing) & (slots >= start)  # [T]
  ok = is_open.any() & (is_close.sum() == 1)
  end = jnp.argmax(is_close)
  return Span(jnp.where(ok, start, 0), jnp.where(ok, end, 0), ok)


def answer_span(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  tags: bool,
  of_several: bool = False,
) -> Span:
  """Finds the answer of a completion that is properly ended.

  Args:
    tokens: One completion; slots where the mask is False may hold anything.
    completion_mask: True on tokens that exist; they are adjacent and start at
      slot 0.
    tags: Whether the answer stands in `<answer> </answer>`; otherwise the
      whole completion before the end token is the answer.
    of_several: Whether the last of several answers between tags counts;
      otherwise there must be a single answer.

  Returns:
    The slots of the answer. Not ok unless the last token is the only end token
    and, with tags, comes right after the only `</answer>` (with `of_several`,
    the only one after the last `<answer>`). Tokens before `<answer>` are not
    judged.
  """
  chex.assert_rank([tokens, completion_mask], 1)
  chex.assert_equal_shape([tokens, completion_mask])
  last = completion_mask.sum() - 1
  is_eos = completion_mask & (tokens == EOS)  # [T]
  ended = is_eos.any() & (jnp.argmax(is_eos) == last)  # argmax: the first
  if not tags:
    return Span(jnp.zeros_like(last), jnp.where(ended, last, 0), ended)
  find = last_span if of_several else span
  answer = find(tokens, completion_mask, ANSWER, ANSWER_END)
  ok = ended & answer.ok & (answer.end == last - 1)
  return Span(jnp.where(ok, answer.start, 0), jnp.where(ok, answer.end, 0), ok)


def thought_span(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
) -> Span:
  """Finds the thought of a completion that follows the grammar to the letter.

  Returns:
    The slots of the thought, which may be empty. Not ok unless the completion
    is `<think> … </think> <answer> … </answer> EOS`, with each tag once and
    nothing between, before or after.
  """
  thought = span(tokens, completion_mask, THINK, THINK_END)
  answer = answer_span(tokens, completion_mask, tags=True)
  # The two spans must meet: `</think>` and `<answer>` are neighbours.
  ok = thought.ok & answer.ok & (thought.start == 1)
  ok &= answer.start == thought.end + 2
  return Span(
    jnp.where(ok, thought.start, 0), jnp.where(ok, thought.end, 0), ok
  )


def inside(span: Span, num_slots: int) -> jax.Array:  # [T] bool
  """Mask of the slots of a span."""
  slots = jnp.arange(num_slots)
  return (slots >= span.start) & (slots < span.end)


def content(
  tokens: jax.Array,  # [T] int32
  span: Span,
  size: int,
) -> jax.Array:  # [size] int32
  """The first `size` tokens of a span, followed by padding."""
  slots = jnp.arange(size)
  window = jnp.take(tokens, span.start + slots, mode="fill", fill_value=PAD)
  return jnp.where(span.start + slots < span.end, window, PAD)


def words(
  tokens: np.ndarray,  # [T] int32
  completion_mask: np.ndarray,  # [T] bool
) -> list[str]:
  """The tokens of a completion that exist, as strings, for the twins."""
  pairs = zip(tokens, completion_mask, strict=True)
  return [_text(int(token)) for token, exists in pairs if exists]


def words_between(
  completion: list[str], opening: str, closing: str
) -> list[str] | None:
  """Twin of `span`: the words between two tags; None if not ok."""
  if completion.count(opening) != 1 or completion.count(closing) != 1:
    return None
  before, after = completion.index(opening), completion.index(closing)
  return completion[before + 1 : after] if before < after else None


def answer_words(
  completion: list[str], tags: bool, of_several: bool = False
) -> list[str] | None:
  """Twin of `answer_span`: the words of the answer; None if not ok."""
  if completion.count("<eos>") != 1 or completion[-1] != "<eos>":
    return None
  body = completion[:-1]
  if not tags:
    return body
  if not body or body[-1] != "</answer>":
    return None
  if of_several and "<answer>" in body:
    body = body[len(body) - 1 - body[::-1].index("<answer>") :]
  return words_between(body, "<answer>", "</answer>")


def thought_words(completion: list[str]) -> list[str] | None:
  """Twin of `thought_span`: the words of the thought; None if not ok."""
  thought = words_between(completion, "<think>", "</think>")
  answer = answer_words(completion, tags=True)
  if thought is None or answer is None:
    return None
  parts = ["<think>", *thought, "</think>", "<answer>", *answer, "</answer>"]
  return thought if completion == [*parts, "<eos>"] else None

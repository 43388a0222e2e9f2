r"""The answer that a completion commits to, in rows of bytes.

The rules are those of `rewards.answers.final_answer`, here with sums, minima
and maxima along the row in the place of a stack: of `\boxed{\frac{1}{2}}` the
depth of braces is

    \boxed{\frac{1}{2}}
    0     1     2 12 10

and a box is closed by the first brace behind it whose depth is less than the
box's own. Time is linear in the bytes, and so is memory.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.rewards.in_graph import strings
from grpo_jax.rewards.in_graph.text import Text

# Bytes of an answer that are looked at. What is longer is no answer here.
MAX_ANSWER = 256

_BACKSLASH = ord("\\")


class Window(NamedTuple):
  """An answer of each row, without white space around it, W bytes at most.

  Attributes:
    bytes: Zero behind the end, and where there is no answer.
    length: Bytes of the answer; 0 where there is none.
    found: Whether there is one. An empty answer is one.
  """

  bytes: jax.Array  # [B, W] uint8
  length: jax.Array  # [B] int32
  found: jax.Array  # [B] bool


class _Span(NamedTuple):
  start: jax.Array  # [B] int32
  end: jax.Array  # [B] int32
  found: jax.Array  # [B] bool


def _last_boxed(
  data: jax.Array,  # [B, L] uint8
  words: jax.Array,  # [B, L] uint32
  space: jax.Array,  # [B, L] bool
  start: jax.Array,  # [B]
  end: jax.Array,  # [B]
) -> _Span:
  r"""Content of the last `\boxed{…}` or `\boxed 4` in [start, end).

  Every `start` is 0 or follows a `>`, and every `end` precedes a `<` or is the
  end of the text, so that no command crosses them.
  """
  place = strings.places(data)
  backslash = data == _BACKSLASH
  # Of backslashes in a row, every other one escapes what follows it.
  plain = jnp.where(backslash, -1, place)
  run = place - jax.lax.cummax(plain, axis=1)  # 1 at the first of a run.
  escapes = backslash & (run % 2 == 1)
  escaped = strings.shifted(escapes, -1)
  brace = strings.behind(strings.before(~escaped, end), start)
  opens = brace & (data == ord("{"))
  closes = brace & (data == ord("}"))
  # \boxed, and what is nearest before each place that is no white space.
  command = jnp.zeros_like(escapes)
  for name in (rb"\boxed", rb"\fbox"):
    found = escapes & strings.starts(words, name)
    command |= strings.shifted(found, 1 - len(name))
  near = jax.lax.cummax(
    jnp.where(space, 0, 2 * place + command), axis=1
  )  # Twice the place, and 1 more if \boxed ends there.
  follows = strings.shifted(near, -1) % 2 == 1
  # Braces that close nothing make it negative, which changes no comparison.
  depth = jnp.cumsum(opens.astype(jnp.int32) - closes, axis=1)
  later = jax.lax.cummin(depth, axis=1, reverse=True)
  box = strings.last(
    opens & follows & (later < depth) & ~_nears(space, data == ord("}"))
  )  # [B]
  own = strings.at(depth, box)[:, None]
  close = strings.first(strings.behind(depth < own, box + 1))
  # A number without braces ends before a blank, a command or a brace.
  digit = strings.digits(data)
  sign = strings.one_of(data, b"+-") & strings.shifted(digit, 1)
  inside = strings.behind(strings.before(~space, end), start)
  bare = strings.last(inside & follows & (digit | sign))  # [B]
  stop = ~inside | strings.one_of(data, b"$\\{}")
  stop = strings.first(strings.behind(stop, bare))
  kept = strings.before(~strings.one_of(data, b".,;:!?)]"), stop)
  is_bare = bare > box
  return _Span(
    jnp.where(is_bare, bare, box + 1),
    jnp.where(is_bare, strings.last(kept) + 1, close),
    is_bare | (box >= 0),
  )


def _nears(space: jax.Array, mask: jax.Array) -> jax.Array:  # [B, L] bool
  """Whether the next word behind each place begins where `mask` is True."""
  place = strings.places(space)
  none = 2 * space.shape[1]
  word = jnp.where(space, none, 2 * place + mask)
  word = jax.lax.cummin(word, axis=1, reverse=True)
  return strings.shifted(word, 1) % 2 == 1


def _after_marker(
  words: jax.Array,  # [B, L] uint32
  space: jax.Array,  # [B, L] bool
  start: jax.Array,  # [B]
  end: jax.Array,  # [B]
  after: bytes,
) -> _Span:
  """What follows the last `after` in [start, end) before an end of line.

  Marks without a word behind them, in their line, are none.
  """
  marks = strings.behind(strings.starts(words, after), start)
  marks = strings.before(marks, end - (len(after) - 1))
  new_line = words & 255 == ord("\n")
  stop = new_line | (strings.places(words) >= end[:, None])
  word = _nears(space & ~stop, ~stop)
  mark = strings.last(marks & strings.shifted(word, len(after) - 1))
  content = mark + len(after)
  line = strings.first(strings.behind(new_line, content))
  return _Span(content, jnp.minimum(line, end), mark >= 0)


def _span(
  text: Text,
  words: jax.Array,  # [B, L] uint32
  space: jax.Array,  # [B, L] bool
  after: bytes,
) -> _Span:
  """The answer with white space around it."""
  tags = (b"<think>", b"</think>", b"<answer>", b"</answer>")
  found = jnp.stack([strings.starts(words, tag) for tag in tags])
  think, thought, answer, _ = strings.last(found)  # Each [B].
  rest = jnp.where(thought < 0, 0, thought + len(b"</think>"))
  tagged = answer >= rest
  # The last answer that has a word in it.
  place = strings.places(text.bytes)
  opens = strings.behind(found[2], rest)
  content = jax.lax.cummax(
    jnp.where(opens, place + len(b"<answer>"), -1), axis=1
  )  # [B, L]
  word = jax.lax.cummax(jnp.where(space, -1, place), axis=1)
  filled = (content >= 0) & (strings.shifted(word, -1) >= content)
  end = strings.last(found[3] & filled)
  content = strings.at(content, end)
  # A box is too often a try, if the thought was never closed.
  unfinished = (thought < 0) & (think >= 0)
  usable = jnp.where(tagged, end >= 0, ~unfinished)
  thinks = strings.first(strings.behind(found[0], rest))
  end = jnp.where(tagged, end, jnp.minimum(thinks, text.length))
  start = jnp.where(usable, jnp.where(tagged, content, rest), 0)
  end = jnp.where(usable, end, 0)
  span = _Span(start, end, usable & tagged)
  if after:
    marked = _after_marker(words, space, start, end, after)
    marked = marked._replace(found=marked.found & ~tagged)
    span = _either(span, marked, usable)
  boxed = _last_boxed(text.bytes, words, space, start, end)
  return _either(boxed, span, usable)


def _either(one: _Span, other: _Span, allowed: jax.Array) -> _Span:
  """`one`, or else `other`, where it is allowed."""
  return _Span(
    jnp.where(one.found, one.start, other.start),
    jnp.where(one.found, one.end, other.end),
    allowed & (one.found | other.found),
  )


def final_answer(
  text: Text, after: str = "", width: int = MAX_ANSWER
) -> Window:
  """The answer of each row, by the rules of `rewards.answers.final_answer`.

  Args:
    text: Completions.
    after: A marker such as "####". Where a completion has neither an answer
      tag nor a box, its answer is what follows the last marker, up to the end
      of that line. Empty: there is no such rule.
    width: W, the bytes of an answer that are looked at.

  Returns:
    The answers. Deviations from the host: an answer that is longer than W is
    none, and neither is one of a text that was cut.
  """
  words = strings.words(text.bytes)
  space = strings.spaces(words)
  span = _span(text, words, space, after.encode())
  start, end = strings.stripped(space, span.start, span.end)
  length = end - start
  found = span.found & ~text.cut & (length <= width)
  length = jnp.where(found, length, 0)
  place = jnp.arange(width)  # [W]
  data = strings.at(text.bytes, start[:, None] + place)
  data = jnp.where(place < length[:, None], data, jnp.uint8(0))
  return Window(data, length, found)

r"""Final answers, and the numbers in them, in rows of bytes.

`final_answer` has the rules of `rewards.answers.final_answer`. Instead of a
stack it has sums, minima and maxima along the row. For example, the depth of
braces in `\boxed{\frac{1}{2}}` is

    \boxed{\frac{1}{2}}
    0     1     2 12 10

and a box is closed by the first brace behind it whose depth is less than the
box's own. Time and memory are linear in the bytes.

`number` finds the number of an answer, without $…$, `x =`, a dollar, or a unit:

    It is $x = 3\text{ cm}$.   ->   the number `3` with the unit `cm`

Each step narrows [start, end) of each row, as `rewards.answers.quantity` does
with strings, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rewards.in_graph import text as text_lib
from grpo_jax.rewards.in_graph.text import Text

# Bytes of an answer; a longer answer does not count here.
MAX_ANSWER = 256

_BACKSLASH = ord("\\")


class Window(NamedTuple):
  """The answer of each row, without white space around it, W bytes at most.

  Attributes:
    bytes: Bytes of the answer; zero behind its end, and without an answer.
    length: Bytes of the answer; 0 without an answer.
    exists: True if there is an answer, which may be empty.
  """

  bytes: jax.Array  # [B, W] uint8
  length: jax.Array  # [B] int32
  exists: jax.Array  # [B] bool


class _Span(NamedTuple):
  start: jax.Array  # [B] int32
  end: jax.Array  # [B] int32
  exists: jax.Array  # [B] bool


def _last_boxed(
  data: jax.Array,  # [B, L] uint8
  words: jax.Array,  # [B, L] uint32
  space: jax.Array,  # [B, L] bool
  start: jax.Array,  # [B]
  end: jax.Array,  # [B]
) -> _Span:
  r"""Finds the content of the last `\boxed{…}` or `\boxed 4` in [start, end).

  Every `start` is 0 or follows a `>`, and every `end` precedes a `<` or is the
  end of the text, so that no command crosses them.
  """
  place = text_lib.places(data)
  backslash = data == _BACKSLASH
  # Of backslashes in a row, every other one escapes what follows it.
  plain = jnp.where(backslash, -1, place)
  run = place - jax.lax.cummax(plain, axis=1)  # 1 at the first of a run.
  escapes = backslash & (run % 2 == 1)
  escaped = text_lib.shifted(escapes, -1)
  brace = text_lib.behind(text_lib.before(~escaped, end), start)
  opens = brace & (data == ord("{"))
  closes = brace & (data == ord("}"))
  # \boxed, and the nearest byte before each place that is not white space.
  command = jnp.zeros_like(escapes)
  for name in (rb"\boxed", rb"\fbox"):
    commands = escapes & text_lib.starts(words, name)
    command |= text_lib.shifted(commands, 1 - len(name))
  near = jax.lax.cummax(
    jnp.where(space, 0, 2 * place + command), axis=1
  )  # Twice the place, and 1 more if \boxed ends there.
  follows = text_lib.shifted(near, -1) % 2 == 1
  # Braces that close nothing make the depth negative, which is harmless.
  depth = jnp.cumsum(opens.astype(jnp.int32) - closes, axis=1)
  later = jax.lax.cummin(depth, axis=1, reverse=True)
  box = text_lib.last(
    opens & follows & (later < depth) & ~_nears(space, data == ord("}"))
  )  # [B]
  own = text_lib.at(depth, box)[:, None]
  close = text_lib.first(text_lib.behind(depth < own, box + 1))
  # A number without braces ends before a blank, a command or a brace.
  digit = text_lib.digits(data)
  sign = text_lib.one_of(data, b"+-") & text_lib.shifted(digit, 1)
  inside = text_lib.behind(text_lib.before(~space, end), start)
  bare = text_lib.last(inside & follows & (digit | sign))  # [B]
  stop = ~inside | text_lib.one_of(data, b"$\\{}")
  stop = text_lib.first(text_lib.behind(stop, bare))
  content = text_lib.before(~text_lib.one_of(data, b".,;:!?)]"), stop)
  is_bare = bare > box
  return _Span(
    jnp.where(is_bare, bare, box + 1),
    jnp.where(is_bare, text_lib.last(content) + 1, close),
    is_bare | (box >= 0),
  )


def _nears(space: jax.Array, mask: jax.Array) -> jax.Array:  # [B, L] bool
  """Marks the places whose next word begins where `mask` is True."""
  place = text_lib.places(space)
  none = 2 * space.shape[1]
  word = jnp.where(space, none, 2 * place + mask)
  word = jax.lax.cummin(word, axis=1, reverse=True)
  return text_lib.shifted(word, 1) % 2 == 1


def _after_marker(
  words: jax.Array,  # [B, L] uint32
  space: jax.Array,  # [B, L] bool
  start: jax.Array,  # [B]
  end: jax.Array,  # [B]
  after: bytes,
) -> _Span:
  """Finds the rest of the line behind the last `after` in [start, end).

  A marker without a word behind it, in its line, does not count.
  """
  marks = text_lib.behind(text_lib.starts(words, after), start)
  marks = text_lib.before(marks, end - (len(after) - 1))
  new_line = words & 255 == ord("\n")
  stop = new_line | (text_lib.places(words) >= end[:, None])
  word = _nears(space & ~stop, ~stop)
  mark = text_lib.last(marks & text_lib.shifted(word, len(after) - 1))
  content = mark + len(after)
  line = text_lib.first(text_lib.behind(new_line, content))
  return _Span(content, jnp.minimum(line, end), mark >= 0)


def _span(
  text: Text,
  words: jax.Array,  # [B, L] uint32
  space: jax.Array,  # [B, L] bool
  after: bytes,
) -> _Span:
  """Finds the answer, with the white space around it."""
  tags = (b"<think>", b"</think>", b"<answer>", b"</answer>")
  tags_at = jnp.stack([text_lib.starts(words, tag) for tag in tags])
  think, thought, answer, _ = text_lib.last(tags_at)  # Each [B].
  rest = jnp.where(thought < 0, 0, thought + len(b"</think>"))
  tagged = answer >= rest
  # The last answer that has a word in it.
  place = text_lib.places(text.bytes)
  opens = text_lib.behind(tags_at[2], rest)
  content = jax.lax.cummax(
    jnp.where(opens, place + len(b"<answer>"), -1), axis=1
  )  # [B, L]
  word = jax.lax.cummax(jnp.where(space, -1, place), axis=1)
  filled = (content >= 0) & (text_lib.shifted(word, -1) >= content)
  end = text_lib.last(tags_at[3] & filled)
  content = text_lib.at(content, end)
  # In a thought that was never closed, a box is too often a try.
  unfinished = (thought < 0) & (think >= 0)
  usable = jnp.where(tagged, end >= 0, ~unfinished)
  thinks = text_lib.first(text_lib.behind(tags_at[0], rest))
  end = jnp.where(tagged, end, jnp.minimum(thinks, text.length))
  start = jnp.where(usable, jnp.where(tagged, content, rest), 0)
  end = jnp.where(usable, end, 0)
  span = _Span(start, end, usable & tagged)
  if after:
    marked = _after_marker(words, space, start, end, after)
    marked = marked._replace(exists=marked.exists & ~tagged)
    span = _either(span, marked, usable)
  boxed = _last_boxed(text.bytes, words, space, start, end)
  return _either(boxed, span, usable)


def _either(one: _Span, other: _Span, allowed: jax.Array) -> _Span:
  """Returns `one`, or else `other`, in the rows where an answer is allowed."""
  return _Span(
    jnp.where(one.exists, one.start, other.start),
    jnp.where(one.exists, one.end, other.end),
    allowed & (one.exists | other.exists),
  )


def final_answer(
  text: Text, after: str = "", width: int = MAX_ANSWER
) -> Window:
  """Returns the answers of rows, as `rewards.answers.final_answer` does.

  Args:
    text: Completions.
    after: A marker such as "####". If a completion has neither an answer tag
      nor a box, its answer is the text behind the last marker, up to the end of
      that line. Empty: there is no such rule.
    width: W, the most bytes of an answer.

  Returns:
    The answers. Deviations from the host: an answer of more than W bytes does
    not count, nor does an answer in a text that was cut.
  """
  words = text_lib.words(text.bytes)
  space = text_lib.spaces(words)
  span = _span(text, words, space, after.encode())
  start, end = text_lib.stripped(space, span.start, span.end)
  length = end - start
  fits = span.exists & ~text.cut & (length <= width)
  length = jnp.where(fits, length, 0)
  place = jnp.arange(width)  # [W]
  data = text_lib.at(text.bytes, start[:, None] + place)
  data = jnp.where(place < length[:, None], data, jnp.uint8(0))
  return Window(data, length, fits)


# Most bytes of a unit; gold answers with longer units are not scored here.
MAX_UNIT = 32
DEGREE = "°".encode()

_NAMES = (
  *(rb"\text", rb"\textrm", rb"\textbf", rb"\textit", rb"\mbox"),
  *(rb"\mathrm", rb"\mathbf", rb"\boldsymbol", b""),
)
_PAIRS = (  # Pairs of signs that may enclose a whole answer.
  *((b"$$", b"$$"), (b"$", b"$"), (rb"\(", rb"\)"), (rb"\[", rb"\]")),
  *((b"**", b"**"), (b"*", b"*"), (b"__", b"__"), (b"`", b"`")),
  *((name + b"{", b"}") for name in _NAMES),
  # Commands for the rest of the answer, without a letter directly behind them.
  *((x, b"") for x in (rb"\displaystyle", rb"\textstyle", rb"\bf", rb"\rm")),
  (rb"\it", b""),
)
_MAX_WRAPPINGS = 4  # As on the host.
_BRACKETS = (  # Around a number, except for its sign.
  *((b"(", b")"), (rb"\left(", b")"), (b"(", rb"\right)")),
  *((rb"\left(", rb"\right)"), (b"{", b"}")),
)
_SIGNS = (b"+", b"-", "−".encode())
_DOLLARS = (rb"\$$", rb"\$", b"$")  # Before an amount.
_UNIT_NAMES = (rb"\text", rb"\textrm", rb"\mathrm", rb"\mbox")
# Ends of \text{…}^2; and degrees.
_POWERS = tuple(
  f"}}^{opening}{power}{closing}".encode()
  for opening in ("", "{")
  for power in "23"
  for closing in ("", "}")
)
_WORDS_OF_UNITS = b"percent", b"dollar", b"dollars", b"degree", b"degrees"
_DEGREES = (
  *(rb"^\circ", rb"^\circ}", rb"^{\circ", rb"^{\circ}", rb"\degree", DEGREE),
)


class Number(NamedTuple):
  r"""The place of each row's number, and its unit.

  Attributes:
    start, end: The number is in [start, end) of the window.
    single: True with at most one formula, so that it is the answer.
    unit: The answer's unit, with single blanks, and `\circ` written as °.
    unit_length: Bytes of the unit, also of those that do not fit.
    percent: True if the unit was the word "percent".
  """

  start: jax.Array  # [B] int32
  end: jax.Array  # [B] int32
  single: jax.Array  # [B] bool
  unit: jax.Array  # [B, MAX_UNIT] uint8
  unit_length: jax.Array  # [B] int32
  percent: jax.Array  # [B] bool


class _Rows:
  """A window of bytes, arrays derived from it, and the span that is left."""

  def __init__(self, window: Window):
    self.bytes = window.bytes
    self.words = text_lib.words(window.bytes)
    self.space = text_lib.spaces(self.words)
    self.place = place = text_lib.places(window.bytes)
    # For each place, the next byte of a word, and the end of the last one:
    # white space is removed often.
    size = window.bytes.shape[1]
    self.next_word = jax.lax.cummin(
      jnp.where(self.space, size, place), axis=1, reverse=True
    )
    self.word_end = jax.lax.cummax(jnp.where(self.space, 0, place + 1), axis=1)
    self.start = jnp.zeros_like(window.length)
    self.end = window.length
    # The byte before a place, and pairs of bytes that begin there.
    self.previous = text_lib.shifted(window.bytes, -1)
    backslash = window.bytes == ord("\\")
    following = text_lib.shifted(window.bytes, 1)
    self.opens = backslash & text_lib.one_of(following, b"([")
    self.blank = backslash & text_lib.one_of(following, b" ,;")
    self.brace = text_lib.one_of(window.bytes, b"{}")
    self.dollar = window.bytes == ord("$")

  def narrow(self, start: jax.Array, end: jax.Array, where: jax.Array) -> None:
    """Sets [start, end) in the rows of `where`, and removes white space."""
    self.start, self.end = self.stripped(
      jnp.where(where, start, self.start), jnp.where(where, end, self.end)
    )

  def stripped(
    self, start: jax.Array, end: jax.Array
  ) -> tuple[jax.Array, jax.Array]:  # [B], [B]
    """Returns [start, end) without the white space at its ends."""
    begin = text_lib.at(self.next_word, start)
    filled = (start < end) & (begin < end)
    end = text_lib.at(self.word_end, end - 1)
    return jnp.where(filled, begin, start), jnp.where(filled, end, start)

  def part(self, mask: jax.Array, size: int = 1) -> jax.Array:  # [B, W] bool
    """Restricts a mask to places whose `size` bytes are in the span left."""
    fits = self.place + size <= self.end[:, None]
    return mask & fits & (self.place >= self.start[:, None])

  def begins(
    self, index: jax.Array, patterns: Sequence[bytes]
  ) -> jax.Array:  # [B, patterns] bool
    """Marks the patterns that begin at `index` [B], in the span left."""
    return self._stand(index[:, None], patterns)

  def ends(
    self, index: jax.Array, patterns: Sequence[bytes]
  ) -> jax.Array:  # [B, patterns] bool
    """Marks the patterns that end just before `index` [B], in the span left."""
    return self._stand(index[:, None] - _sizes(patterns), patterns)

  def _stand(
    self,
    start: jax.Array,  # [B, 1 or patterns]
    patterns: Sequence[bytes],
  ) -> jax.Array:  # [B, patterns] bool
    """Marks the patterns that begin at `start`, in the span left."""
    size = max(map(len, patterns))
    table = np.array([[*x.ljust(size, b"\0")] for x in patterns], np.uint8)
    place = start[:, :, None] + np.arange(size)  # [B, patterns, size]
    text = text_lib.at(self.bytes, place.reshape(len(start), -1))
    same = (text.reshape(place.shape) == table) | (table == 0)
    inside = (start >= self.start[:, None]) & (
      start + _sizes(patterns) <= self.end[:, None]
    )
    return same.all(axis=2) & inside


def _sizes(patterns: Sequence[bytes]) -> np.ndarray:  # [patterns] int32
  return np.array([len(x) for x in patterns], np.int32)


def _size(
  matches: jax.Array,  # [B, patterns] bool
  patterns: Sequence[bytes],
) -> jax.Array:  # [B]
  """Returns the bytes of the longest pattern found; 0 without one."""
  return jnp.where(matches, _sizes(patterns), 0).max(axis=1)


def without_superscripts(window: Window) -> Window:
  """Writes `^2` and `^3` for ² and ³, which have two bytes as well."""
  data, following = window.bytes, text_lib.shifted(window.bytes, 1)
  raised = (data == 0xC2) & text_lib.one_of(following, b"\xb2\xb3")
  second = text_lib.shifted(raised, -1)
  data = jnp.where(raised, jnp.uint8(ord("^")), data)
  # 0xB2 is ord("2") + 0x80, and 0xB3 is ord("3") + 0x80.
  return window._replace(bytes=jnp.where(second, data & 0x7F, data))


def number(
  window: Window,
  unit: jax.Array,  # [B, MAX_UNIT] uint8, of the gold answer.
  is_plain: jax.Array,  # [B] bool, True if the unit needs no command.
) -> Number:
  """Finds the number of each answer; see `rewards.answers.quantity`."""
  rows = _Rows(window)
  rows.start, rows.end = jax.lax.fori_loop(
    0,
    _MAX_WRAPPINGS,
    lambda _, span: _unwrapped(rows, *span),
    (rows.start, rows.end),
  )
  single = _to_formula(rows)
  _leave_name(rows)
  dollars = _size(rows.begins(rows.start, _DOLLARS), _DOLLARS)
  rows.narrow(rows.start + dollars, rows.end, single)
  label, length = _leave_unit(rows, jnp.where(is_plain[:, None], unit, 0))
  rows.narrow(rows.start, rows.end - _dot(rows), single)
  which = jnp.stack(
    [(label == unit_row(word)).all(axis=1) for word in _WORDS_OF_UNITS]
  )  # [5, B]
  percent, is_degrees = which[0], which[3:].any(axis=0)
  label = jnp.where(is_degrees[:, None], unit_row(DEGREE), label)
  length = jnp.where(percent, 0, length)
  length = jnp.where(is_degrees, len(DEGREE), length)
  is_dollar = which[1:3].any(axis=0) | ((dollars > 0) & (length == 0))
  label = jnp.where(is_dollar[:, None], unit_row(b"$"), label)
  length = jnp.where(is_dollar, 1, length)
  return Number(rows.start, rows.end, single, label, length, percent)


def without_brackets(
  data: jax.Array,  # [B, W] uint8
  start: jax.Array,  # [B]
  end: jax.Array,  # [B]
) -> jax.Array:  # [B, W] uint8
  """Writes blanks for brackets around all of [start, end), except a sign."""
  rows = _Rows(Window(text_lib.within(data, start, end), end, end > start))
  rows.narrow(start, end, end > start)
  size = _size(rows.begins(start, _SIGNS), _SIGNS)
  first, _ = rows.stripped(start + size, end)
  openings, closings = zip(*_BRACKETS, strict=True)
  wraps = rows.begins(first, openings) & rows.ends(end, closings)
  single = []
  for pair in (b"()", b"{}"):
    num = (rows.bytes[..., None] == np.array([*pair])).sum(axis=1)  # [B, 2]
    single.append((num == 1).all(axis=1))
  is_brace = np.array(openings) == b"{"
  wraps &= jnp.where(is_brace, single[1][:, None], single[0][:, None])
  opened = first + _size(wraps, openings)
  closed = end - _size(wraps, closings)
  place = text_lib.places(data)
  around = (place >= first[:, None]) & (place < opened[:, None])
  around |= (place >= closed[:, None]) & (place < end[:, None])
  return jnp.where(around, jnp.uint8(ord(" ")), data)


def unit_row(word: bytes) -> np.ndarray:  # [MAX_UNIT] uint8
  """Returns the bytes of a unit, for comparisons."""
  return np.frombuffer(word.ljust(MAX_UNIT, b"\0"), np.uint8)


def _dot(rows: _Rows) -> jax.Array:  # [B] int32
  """Returns 1 if the span left ends in a full stop, else 0."""
  dot = text_lib.at(rows.bytes, rows.end - 1) == ord(".")
  return (dot & (rows.start < rows.end)).astype(jnp.int32)


def _unwrapped(
  rows: _Rows, start: jax.Array, end: jax.Array
) -> tuple[jax.Array, jax.Array]:
  r"""Removes $…$, $$…$$, \(…\), \[…\] or \text{…} around the whole answer."""
  rows.start, rows.end = start, end
  rows.narrow(start, end - _dot(rows), end > start)
  start, end = rows.start, rows.end
  openings, closings = zip(*_PAIRS, strict=True)
  both = _sizes(openings) + _sizes(closings)
  wraps = rows.begins(start, openings) & rows.ends(end, closings)
  wraps &= start[:, None] + both <= end[:, None]
  # The first brace is closed by the last one, and no letter goes on a command.
  brace = rows.part(rows.brace)
  opens = rows.bytes == ord("{")
  depth = jnp.cumsum(jnp.where(brace, 2 * opens - 1, 0), axis=1)
  inner = text_lib.behind(
    text_lib.before(depth <= 0, end - 1), text_lib.first(brace)
  )
  group = ~inner.any(axis=1) & (text_lib.at(depth, end - 1) == 0)
  after = text_lib.at(rows.bytes, start[:, None] + _sizes(openings))
  letter = ((after | 32) >= ord("a")) & ((after | 32) <= ord("z"))
  kinds = np.array(closings)
  wraps &= group[:, None] | (kinds != b"}")
  wraps &= ~letter | (kinds != b"")
  left = start + _size(wraps, openings)
  right = end - _size(wraps, closings)
  inner = text_lib.before(rows.dollar, right)
  inner |= text_lib.before(rows.opens, right - 1)
  formula = text_lib.behind(inner, left).any(axis=1)
  rows.narrow(left, right, (left > start) & (left < right) & ~formula)
  return rows.start, rows.end


def _to_formula(rows: _Rows) -> jax.Array:  # [B] bool
  """Narrows to the only formula of a sentence; False if it has several."""
  # A dollar opens a formula if it has no backslash before it, and neither a
  # backslash nor a dollar stands before the next one.
  dollar = rows.part(rows.dollar)
  inside = rows.place > rows.start[:, None]
  escaped = inside & (rows.previous == ord("\\"))
  good = dollar & ~escaped & ~(inside & (rows.previous == ord("$")))
  nearest = jnp.where(dollar, 2 * rows.place + good, 2 * dollar.shape[1])
  nearest = jax.lax.cummin(nearest, axis=1, reverse=True)
  formula = dollar & ~escaped & (text_lib.shifted(nearest, 1) % 2 == 1)
  opens, closes = (
    rows.part(jnp.stack([text_lib.starts(rows.words, x) for x in brackets]), 2)
    for brackets in ((rb"\(", rb"\["), (rb"\)", rb"\]"))
  )  # [2, B, W]
  formula |= text_lib.before(opens, text_lib.last(closes) - 1).any(axis=0)
  start = text_lib.first(formula)  # [B]
  is_dollar = text_lib.at(rows.bytes, start) == ord("$")
  is_round = text_lib.at(rows.bytes, start + 1) == ord("(")
  size = jnp.where(is_dollar, 1, 2)
  close = jnp.where(is_round[:, None], closes[0], closes[1])
  close = jnp.where(is_dollar[:, None], dollar, close)
  end = text_lib.first(text_lib.behind(close, start + size))
  several = text_lib.behind(formula, end + size).any(axis=1)
  has_formula = start < formula.shape[1]
  rows.narrow(start + size, end, has_formula)
  return ~(has_formula & several)


def _leave_name(rows: _Rows) -> None:
  r"""Removes `x =` or `\theta =` from an answer with a single `=`."""
  equals = rows.part(rows.bytes == ord("="))
  sign = text_lib.first(equals)
  _, end = rows.stripped(rows.start, sign)
  initial = text_lib.at(rows.bytes, rows.start)
  letter = (initial | 32 >= ord("a")) & (initial | 32 <= ord("z"))
  small = text_lib.behind(
    text_lib.before(text_lib.lower(rows.bytes), end), rows.start + 1
  )
  length = end - rows.start
  command = (initial == ord("\\")) & (length >= 2)
  command &= small.sum(axis=1) == length - 1
  is_name = ((length == 1) & letter) | command | (length == 0)
  rows.narrow(sign + 1, rows.end, is_name & (equals.sum(axis=1) == 1))


def _leave_unit(
  rows: _Rows,
  plain: jax.Array,  # [B, MAX_UNIT] uint8, a unit that needs no command.
) -> tuple[jax.Array, jax.Array]:  # [B, MAX_UNIT] uint8, [B] int32
  """Removes the unit and blanks before it; returns the unit and its length."""
  end = rows.end - _dot(rows)
  tails = rows.ends(end, (*_POWERS, *_DEGREES))
  power = _size(tails[:, : len(_POWERS)], _POWERS)
  # The brace that closes \text{…} is the first byte of a power.
  text = _text_unit(rows, end - jnp.maximum(power, 1))
  degree = _size(tails[:, len(_POWERS) :], _DEGREES)
  # Blanks before the unit: \ , \, , \; , ~ and white space.
  begins = rows.part(rows.blank, 2)
  blanks = rows.space | (rows.bytes == ord("~")) | begins
  blanks |= text_lib.shifted(begins, -1)
  word, word_length = _plain_unit(rows, plain, blanks, end)
  start = jnp.where(text.exists, text.start, end - degree)
  start = jnp.where(word_length > 0, end - word_length, start)
  has_unit = text.exists | (degree > 0) | (word_length > 0)
  unit, length = _normal_unit(rows, text, end)
  unit = jnp.where(text.exists[:, None], unit, unit_row(DEGREE))
  unit = jnp.where((word_length > 0)[:, None], word, unit)
  length = jnp.where(text.exists, length, jnp.where(has_unit, 2, 0))
  length = jnp.maximum(length, word_length)
  new_end = text_lib.last(text_lib.before(~blanks, start)) + 1
  rows.end = jnp.where(has_unit, jnp.maximum(new_end, rows.start), rows.end)
  return unit, length


def _plain_unit(
  rows: _Rows,
  plain: jax.Array,  # [B, MAX_UNIT] uint8
  blanks: jax.Array,  # [B, W] bool
  end: jax.Array,  # [B]
) -> tuple[jax.Array, jax.Array]:  # [B, MAX_UNIT] uint8, [B] int32
  """Finds a unit without a command before `end`; its length may be 0."""
  words = jnp.stack(
    [
      plain,
      *(jnp.broadcast_to(unit_row(x), plain.shape) for x in _WORDS_OF_UNITS),
    ]
  )  # [6, B, MAX_UNIT]
  length = (words != 0).sum(axis=2)  # [6, B]
  start = end - length
  place = start[..., None] + np.arange(MAX_UNIT)
  text = jax.vmap(text_lib.at, (None, 0))(rows.bytes, place)
  same = ((text == words) | (words == 0)).all(axis=2) & (length > 0)
  # The unit of the gold answer needs no blank before it.
  joined = text_lib.digits(rows.bytes) | (rows.bytes == ord("}"))
  joined = jnp.stack([blanks | joined, *[blanks] * len(_WORDS_OF_UNITS)])
  same &= jax.vmap(text_lib.at)(joined, start - 1)
  same &= start > rows.start
  which = jnp.argmax(jnp.where(same, length, 0), axis=0)  # [B]
  row = jnp.arange(len(plain))
  return words[which, row], jnp.where(same, length, 0).max(axis=0)


class _Unit(NamedTuple):
  start: jax.Array  # [B] int32, of the command.
  open: jax.Array  # [B] int32, its brace.
  close: jax.Array  # [B] int32
  exists: jax.Array  # [B] bool


def _text_unit(rows: _Rows, close: jax.Array) -> _Unit:
  r"""Finds the `\text{…}` whose brace closes at `close`."""
  opening = text_lib.last(text_lib.before(rows.part(rows.brace), close))
  word = text_lib.before(rows.part(~rows.space), opening)
  end = text_lib.last(word) + 1
  name = _size(rows.ends(end, _UNIT_NAMES), _UNIT_NAMES)
  braces = text_lib.at(rows.bytes, opening) == ord("{")
  braces &= text_lib.at(rows.bytes, close) == ord("}")
  braces &= (opening >= rows.start) & (close < rows.end)
  return _Unit(end - name, opening, close, (name > 0) & braces)


def _normal_unit(
  rows: _Rows, unit: _Unit, end: jax.Array
) -> tuple[jax.Array, jax.Array]:  # [B, MAX_UNIT] uint8, [B] int32
  """Returns the unit with single spaces, and with ° for its command."""
  place = rows.place
  content = (place > unit.open[:, None]) & (place < end[:, None])
  content &= place != unit.close[:, None]
  space = content & rows.space
  size = len(rb"\circ")
  circle = content & text_lib.starts(rows.words, rb"\circ")
  offset = place - jax.lax.cummax(jnp.where(circle, place, -size), axis=1)
  covered = content & (offset < size)
  data = jnp.where(circle, jnp.uint8(DEGREE[0]), rows.bytes)
  data = jnp.where(covered & (offset == 1), jnp.uint8(DEGREE[1]), data)
  word = content & ~space & ~rows.brace
  word &= ~(covered & (offset >= len(DEGREE)))
  before = text_lib.shifted(space, -1) | (
    (place - 1 == unit.close[:, None]) & text_lib.shifted(space, -2)
  )
  gap = word & before & (place > text_lib.first(word)[:, None])
  target = jnp.cumsum(word.astype(jnp.int32) + gap, axis=1) - 1
  length = jnp.max(jnp.where(word, target + 1, 0), axis=1)
  # A place without a word is a gap.
  text = jnp.where(np.arange(MAX_UNIT) < length[:, None], np.uint8(ord(" ")), 0)
  row = jnp.arange(len(data))[:, None]
  index = jnp.where(word, target, MAX_UNIT)  # Beyond the end it is dropped.
  return text.at[row, index].set(data, mode="drop"), length

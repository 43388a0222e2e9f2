r"""What of an answer is its number: not $…$, `x =`, a dollar, or a unit.

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

from grpo_jax.rewards.in_graph import strings
from grpo_jax.rewards.in_graph.find import Window

# Bytes of a unit that are compared; no gold answer with a longer one is
# scored here.
MAX_UNIT = 32
DEGREE = "°".encode()

_NAMES = (
  *(rb"\text", rb"\textrm", rb"\textbf", rb"\textit", rb"\mbox"),
  *(rb"\mathrm", rb"\mathbf", rb"\boldsymbol", b""),
)
_PAIRS = (  # What may stand around a whole answer.
  *((b"$$", b"$$"), (b"$", b"$"), (rb"\(", rb"\)"), (rb"\[", rb"\]")),
  *((b"**", b"**"), (b"*", b"*"), (b"__", b"__"), (b"`", b"`")),
  *((name + b"{", b"}") for name in _NAMES),
  # Commands for all that follows, which no letter follows.
  *((x, b"") for x in (rb"\displaystyle", rb"\textstyle", rb"\bf", rb"\rm")),
  (rb"\it", b""),
)
_MAX_WRAPPINGS = 4  # As on the host.
_BRACKETS = (  # Around a number, but for its sign.
  *((b"(", b")"), (rb"\left(", b")"), (b"(", rb"\right)")),
  *((rb"\left(", rb"\right)"), (b"{", b"}")),
)
_SIGNS = (b"+", b"-", "−".encode())
_DOLLARS = (rb"\$$", rb"\$", b"$")  # Before an amount.
_UNIT_NAMES = (rb"\text", rb"\textrm", rb"\mathrm", rb"\mbox")
# Of \text{…}^2, and degrees.
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
  """Where the number of each row stands, and its unit.

  Attributes:
    start, end: The number is in [start, end) of the window.
    single: Whether there is at most one formula, so that it is the answer.
    unit: As the answer has it, its blanks normal, and `\\circ` written as °.
    unit_length: Bytes of the unit, also of those that do not fit.
    percent: Whether the unit was the word.
  """

  start: jax.Array  # [B] int32
  end: jax.Array  # [B] int32
  single: jax.Array  # [B] bool
  unit: jax.Array  # [B, MAX_UNIT] uint8
  unit_length: jax.Array  # [B] int32
  percent: jax.Array  # [B] bool


class _Rows:
  """A window of bytes, what was seen in it, and the part that is left."""

  def __init__(self, window: Window):
    self.bytes = window.bytes
    self.words = strings.words(window.bytes)
    self.space = strings.spaces(self.words)
    self.place = place = strings.places(window.bytes)
    # For each place, where the next byte of a word is, and the end of the
    # last one: white space is taken off often.
    size = window.bytes.shape[1]
    self.next_word = jax.lax.cummin(
      jnp.where(self.space, size, place), axis=1, reverse=True
    )
    self.word_end = jax.lax.cummax(jnp.where(self.space, 0, place + 1), axis=1)
    self.start = jnp.zeros_like(window.length)
    self.end = window.length
    # The byte before a place, and pairs of bytes that begin there.
    self.previous = strings.shifted(window.bytes, -1)
    backslash = window.bytes == ord("\\")
    following = strings.shifted(window.bytes, 1)
    self.opens = backslash & strings.one_of(following, b"([")
    self.blank = backslash & strings.one_of(following, b" ,;")
    self.brace = strings.one_of(window.bytes, b"{}")
    self.dollar = window.bytes == ord("$")

  def narrow(self, start: jax.Array, end: jax.Array, where: jax.Array) -> None:
    """Sets [start, end) where it is said, and takes white space off."""
    self.start, self.end = self.stripped(
      jnp.where(where, start, self.start), jnp.where(where, end, self.end)
    )

  def stripped(
    self, start: jax.Array, end: jax.Array
  ) -> tuple[jax.Array, jax.Array]:  # [B], [B]
    """[start, end) without the white space at its ends."""
    begin = strings.at(self.next_word, start)
    found = (start < end) & (begin < end)
    end = strings.at(self.word_end, end - 1)
    return jnp.where(found, begin, start), jnp.where(found, end, start)

  def part(self, mask: jax.Array, size: int = 1) -> jax.Array:  # [B, W] bool
    """Where something of `size` bytes lies in what is left."""
    whole = self.place + size <= self.end[:, None]
    return mask & whole & (self.place >= self.start[:, None])

  def begins(
    self, index: jax.Array, patterns: Sequence[bytes]
  ) -> jax.Array:  # [B, patterns] bool
    """Which patterns stand at `index` [B], in what is left."""
    return self._stand(index[:, None], patterns)

  def ends(
    self, index: jax.Array, patterns: Sequence[bytes]
  ) -> jax.Array:  # [B, patterns] bool
    """Which patterns stand just before `index` [B], in what is left."""
    return self._stand(index[:, None] - _sizes(patterns), patterns)

  def _stand(
    self,
    start: jax.Array,  # [B, 1 or patterns]
    patterns: Sequence[bytes],
  ) -> jax.Array:  # [B, patterns] bool
    """Which patterns stand at `start`, in what is left."""
    size = max(map(len, patterns))
    wanted = np.array([[*x.ljust(size, b"\0")] for x in patterns], np.uint8)
    place = start[:, :, None] + np.arange(size)  # [B, patterns, size]
    found = strings.at(self.bytes, place.reshape(len(start), -1))
    same = (found.reshape(place.shape) == wanted) | (wanted == 0)
    inside = (start >= self.start[:, None]) & (
      start + _sizes(patterns) <= self.end[:, None]
    )
    return same.all(axis=2) & inside


def _sizes(patterns: Sequence[bytes]) -> np.ndarray:  # [patterns] int32
  return np.array([len(x) for x in patterns], np.int32)


def _size(
  found: jax.Array,  # [B, patterns] bool
  patterns: Sequence[bytes],
) -> jax.Array:  # [B]
  """Bytes of the longest pattern that was found; 0 if none was."""
  return jnp.where(found, _sizes(patterns), 0).max(axis=1)


def without_superscripts(window: Window) -> Window:
  """`^2` and `^3` in the place of ² and ³, which are two bytes as well."""
  data, following = window.bytes, strings.shifted(window.bytes, 1)
  found = (data == 0xC2) & strings.one_of(following, b"\xb2\xb3")
  second = strings.shifted(found, -1)
  data = jnp.where(found, jnp.uint8(ord("^")), data)
  # 0xB2 is ord("2") + 0x80, and 0xB3 is ord("3") + 0x80.
  return window._replace(bytes=jnp.where(second, data & 0x7F, data))


def number(
  window: Window,
  unit: jax.Array,  # [B, MAX_UNIT] uint8, of the gold answer.
  is_plain: jax.Array,  # [B] bool, whether it needs no command.
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
  found, length = _leave_unit(rows, jnp.where(is_plain[:, None], unit, 0))
  rows.narrow(rows.start, rows.end - _dot(rows), single)
  which = jnp.stack(
    [(found == unit_row(word)).all(axis=1) for word in _WORDS_OF_UNITS]
  )  # [5, B]
  percent, is_degrees = which[0], which[3:].any(axis=0)
  found = jnp.where(is_degrees[:, None], unit_row(DEGREE), found)
  length = jnp.where(percent, 0, length)
  length = jnp.where(is_degrees, len(DEGREE), length)
  is_dollar = which[1:3].any(axis=0) | ((dollars > 0) & (length == 0))
  found = jnp.where(is_dollar[:, None], unit_row(b"$"), found)
  length = jnp.where(is_dollar, 1, length)
  return Number(rows.start, rows.end, single, found, length, percent)


def without_brackets(
  data: jax.Array,  # [B, W] uint8
  start: jax.Array,  # [B]
  end: jax.Array,  # [B]
) -> jax.Array:  # [B, W] uint8
  """Blanks for brackets around all of [start, end), but for its sign."""
  rows = _Rows(Window(strings.kept(data, start, end), end, end > start))
  rows.narrow(start, end, end > start)
  size = _size(rows.begins(start, _SIGNS), _SIGNS)
  first, _ = rows.stripped(start + size, end)
  openings, closings = zip(*_BRACKETS, strict=True)
  found = rows.begins(first, openings) & rows.ends(end, closings)
  single = []
  for pair in (b"()", b"{}"):
    num = (rows.bytes[..., None] == np.array([*pair])).sum(axis=1)  # [B, 2]
    single.append((num == 1).all(axis=1))
  is_brace = np.array(openings) == b"{"
  found &= jnp.where(is_brace, single[1][:, None], single[0][:, None])
  opened = first + _size(found, openings)
  closed = end - _size(found, closings)
  place = strings.places(data)
  around = (place >= first[:, None]) & (place < opened[:, None])
  around |= (place >= closed[:, None]) & (place < end[:, None])
  return jnp.where(around, jnp.uint8(ord(" ")), data)


def unit_row(word: bytes) -> np.ndarray:  # [MAX_UNIT] uint8
  """A unit as it is compared."""
  return np.frombuffer(word.ljust(MAX_UNIT, b"\0"), np.uint8)


def _dot(rows: _Rows) -> jax.Array:  # [B] int32
  """1 where what is left ends in a full stop, or else 0."""
  dot = strings.at(rows.bytes, rows.end - 1) == ord(".")
  return (dot & (rows.start < rows.end)).astype(jnp.int32)


def _unwrapped(
  rows: _Rows, start: jax.Array, end: jax.Array
) -> tuple[jax.Array, jax.Array]:
  r"""Leaves $…$, $$…$$, \(…\), \[…\] or \text{…} around all of the answer."""
  rows.start, rows.end = start, end
  rows.narrow(start, end - _dot(rows), end > start)
  start, end = rows.start, rows.end
  openings, closings = zip(*_PAIRS, strict=True)
  both = _sizes(openings) + _sizes(closings)
  found = rows.begins(start, openings) & rows.ends(end, closings)
  found &= start[:, None] + both <= end[:, None]
  # The first brace is closed by the last one, and no letter goes on a command.
  brace = rows.part(rows.brace)
  opens = rows.bytes == ord("{")
  depth = jnp.cumsum(jnp.where(brace, 2 * opens - 1, 0), axis=1)
  inner = strings.behind(
    strings.before(depth <= 0, end - 1), strings.first(brace)
  )
  group = ~inner.any(axis=1) & (strings.at(depth, end - 1) == 0)
  after = strings.at(rows.bytes, start[:, None] + _sizes(openings))
  letter = ((after | 32) >= ord("a")) & ((after | 32) <= ord("z"))
  kinds = np.array(closings)
  found &= group[:, None] | (kinds != b"}")
  found &= ~letter | (kinds != b"")
  left = start + _size(found, openings)
  right = end - _size(found, closings)
  inner = strings.before(rows.dollar, right)
  inner |= strings.before(rows.opens, right - 1)
  formula = strings.behind(inner, left).any(axis=1)
  rows.narrow(left, right, (left > start) & (left < right) & ~formula)
  return rows.start, rows.end


def _to_formula(rows: _Rows) -> jax.Array:  # [B] bool
  """Goes to the one formula of a sentence; False where there are several."""
  # A dollar opens a formula if it has no backslash before it, and neither a
  # backslash nor a dollar stands before the next one.
  dollar = rows.part(rows.dollar)
  inside = rows.place > rows.start[:, None]
  escaped = inside & (rows.previous == ord("\\"))
  good = dollar & ~escaped & ~(inside & (rows.previous == ord("$")))
  nearest = jnp.where(dollar, 2 * rows.place + good, 2 * dollar.shape[1])
  nearest = jax.lax.cummin(nearest, axis=1, reverse=True)
  found = dollar & ~escaped & (strings.shifted(nearest, 1) % 2 == 1)
  opens, closes = (
    rows.part(jnp.stack([strings.starts(rows.words, x) for x in brackets]), 2)
    for brackets in ((rb"\(", rb"\["), (rb"\)", rb"\]"))
  )  # [2, B, W]
  found |= strings.before(opens, strings.last(closes) - 1).any(axis=0)
  start = strings.first(found)  # [B]
  is_dollar = strings.at(rows.bytes, start) == ord("$")
  is_round = strings.at(rows.bytes, start + 1) == ord("(")
  size = jnp.where(is_dollar, 1, 2)
  close = jnp.where(is_round[:, None], closes[0], closes[1])
  close = jnp.where(is_dollar[:, None], dollar, close)
  end = strings.first(strings.behind(close, start + size))
  several = strings.behind(found, end + size).any(axis=1)
  any_found = start < found.shape[1]
  rows.narrow(start + size, end, any_found)
  return ~(any_found & several)


def _leave_name(rows: _Rows) -> None:
  r"""Leaves `x =` or `\theta =`, of an answer with one `=`."""
  equals = rows.part(rows.bytes == ord("="))
  sign = strings.first(equals)
  _, end = rows.stripped(rows.start, sign)
  initial = strings.at(rows.bytes, rows.start)
  letter = (initial | 32 >= ord("a")) & (initial | 32 <= ord("z"))
  small = strings.behind(
    strings.before(strings.lower(rows.bytes), end), rows.start + 1
  )
  length = end - rows.start
  command = (initial == ord("\\")) & (length >= 2)
  command &= small.sum(axis=1) == length - 1
  named = ((length == 1) & letter) | command | (length == 0)
  rows.narrow(sign + 1, rows.end, named & (equals.sum(axis=1) == 1))


def _leave_unit(
  rows: _Rows,
  plain: jax.Array,  # [B, MAX_UNIT] uint8, what may stand without a command.
) -> tuple[jax.Array, jax.Array]:  # [B, MAX_UNIT] uint8, [B] int32
  """Leaves the unit and blanks before it; returns the unit and its length."""
  end = rows.end - _dot(rows)
  tails = rows.ends(end, (*_POWERS, *_DEGREES))
  power = _size(tails[:, : len(_POWERS)], _POWERS)
  # The brace that closes \text{…} is the first byte of a power.
  text = _text_unit(rows, end - jnp.maximum(power, 1))
  degree = _size(tails[:, len(_POWERS) :], _DEGREES)
  # Blanks before it: \ , \, , \; , ~ and white space.
  begins = rows.part(rows.blank, 2)
  blanks = rows.space | (rows.bytes == ord("~")) | begins
  blanks |= strings.shifted(begins, -1)
  word, word_length = _plain_unit(rows, plain, blanks, end)
  start = jnp.where(text.found, text.start, end - degree)
  start = jnp.where(word_length > 0, end - word_length, start)
  has_unit = text.found | (degree > 0) | (word_length > 0)
  unit, length = _normal_unit(rows, text, end)
  unit = jnp.where(text.found[:, None], unit, unit_row(DEGREE))
  unit = jnp.where((word_length > 0)[:, None], word, unit)
  length = jnp.where(text.found, length, jnp.where(has_unit, 2, 0))
  length = jnp.maximum(length, word_length)
  new_end = strings.last(strings.before(~blanks, start)) + 1
  rows.end = jnp.where(has_unit, jnp.maximum(new_end, rows.start), rows.end)
  return unit, length


def _plain_unit(
  rows: _Rows,
  plain: jax.Array,  # [B, MAX_UNIT] uint8
  blanks: jax.Array,  # [B, W] bool
  end: jax.Array,  # [B]
) -> tuple[jax.Array, jax.Array]:  # [B, MAX_UNIT] uint8, [B] int32
  """A unit without a command that ends at `end`, and its length or 0."""
  words = jnp.stack(
    [
      plain,
      *(jnp.broadcast_to(unit_row(x), plain.shape) for x in _WORDS_OF_UNITS),
    ]
  )  # [6, B, MAX_UNIT]
  length = (words != 0).sum(axis=2)  # [6, B]
  start = end - length
  place = start[..., None] + np.arange(MAX_UNIT)
  found = jax.vmap(strings.at, (None, 0))(rows.bytes, place)
  same = ((found == words) | (words == 0)).all(axis=2) & (length > 0)
  # That of the gold answer needs no blank before it.
  joined = strings.digits(rows.bytes) | (rows.bytes == ord("}"))
  joined = jnp.stack([blanks | joined, *[blanks] * len(_WORDS_OF_UNITS)])
  same &= jax.vmap(strings.at)(joined, start - 1)
  same &= start > rows.start
  which = jnp.argmax(jnp.where(same, length, 0), axis=0)  # [B]
  row = jnp.arange(len(plain))
  return words[which, row], jnp.where(same, length, 0).max(axis=0)


class _Unit(NamedTuple):
  start: jax.Array  # [B] int32, of the command.
  open: jax.Array  # [B] int32, its brace.
  close: jax.Array  # [B] int32
  found: jax.Array  # [B] bool


def _text_unit(rows: _Rows, close: jax.Array) -> _Unit:
  r"""The `\text{…}` whose brace closes at `close`."""
  opening = strings.last(strings.before(rows.part(rows.brace), close))
  word = strings.before(rows.part(~rows.space), opening)
  end = strings.last(word) + 1
  name = _size(rows.ends(end, _UNIT_NAMES), _UNIT_NAMES)
  braces = strings.at(rows.bytes, opening) == ord("{")
  braces &= strings.at(rows.bytes, close) == ord("}")
  braces &= (opening >= rows.start) & (close < rows.end)
  return _Unit(end - name, opening, close, (name > 0) & braces)


def _normal_unit(
  rows: _Rows, unit: _Unit, end: jax.Array
) -> tuple[jax.Array, jax.Array]:  # [B, MAX_UNIT] uint8, [B] int32
  """The unit with single spaces, and with ° for its command."""
  place = rows.place
  content = (place > unit.open[:, None]) & (place < end[:, None])
  content &= place != unit.close[:, None]
  space = content & rows.space
  size = len(rb"\circ")
  circle = content & strings.starts(rows.words, rb"\circ")
  offset = place - jax.lax.cummax(jnp.where(circle, place, -size), axis=1)
  covered = content & (offset < size)
  data = jnp.where(circle, jnp.uint8(DEGREE[0]), rows.bytes)
  data = jnp.where(covered & (offset == 1), jnp.uint8(DEGREE[1]), data)
  word = content & ~space & ~rows.brace
  word &= ~(covered & (offset >= len(DEGREE)))
  before = strings.shifted(space, -1) | (
    (place - 1 == unit.close[:, None]) & strings.shifted(space, -2)
  )
  gap = word & before & (place > strings.first(word)[:, None])
  target = jnp.cumsum(word.astype(jnp.int32) + gap, axis=1) - 1
  length = jnp.max(jnp.where(word, target + 1, 0), axis=1)
  # Where no word is, there is a gap.
  made = jnp.where(np.arange(MAX_UNIT) < length[:, None], np.uint8(ord(" ")), 0)
  row = jnp.arange(len(data))[:, None]
  index = jnp.where(word, target, MAX_UNIT)  # Beyond the end it is dropped.
  return made.at[row, index].set(data, mode="drop"), length

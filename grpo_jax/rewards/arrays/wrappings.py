r"""What of an answer is its number: not $…$, `x =`, a dollar, or a unit.

    It is $x = 3\text{ cm}$.   ->   the number `3` with the unit `cm`

Each step narrows [start, end) of each row, as `rewards.answers.quantity` does
with strings, in the same order.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rewards.arrays import strings
from grpo_jax.rewards.arrays.find import Window

# Bytes of a unit that are compared; no gold answer with a longer one is
# scored here.
MAX_UNIT = 32
DEGREE = "°".encode()

_NAMES = (rb"\text", rb"\mathrm", rb"\mathbf", rb"\textbf", rb"\boldsymbol")
_BEFORE = 8  # Bytes of the longest pattern of `_Rows.has_before`.
_UNIT_NAMES = (rb"\text", rb"\textrm", rb"\mathrm", rb"\mbox")


class Number(NamedTuple):
  """Where the number of each row stands, and its unit.

  Attributes:
    start, end: The number is in [start, end) of the window.
    single: Whether there is at most one formula, so that it is the answer.
    unit: As the answer has it, its blanks normal, and `\\circ` written as °.
    unit_length: Bytes of the unit, also of those that do not fit.
  """

  start: jax.Array  # [B] int32
  end: jax.Array  # [B] int32
  single: jax.Array  # [B] bool
  unit: jax.Array  # [B, MAX_UNIT] uint8
  unit_length: jax.Array  # [B] int32


class _Rows:
  """A window of bytes, what was seen in it, and the part that is left."""

  def __init__(self, window: Window):
    self.bytes = window.bytes
    # With zeros before it, for what ends near the beginning.
    padded = jnp.pad(window.bytes, ((0, 0), (_BEFORE, 0)))
    self._padded = strings.words(padded)
    self.words = self._padded[:, _BEFORE:]
    self.space = strings.spaces(self.words)
    self.place = strings.places(window.bytes)
    self.start = jnp.zeros_like(window.length)
    self.end = window.length

  def narrow(self, start: jax.Array, end: jax.Array, where: jax.Array) -> None:
    """Sets [start, end) where it is said, and takes white space off."""
    self.start, self.end = strings.stripped(
      self.space,
      jnp.where(where, start, self.start),
      jnp.where(where, end, self.end),
    )

  def part(self, mask: jax.Array, size: int = 1) -> jax.Array:  # [B, W] bool
    """Where something of `size` bytes lies in what is left."""
    whole = self.place + size <= self.end[:, None]
    return mask & whole & (self.place >= self.start[:, None])

  def all(self, pattern: bytes) -> jax.Array:  # [B, W] bool
    """Where `pattern` begins in what is left."""
    return self.part(strings.starts(self.words, pattern), len(pattern))

  def has(self, index: jax.Array, pattern: bytes) -> jax.Array:  # [B] bool
    """Whether `pattern` stands at `index`, in what is left."""
    found = strings.is_at(self.words, index, pattern)
    inside = (index >= self.start) & (index + len(pattern) <= self.end)
    return found & inside

  def has_before(self, end: jax.Array, pattern: bytes) -> jax.Array:  # [B]
    """Whether `pattern` stands just before `end`, in what is left."""
    words = self._padded
    begin = end - len(pattern)
    found = (begin >= self.start) & (end <= self.end)
    for k in range(0, len(pattern), 4):  # From its end, four bytes each.
      piece = pattern[max(len(pattern) - k - 4, 0) : len(pattern) - k]
      word = strings.at(words, end + (_BEFORE - 4 - k))
      value = int.from_bytes(piece, "little")
      found &= word >> (32 - 8 * len(piece)) == value
    return found

  def begins(self, pattern: bytes) -> jax.Array:  # [B] bool
    return self.has(self.start, pattern)

  def ends(self, pattern: bytes) -> jax.Array:  # [B] bool
    return self.has_before(self.end, pattern)


def number(window: Window) -> Number:
  """Finds the number of each answer; see `rewards.answers.quantity`."""
  rows = _Rows(window)
  rows.start, rows.end = jax.lax.fori_loop(
    0, 2, lambda _, span: _unwrapped(rows, *span), (rows.start, rows.end)
  )
  single = _to_formula(rows)
  _leave_name(rows)
  for prefix in (rb"\$", b"$"):
    rows.start += jnp.where(rows.begins(prefix), len(prefix), 0)
  rows.narrow(rows.start, rows.end, single)
  unit, unit_length = _leave_unit(rows)
  rows.end -= rows.ends(b".").astype(jnp.int32)
  rows.narrow(rows.start, rows.end, single)
  return Number(rows.start, rows.end, single, unit, unit_length)


def _unwrapped(
  rows: _Rows, start: jax.Array, end: jax.Array
) -> tuple[jax.Array, jax.Array]:
  r"""Leaves $…$, $$…$$, \(…\), \[…\] or \text{…} around all of the answer."""
  rows.start, rows.end = left, right = start, end
  done = jnp.zeros(left.shape, bool)
  brace = strings.one_of(rows.bytes, b"{}")
  single = rows.part(brace).sum(axis=1) == 2  # Those of one command.
  for opening, closing in (
    (b"$$", b"$$"),
    (b"$", b"$"),
    (rb"\(", rb"\)"),
    (rb"\[", rb"\]"),
    *((name + b"{", b"}") for name in _NAMES),
  ):
    found = rows.begins(opening) & rows.ends(closing) & ~done
    found &= rows.start + len(opening) + len(closing) <= rows.end
    if closing == b"}":
      found &= single
    left = jnp.where(found, rows.start + len(opening), left)
    right = jnp.where(found, rows.end - len(closing), right)
    done |= found
  formula = jnp.zeros(left.shape, bool)
  for opening in (b"$", rb"\(", rb"\["):
    begins = strings.starts(rows.words, opening)
    begins &= rows.place + len(opening) <= right[:, None]
    formula |= strings.behind(begins, left).any(axis=1)
  rows.narrow(left, right, done & (left < right) & ~formula)
  return rows.start, rows.end


def _to_formula(rows: _Rows) -> jax.Array:  # [B] bool
  """Goes to the one formula of a sentence; False where there are several."""
  # A dollar opens a formula if it has no backslash before it, and neither a
  # backslash nor a dollar stands before the next one.
  dollar = rows.part(rows.bytes == ord("$"))
  previous = strings.shifted(rows.bytes, -1)
  previous = jnp.where(rows.place > rows.start[:, None], previous, 0)
  escaped = previous == ord("\\")
  closes = dollar & ~escaped & (previous != ord("$"))
  nearest = jnp.where(dollar, 2 * rows.place + closes, 2 * dollar.shape[1])
  nearest = jax.lax.cummin(nearest, axis=1, reverse=True)
  found = dollar & ~escaped & (strings.shifted(nearest, 1) % 2 == 1)
  ends = [dollar]
  for opening, closing in ((rb"\(", rb"\)"), (rb"\[", rb"\]")):
    close = rows.all(closing)
    last = strings.last(close)[:, None]
    found |= rows.all(opening) & (rows.place + 2 <= last)
    ends.append(close)
  start = strings.first(found)  # [B]
  is_dollar, is_round = rows.has(start, b"$"), rows.has(start, rb"\(")
  size = jnp.where(is_dollar, 1, 2)
  close = jnp.where(is_round[:, None], ends[1], ends[2])
  close = jnp.where(is_dollar[:, None], dollar, close)
  end = strings.first(strings.behind(close, start + size))
  several = strings.behind(found, end + size).any(axis=1)
  any_found = found.any(axis=1)
  rows.narrow(start + size, end, any_found)
  return ~(any_found & several)


def _leave_name(rows: _Rows) -> None:
  r"""Leaves `x =` or `\theta =`, of an answer with one `=`."""
  equals = rows.part(rows.bytes == ord("="))
  sign = strings.first(equals)
  _, end = strings.stripped(rows.space, rows.start, sign)
  initial = strings.at(rows.bytes, rows.start)
  letter = (initial | 32 >= ord("a")) & (initial | 32 <= ord("z"))
  small = strings.behind(
    strings.before(strings.lower(rows.bytes), end), rows.start + 1
  )
  length = end - rows.start
  command = (initial == ord("\\")) & (length >= 2)
  command &= small.sum(axis=1) == length - 1
  named = ((length == 1) & letter) | command
  rows.narrow(sign + 1, rows.end, named & (equals.sum(axis=1) == 1))


def _leave_unit(rows: _Rows) -> tuple[jax.Array, jax.Array]:
  """Leaves the unit and blanks before it; returns the unit and its length."""
  end = rows.end - rows.ends(b".")
  text = _text_unit(rows, _before_power(rows, end) - 1)
  # ^\circ and °
  circle = end - rows.has_before(end, b"}")
  found = rows.has_before(circle, rb"\circ")
  circle -= len(rb"\circ")
  circle -= rows.has_before(circle, b"{")
  found &= rows.has_before(circle, b"^")
  degree = end - len(DEGREE)
  is_degree = rows.has_before(end, DEGREE)
  start = jnp.where(
    text.found, text.start, jnp.where(found, circle - 1, degree)
  )
  has_unit = text.found | found | is_degree
  unit, length = _normal_unit(rows, text, end)
  degrees = np.zeros(MAX_UNIT, np.uint8)
  degrees[: len(DEGREE)] = [*DEGREE]
  unit = jnp.where(text.found[:, None], unit, degrees)
  length = jnp.where(text.found, length, jnp.where(has_unit, 2, 0))
  # Blanks before it: \ , \, , \; , ~ and white space.
  begins = jnp.zeros_like(rows.space)
  for blank in (rb"\ ", rb"\,", rb"\;"):
    begins |= rows.all(blank)
  blanks = rows.space | (rows.bytes == ord("~")) | begins
  blanks |= strings.shifted(begins, -1)
  new_end = strings.last(strings.before(~blanks, start)) + 1
  rows.end = jnp.where(has_unit, jnp.maximum(new_end, rows.start), rows.end)
  return unit, length


class _Unit(NamedTuple):
  start: jax.Array  # [B] int32, of the command.
  open: jax.Array  # [B] int32, its brace.
  close: jax.Array  # [B] int32
  found: jax.Array  # [B] bool


def _before_power(rows: _Rows, end: jax.Array) -> jax.Array:  # [B]
  """Where the ^2, ^3, ^{2} or ^{3} of \text{…}^2 begins, or else `end`."""
  at = end - rows.has_before(end, b"}")
  is_power = rows.has_before(at, b"2") | rows.has_before(at, b"3")
  at -= 1
  at -= rows.has_before(at, b"{")
  is_power &= rows.has_before(at, b"}^")
  return jnp.where(is_power, at - 1, end)


def _text_unit(rows: _Rows, close: jax.Array) -> _Unit:
  r"""The `\text{…}` whose brace closes at `close`."""
  brace = rows.part(strings.one_of(rows.bytes, b"{}"))
  opening = strings.last(strings.before(brace, close))
  word = strings.before(rows.part(~rows.space), opening)
  end = strings.last(word) + 1
  start, found = end, jnp.zeros(end.shape, bool)
  for name in _UNIT_NAMES:
    here = rows.has_before(end, name)
    start = jnp.where(here, end - len(name), start)
    found |= here
  found &= rows.has(opening, b"{") & rows.has(close, b"}")
  return _Unit(start, opening, close, found)


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
  word = content & ~space & ~(covered & (offset >= len(DEGREE)))
  before = strings.shifted(space, -1) | (
    (place - 1 == unit.close[:, None]) & strings.shifted(space, -2)
  )
  gap = word & before & (place > strings.first(word)[:, None])
  target = jnp.cumsum(word.astype(jnp.int32) + gap, axis=1) - 1
  length = jnp.max(jnp.where(word, target + 1, 0), axis=1)
  row = jnp.arange(len(data))[:, None]
  index = jnp.where(word, target, MAX_UNIT)  # Beyond the end it is dropped.
  made = jnp.zeros((len(data), MAX_UNIT), jnp.uint8)
  made = made.at[row, index].set(data, mode="drop")
  index = jnp.where(gap, target - 1, MAX_UNIT)
  made = made.at[row, index].set(jnp.uint8(ord(" ")), mode="drop")
  return made, length

r"""Comparison of answers with gold numbers, exactly, inside a compiled program.

The result is that of `rewards.math_accuracy` for a gold answer that is a
rational number. Both numbers are fractions of whole numbers; they are
multiplied crosswise and compared exactly, digit by digit. This works for every
answer that fits into a window.

Deviations from the host, each a rare form that does not count as an answer
here:

- a repeating decimal in a fraction or before a power of ten,
  `1/0.\overline{3}`;
- a mixed number with a decimal point in its fraction, `3\frac{0.5}{2}`;
- fractions of one character, ½, and raised digits but for ² and ³.

**Arithmetic.** A whole number of hundreds of digits is a row of limbs in int32,
three decimal digits each, the least significant first: 1234567 is [567, 234, 1,
0, …]. Base 1000 is as large as a product of two numbers of 256 digits allows:
86 products of 999 · 999 are less than 2^31.

**Reading.** A finite automaton over the bytes reads the number. Its grammar is
that part of `rewards.answers.quantity` whose value is rational:

    number   = [±] value [%]
    value    = plain | plain / plain | plain · 10^n | plain e [±] digits
             | [plain] \frac part part | plain digits / digits
    part     = digit | { [±] plain }
    plain    = digits [. digits] | . digits
             | digits . [digits] \overline{digits}

with blanks between all of these. A text becomes one symbol for each byte, then
one state for each byte, by a table that is made here in Python. A second table
gives the role of a byte in that state, for example a digit of the denominator.
All other functions read these roles. Python's regular expressions on the host
look ahead, for example whether three digits follow a comma; here the bytes
beside a byte decide that.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rewards import answers
from grpo_jax.rewards.in_graph import find, text
from grpo_jax.rewards.in_graph.find import Window

_BASE = 1000


def constant(value: int, size: int) -> np.ndarray | None:  # [size] int32
  """Returns the limbs of a number of the host; None if they do not suffice."""
  limbs = np.zeros(size, np.int32)
  for k in range(size):
    value, limbs[k] = divmod(value, _BASE)
  return None if value else limbs


def read(
  data: jax.Array,  # [B, W] int32, 0 to 9 where `mask` is True
  mask: jax.Array,  # [B, W] bool
  shift: jax.Array,  # [B] int32
  size: int,
) -> jax.Array:  # [B, size] int32
  """Returns the number with the digits where `mask` is True, times 10^shift.

  Digits that do not fit into `size` limbs are lost.
  """
  from_right = jnp.cumsum(mask, axis=1, dtype=jnp.int32)
  # The rank of the last digit is `shift`.
  rank = shift[:, None] + from_right[:, -1:] - from_right
  value = data * jnp.array([1, 10, 100], jnp.int32)[rank % 3]
  limb = jnp.where(mask, rank // 3, size)  # Beyond the end it is dropped.
  row = jnp.arange(len(data))[:, None]
  limbs = jnp.zeros((len(data), size), jnp.int32)
  return limbs.at[row, limb].add(value, mode="drop")


def padded(limbs: jax.Array, size: int) -> jax.Array:  # [B, n] -> [B, size]
  """Adds limbs of zero to a number, or removes its last limbs."""
  missing = size - limbs.shape[1]
  return jnp.pad(limbs, ((0, 0), (0, max(missing, 0))))[:, :size]


def product(one: jax.Array, other: jax.Array) -> jax.Array:
  """[B, n] · [B, size] -> [B, size], with carries still to be made.

  Both need limbs below 1000; the shorter should be the first. Limbs that do not
  fit are lost.
  """

  def step(total: jax.Array, limb: jax.Array) -> tuple[jax.Array, None]:
    total = jnp.pad(total[:, :-1], ((0, 0), (1, 0)))
    return total + limb[:, None] * other, None

  total, _ = jax.lax.scan(step, jnp.zeros_like(other), one.T, reverse=True)
  return total


def carried(limbs: jax.Array) -> jax.Array:  # [B, size] -> [B, size]
  """Carries, so that the limbs of a non-negative number are below 1000."""

  def step(carry: jax.Array, limb: jax.Array) -> tuple[jax.Array, jax.Array]:
    total = limb + carry
    return total // _BASE, total % _BASE

  zero = jnp.zeros_like(limbs[:, 0])
  return jax.lax.scan(step, zero, limbs.T)[1].T


def sign_of(limbs: jax.Array) -> jax.Array:  # [..., size] -> [...] int32
  """Returns -1, 0 or 1, for limbs of either sign before carries."""

  def step(
    state: tuple[jax.Array, jax.Array], limb: jax.Array
  ) -> tuple[tuple[jax.Array, jax.Array], None]:
    carry, some = state
    total = limb + carry
    return (total // _BASE, some | (total % _BASE != 0)), None

  zero = jnp.zeros_like(limbs[..., 0])
  state = (zero, zero != 0)
  (carry, some), _ = jax.lax.scan(step, state, jnp.moveaxis(limbs, -1, 0))
  # The last carry is -1 for a small negative number: 999, 999, … - 1.
  return jnp.where(carry < 0, -1, (some | (carry > 0)).astype(jnp.int32))


# Symbols. NONE is outside the text, and inside longer symbols.
SYMBOLS = (
  *("NONE", "OTHER", "WHITE", "BLANK", "THIN", "SIZE", "ZERO", "ONE"),
  *("DIGIT", "DOT", "SLASH", "PLUS", "MINUS", "OPEN", "CLOSE", "FRACTION"),
  *("TIMES", "REPEAT", "PERCENT", "POWER", "COMMA", "EXPONENT"),
)
CODE = {name: code for code, name in enumerate(SYMBOLS)}
_DIGITS = ("ZERO", "ONE", "DIGIT")
# \left and \right are blanks too, but not inside fractions, where the host
# refuses letters. THIN is a blank that may separate thousands.
_BLANKS = ("WHITE", "BLANK", "THIN")
_ALL_BLANKS = (*_BLANKS, "SIZE")

_LONG = (  # Symbol, its bytes, and True if a small letter may follow.
  ("BLANK", rb"\ ", True),
  ("BLANK", rb"\;", True),
  ("BLANK", rb"\:", True),
  ("BLANK", rb"\!", True),
  ("BLANK", rb"\,", True),
  ("SIZE", rb"\left", False),
  ("SIZE", rb"\right", False),
  ("MINUS", "−".encode(), True),
  ("FRACTION", rb"\frac", False),
  ("FRACTION", rb"\dfrac", False),
  ("FRACTION", rb"\tfrac", False),
  ("FRACTION", rb"\cfrac", False),
  ("TIMES", rb"\cdot", False),
  ("TIMES", rb"\times", False),
  ("TIMES", "×".encode(), True),
  ("TIMES", "·".encode(), True),
  ("SLASH", rb"\over", False),
  ("REPEAT", rb"\overline{", True),
  ("PERCENT", rb"\%", True),
)
_SHORT = (
  *(("BLANK", "~"), ("DOT", "."), ("SLASH", "/"), ("PLUS", "+")),
  *(("MINUS", "-"), ("OPEN", "{"), ("CLOSE", "}"), ("TIMES", "*")),
  *(("PERCENT", "%"), ("POWER", "^"), ("ZERO", "0"), ("ONE", "1")),
  *(("EXPONENT", "e"), ("EXPONENT", "E")),
)
_SEPARATORS = (
  *(("THIN", x.encode()) for x in (" ", "~", "\u00a0", "\u2009", "\u202f")),
  *(("THIN", b"\\" + x) for x in (b",", b";", b":", b"!", b" ")),
  *(("COMMA", x) for x in (b",", rb",\!", rb",\! ", b"{,}")),
)


def symbols(
  data: jax.Array,  # [B, W] uint8
  start: jax.Array,  # [B]
  end: jax.Array,  # [B]
) -> jax.Array:  # [B, W] int32
  """Returns the symbol that begins at each byte of [start, end), else NONE."""
  data = text.within(data, start, end)
  words = text.words(data)
  digit = text.digits(data)
  inside = text.behind(text.before(jnp.ones(data.shape, bool), end), start)
  code = jnp.where(inside, CODE["OTHER"], CODE["NONE"])
  code = jnp.where(digit, CODE["DIGIT"], code)
  code = jnp.where(text.spaces(words), CODE["WHITE"], code)
  for name, character in _SHORT:
    code = jnp.where(data == ord(character), CODE[name], code)
  size = jnp.ones(data.shape, jnp.int32)
  lower = text.lower(data)
  for name, pattern, followed in _LONG:
    matches = text.starts(words, pattern)
    if not followed:
      matches &= ~text.shifted(lower, len(pattern))
    code = jnp.where(matches, CODE[name], code)
    size = jnp.where(matches, len(pattern), size)
  # Separators of thousands, longest last: 1,234 1 234 1,\!234 1{,}234.
  three = digit & text.shifted(digit, 1) & text.shifted(digit, 2)
  three = jax.lax.optimization_barrier(three)
  for name, pattern in _SEPARATORS:
    matches = text.starts(words, pattern) & text.shifted(digit, -1)
    matches &= text.shifted(three, len(pattern))
    code = jnp.where(matches, CODE[name], code)
    size = jnp.where(matches, len(pattern), size)
  # Bytes inside a longer symbol have no symbol of their own.
  reach = jax.lax.cummax(text.places(data) + size, axis=1)
  covered = text.shifted(reach, -1) > text.places(data)
  return jnp.where(covered & inside, CODE["NONE"], code)


# Plain numbers of the grammar, by their places.
_PLAIN = ("first", "below", "over", "under")
_WHOLE = ("one", "two", "three", "many", "group1", "group2", "group3")
_COMPLETE = ("one", "two", "three", "many", "group3", "decimal", "bare")


class _Builder:
  """Collects transitions between states by their names."""

  def __init__(self) -> None:
    self.moves: dict[tuple[str, str], str] = {}

  def add(self, state: str, symbols: Iterable[str], to: str) -> None:
    for symbol in symbols:
      assert (state, symbol) not in self.moves, (state, symbol)
      self.moves[state, symbol] = to

  def plain(self, name: str, before: Iterable[str], repeats: bool) -> None:
    """Adds a plain number, after any of the states `before`."""
    add = self.add
    for state in before:
      add(state, ("ZERO",), f"{name}.many")  # 0,123 is not a number.
      add(state, ("ONE", "DIGIT"), f"{name}.one")
      add(state, ("DOT",), f"{name}.opening")
    for state, following in zip(
      ("one", "two", "three", "many", "comma", "group1", "group2"),
      ("two", "three", "many", "many", "group1", "group2", "group3"),
      strict=True,
    ):
      add(f"{name}.{state}", _DIGITS, f"{name}.{following}")
    for state in ("one", "two", "three", "group3"):
      add(f"{name}.{state}", ("COMMA", "THIN"), f"{name}.comma")
    for state in ("one", "two", "three", "many", "group3"):
      add(f"{name}.{state}", ("DOT",), f"{name}.point")
    add(f"{name}.point", _DIGITS, f"{name}.decimal")
    add(f"{name}.decimal", _DIGITS, f"{name}.decimal")
    # No \overline may follow .5.
    add(f"{name}.opening", _DIGITS, f"{name}.bare")
    add(f"{name}.bare", _DIGITS, f"{name}.bare")
    if repeats:
      for state in ("point", "decimal"):
        add(f"{name}.{state}", ("REPEAT",), f"{name}.open")
      for state in ("open", "repeat"):
        add(f"{name}.{state}", _DIGITS, f"{name}.repeat")
      add(f"{name}.repeat", ("CLOSE",), f"{name}.repeated")

  def blanks(self, name: str, to: str, blanks: Iterable[str]) -> None:
    """Makes blanks after a plain number lead to the state `to`."""
    for state in _COMPLETE:
      own = {s for x, s in self.moves if x == f"{name}.{state}"}
      free = [s for s in blanks if s not in own]
      self.add(f"{name}.{state}", free, to)


def _moves() -> dict[tuple[str, str], str]:
  """Returns all transitions between named states, from "start" on."""
  builder = _Builder()
  add = builder.add
  for state in ("start", "signed"):
    add(state, _ALL_BLANKS, state)
    add(state, ("FRACTION",), "fraction")
  add("start", ("PLUS", "MINUS"), "signed")
  builder.plain("first", ("start", "signed"), repeats=True)
  builder.blanks("first", "whole", _ALL_BLANKS)
  for state in ("decimal", "bare"):
    for symbol in _ALL_BLANKS:
      builder.moves[f"first.{state}", symbol] = "broken"
  add("first.repeated", _ALL_BLANKS, "repeated")
  for state in ("whole", "broken", "repeated"):
    add(state, _ALL_BLANKS, state)
  whole = [f"first.{x}" for x in ("one", "two", "three", "many", "group3")]
  for state in (*whole, "whole"):
    add(state, ("FRACTION",), "fraction")
  for state in (*whole, "first.decimal", "first.bare", "whole", "broken"):
    add(state, ("SLASH",), "slash")
    add(state, ("TIMES",), "times")
    if state not in ("whole", "broken"):  # No blank before an exponent.
      add(state, ("EXPONENT",), "exponent")
  add("slash", _ALL_BLANKS, "slash")
  builder.plain("below", ("slash",), repeats=False)
  builder.blanks("below", "done", _ALL_BLANKS)
  _add_fraction(builder)
  _add_part(builder)
  _add_power(builder)
  add("done", _ALL_BLANKS, "done")
  for state in accepting() - {"percent"}:
    add(state, ("PERCENT",), "percent")
  add("percent", _ALL_BLANKS, "percent")
  return builder.moves


def _add_fraction(builder: _Builder) -> None:
  for name, begin, after in (
    ("over", "fraction", "middle"),
    ("under", "middle", "done"),
  ):
    builder.add(begin, _BLANKS, begin)
    builder.add(begin, ("OPEN",), f"{name}.brace")
    builder.add(begin, _DIGITS, f"{name}.digit")
    braces = (f"{name}.brace", f"{name}.signed")
    for state in braces:
      builder.add(state, _BLANKS, state)
    builder.add(braces[0], ("PLUS", "MINUS"), braces[1])
    builder.plain(name, braces, repeats=False)
    builder.blanks(name, f"{name}.end", _BLANKS)
    builder.add(f"{name}.end", _BLANKS, f"{name}.end")
    for state in (*_COMPLETE, "end"):
      builder.add(f"{name}.{state}", ("CLOSE",), after)
  # A single digit is a whole part, and is followed by what follows a part.
  builder.add("over.digit", _BLANKS, "middle")
  builder.add("over.digit", ("OPEN",), "under.brace")
  builder.add("over.digit", _DIGITS, "under.digit")
  builder.add("under.digit", _ALL_BLANKS, "done")


def _add_part(builder: _Builder) -> None:
  """Adds the fraction of a mixed number such as 3 1/2."""
  for begin, name, blank in (
    ("whole", "part.over", "part.end"),
    ("part.slash", "part.under", "done"),
  ):
    builder.add(begin, _DIGITS, name)
    builder.add(name, _DIGITS, name)
    builder.add(name, _ALL_BLANKS, blank)
  builder.add("part.end", _ALL_BLANKS, "part.end")
  builder.add("part.slash", _ALL_BLANKS, "part.slash")
  for state in ("part.over", "part.end"):
    builder.add(state, ("SLASH",), "part.slash")


def _add_power(builder: _Builder) -> None:
  add = builder.add
  add("times", _ALL_BLANKS, "times")
  add("times", ("ONE",), "ten")
  add("ten", ("ZERO",), "base")
  add("base", ("WHITE",), "base")
  add("base", ("POWER",), "power")
  add("power", ("WHITE",), "power")
  add("power", _DIGITS, "power.single")
  add("power.single", _ALL_BLANKS, "done")
  add("power", ("OPEN",), "power.brace")
  add("power.brace", ("WHITE",), "power.brace")
  add("power.brace", ("MINUS",), "power.signed")
  for state, following in (
    ("brace", "one"),
    ("signed", "one"),
    ("one", "two"),
    ("two", "three"),
  ):
    add(f"power.{state}", _DIGITS, f"power.{following}")
  for state in ("one", "two", "three"):
    add(f"power.{state}", ("WHITE",), "power.end")
    add(f"power.{state}", ("CLOSE",), "done")
  add("power.end", ("WHITE",), "power.end")
  add("power.end", ("CLOSE",), "done")
  add("exponent", ("PLUS", "MINUS"), "exponent.signed")
  add("exponent", _DIGITS, "exponent.one")
  for state, following in (("signed", "one"), ("one", "two"), ("two", "three")):
    add(f"exponent.{state}", _DIGITS, f"exponent.{following}")
  for state in ("one", "two", "three"):
    add(f"exponent.{state}", _ALL_BLANKS, "done")


def accepting() -> set[str]:
  """Returns the states in which a text may end."""
  return {
    *(f"{name}.{x}" for name in ("first", "below") for x in _COMPLETE),
    *("first.repeated", "whole", "broken", "repeated"),
    *("done", "percent", "under.digit", "part.under", "power.single"),
    *("exponent.one", "exponent.two", "exponent.three"),
  }


class _Automaton(NamedTuple):
  names: tuple[str, ...]  # Names of states; 0 is the start, 1 is a failure.
  table: np.ndarray  # [states, symbols] int32


@functools.cache
def automaton() -> _Automaton:
  """Returns the names of all states, and the table."""
  moves = _moves()
  states = dict.fromkeys(
    ["start", "failed", *(s for s, _ in moves), *moves.values()]
  )
  names = tuple(states)
  code = {name: k for k, name in enumerate(names)}
  table = np.full((len(names), len(SYMBOLS)), code["failed"], np.int32)
  table[:, CODE["NONE"]] = np.arange(len(names))
  for (state, symbol), to in moves.items():
    table[code[state], CODE[symbol]] = code[to]
  return _Automaton(names, table)


def roles(symbols: jax.Array) -> jax.Array:  # [B, W] -> [B, W] int32
  """Returns the roles of each byte: one bit for each name of `ROLES`.

  They depend on the symbol and on the state after it.
  """
  names, moves = automaton()
  bits = np.zeros(moves.shape, np.int32)  # [states, symbols]
  for bit, (states, of) in enumerate(ROLES.values()):
    codes = [CODE[symbol] for symbol in of]
    bits[np.ix_([names.index(state) for state in states], codes)] |= 1 << bit
  # One gather for both: the next state, and the bits of the move to it.
  table = jnp.stack([moves, bits[moves, np.arange(len(SYMBOLS))]], axis=-1)

  def step(state: jax.Array, symbol: jax.Array) -> tuple[jax.Array, jax.Array]:
    entry = table[state, symbol]  # [B, 2]
    return entry[:, 0], entry[:, 1]

  start = jnp.zeros_like(symbols[:, 0])
  return jax.lax.scan(step, start, symbols.T)[1].T


def has(roles: jax.Array, *names: str) -> jax.Array:  # bool
  """Marks the bytes that have one of these roles."""
  bits = sum(1 << list(ROLES).index(name) for name in names)
  return roles & bits != 0


def counted(roles: jax.Array) -> dict[str, jax.Array]:  # each [B] int32
  """Counts the bytes of a row that have each role."""
  bit = jnp.arange(len(ROLES))[:, None, None]
  counts = ((roles >> bit) & 1).sum(axis=2, dtype=jnp.int32)
  return dict(zip(ROLES, counts, strict=True))


def _roles() -> dict[str, tuple[Iterable[str], Iterable[str]]]:
  """Returns, for each role, states and the symbols that lead to them."""
  whole, places = {}, {}
  for name in _PLAIN:
    single = []
    if name in ("over", "under"):
      single = [f"{name}.digit", f"part.{name}"]
    whole[name] = [*(f"{name}.{x}" for x in _WHOLE), *single]
    places[name] = [f"{name}.decimal", f"{name}.bare"]
  ends = accepting()
  return {
    **{x: ((*whole[x], *places[x]), _DIGITS) for x in _PLAIN},
    **{f"{x}.places": (places[x], _DIGITS) for x in _PLAIN},
    "repeat": (("first.repeat",), _DIGITS),
    "nonzero": (whole["first"], ("ONE", "DIGIT")),
    "zero": (whole["first"], ("ZERO",)),
    "minus": (("signed",), ("MINUS",)),
    "inner minus": (("over.signed", "under.signed"), ("MINUS",)),
    "fraction": (("fraction", "part.slash"), ("FRACTION", "SLASH")),
    "times": (("times", "exponent"), ("TIMES", "EXPONENT")),
    "power minus": (("power.signed", "exponent.signed"), ("MINUS",)),
    "power 1": (("power.single", "power.one", "exponent.one"), _DIGITS),
    "power 2": (("power.two", "exponent.two"), _DIGITS),
    "power 3": (("power.three", "exponent.three"), _DIGITS),
    "percent": (("percent",), ("PERCENT",)),
    "blank": (("start", "signed"), _ALL_BLANKS),
    # For the last byte these say where the text ends: NONE changes nothing.
    "end": (ends, SYMBOLS),
    "decimal end": (places["first"], SYMBOLS),
  }


ROLES = _roles()


_GOLD_LIMBS = 14  # Three digits each.
_MAX_EXPONENT = 100  # Exponent of ten, in scientific notation, as on the host.
# With so many decimals, a rounded number counts as the exact one.
_MIN_ROUNDED_PLACES = 6


def gold(answer: str) -> dict[str, np.ndarray] | None:
  r"""Returns the arrays of a gold answer, made once per record, on the host.

  Args:
    answer: A number, with or without `$…$` or `\boxed{…}`.

  Returns:
    `numerator` and `denominator` [14] int32, limbs of three digits; `negative`
    [] bool; `places` [] int32, decimals; `unit` [32] uint8; and `is_plain` []
    bool, True if the unit needs no command. None for a gold answer that only
    the host can compare: one that is not a number, has roots or π, more than 42
    digits above or below, or a unit of more than 32 bytes.
  """
  answer = str(answer).strip()
  boxed = answers.last_boxed(answer)
  number = answers.quantity(answer if boxed is None else boxed.strip())
  if number is None or number.value is None:
    return None
  # A decimal stays as it was written: 0.500000 is 500000/1000000.
  scale = 10**number.places
  below = math.lcm(number.value.denominator, scale)
  above = abs(number.value.numerator) * (below // number.value.denominator)
  unit = number.unit.replace(r"\circ", find.DEGREE.decode()).encode()
  numerator = constant(above, _GOLD_LIMBS)
  denominator = constant(below, _GOLD_LIMBS)
  if numerator is None or denominator is None:
    return None
  if len(unit) > find.MAX_UNIT:
    return None
  return {
    "numerator": numerator,
    "denominator": denominator,
    "negative": np.array(number.value < 0),
    "places": np.array(number.places, np.int32),
    "unit": np.frombuffer(unit.ljust(find.MAX_UNIT, b"\0"), np.uint8),
    "is_plain": np.array(bool(answers.KNOWN_UNIT.fullmatch(number.unit))),
  }


def equal(
  window: Window, gold: Mapping[str, jax.Array]
) -> jax.Array:  # [B] bool
  """Returns True for each answer that equals its gold answer.

  Args:
    window: Answers; a row without an answer gives False.
    gold: The arrays of `gold`, with a first axis of B.
  """
  chex.assert_rank([window.bytes, gold["numerator"]], 2)
  window = find.without_superscripts(window)
  number = find.number(window, gold["unit"], gold["is_plain"])
  data = find.without_brackets(window.bytes, number.start, number.end)
  codes = symbols(data, number.start, number.end)
  value = _value(data, roles(codes), number.percent)
  same_unit = (number.unit == gold["unit"]).all(axis=1)
  fits = number.unit_length <= find.MAX_UNIT
  unit = (number.unit_length == 0) | (same_unit & fits)
  # Gold answers leave out the dollar.
  dollars = (number.unit == find.unit_row(b"$")).all(axis=1)
  unit |= dollars & (gold["unit"] == 0).all(axis=1)
  same = _compared(value, gold)
  return window.exists & number.single & unit & value.valid & same


class _Value(NamedTuple):
  """A fraction, (whole · below + above) / below · 10^exponent, of each row.

  Attributes:
    digits: Digits of the numbers `below`, `whole` and `above`.
    masks: True in the places of these digits.
    exponent: Exponent of ten.
    negative: True for a negative number.
    valid: True if the text is a number. Two conditions are still to be checked:
      `below` is not zero, and the fraction of a mixed number is less than one.
    mixed: True for a mixed number.
    places: Decimals of a number that is one decimal alone; 0 for any other.
  """

  digits: jax.Array  # [3, B, W] int32
  masks: jax.Array  # [3, B, W] bool
  exponent: jax.Array  # [B] int32
  negative: jax.Array  # [B] bool
  valid: jax.Array  # [B] bool
  mixed: jax.Array  # [B] bool
  places: jax.Array  # [B] int32


def _value(
  data: jax.Array,  # [B, W] uint8
  roles: jax.Array,  # [B, W]
  percent: jax.Array,  # [B] bool, True with the word behind the number.
) -> _Value:
  count = counted(roles)
  data = data.astype(jnp.int32) - ord("0")
  fraction = count["fraction"] > 0
  parts = fraction | (count["repeat"] > 0)
  first, repeat = has(roles, "first"), has(roles, "repeat")
  whole = first & parts[:, None]
  above = has(roles, "over", "repeat") | (first & ~parts[:, None])
  below = has(roles, "under", "below", "repeat")
  # A missing denominator is 1, which is written over the first byte.
  no_below = count["under"] + count["below"] + count["repeat"] == 0
  is_one = no_below[:, None] & (text.places(data) == 0)
  # 0.1\overline{6} is (1 · 9 + 6) / 9 / 10: as many nines as digits.
  below_data = jnp.where(is_one, 1, jnp.where(repeat, 9, data))
  power = _power(data, roles, count)
  exponent = (
    power
    - 2 * (count["percent"] + percent)
    - count["first.places"]
    - count["over.places"]
    + count["below.places"]
    + count["under.places"]
  )
  mixed = fraction & (count["first"] > 0)
  simple = count["over.places"] + count["under.places"] == 0
  simple &= count["inner minus"] % 2 == 0
  ends = roles[:, -1]
  valid = has(ends, "end") & (jnp.abs(power) <= _MAX_EXPONENT)
  valid &= (count["times"] == 0) | _is_mantissa(roles, count)
  valid &= (count["percent"] == 0) | ~percent
  alone = has(ends, "decimal end")
  alone &= (count["blank"] == 0) & ~percent
  return _Value(
    jnp.stack([below_data, data, data]),
    jnp.stack([below | is_one, whole, above]),
    exponent,
    (count["minus"] + count["inner minus"]) % 2 == 1,
    valid & (~mixed | simple),
    mixed,
    jnp.where(alone, count["first.places"], 0),
  )


def _power(
  data: jax.Array,  # [B, W]
  roles: jax.Array,  # [B, W]
  count: Mapping[str, jax.Array],
) -> jax.Array:  # [B] int32
  """Returns the exponent written after 10^, of three digits at most."""
  power = jnp.zeros_like(count["times"])
  for name in ("power 1", "power 2", "power 3"):
    digit = jnp.where(has(roles, name), data, 0).sum(axis=1)
    power = jnp.where(count[name] > 0, 10 * power + digit, power)
  return jnp.where(count["power minus"] > 0, -power, power)


def _is_mantissa(
  roles: jax.Array,  # [B, W]
  count: Mapping[str, jax.Array],
) -> jax.Array:  # [B] bool
  """Returns True if the digits before the point are a number from 1 to 9."""
  last = text.last(has(roles, "nonzero"))
  zeros = text.behind(has(roles, "zero"), last)
  return (count["nonzero"] == 1) & ~zeros.any(axis=1)


def _compared(
  value: _Value, gold: Mapping[str, jax.Array]
) -> jax.Array:  # [B] bool
  """Returns True if both are equal, or one is the other one rounded."""
  width = value.digits.shape[-1]
  # All digits of a window, shifted by a power of ten, times the gold digits.
  size = (width + _MAX_EXPONENT + 3 * _GOLD_LIMBS) // 3 + 3
  up = jnp.maximum(value.exponent, 0)
  down = jnp.maximum(-value.exponent, 0)
  which = np.array([0, 0, 1, 2])
  below, below_shifted, whole, above = jax.vmap(read, (0, 0, 0, None))(
    value.digits[which],
    value.masks[which],
    jnp.stack([jnp.zeros_like(up), down, up, up]),
    size,
  )
  some_below = below[:, : (width + 2) // 3]
  total = carried(product(some_below, whole) + above)
  left, right = jax.vmap(product)(
    jnp.stack([gold["denominator"], gold["numerator"]]),
    jnp.stack([total, below_shifted]),
  )
  difference = left - right
  gold_below = padded(gold["denominator"], size)
  signs = sign_of(
    jnp.stack(
      [
        difference,
        gold_below - 2 * difference,
        gold_below + 2 * difference,
        below_shifted - 2 * difference,
        below_shifted + 2 * difference,
        below - above,
        below,
        above,
        total,
        padded(gold["numerator"], size),
      ]
    )
  )  # [10, B]
  same = signs[0] == 0
  value_zero, gold_zero = signs[8] == 0, signs[9] == 0
  # Half of the last place is rounded to the even neighbour.
  to_value = _rounds(signs[1], signs[2], above[:, 0] % 2 == 0)
  to_value &= (value.places >= _MIN_ROUNDED_PLACES) & ~value_zero
  to_gold = _rounds(signs[3], signs[4], gold["numerator"][:, 0] % 2 == 0)
  to_gold &= (gold["places"] >= _MIN_ROUNDED_PLACES) & ~gold_zero
  proper = ~value.mixed | ((signs[5] > 0) & (signs[7] > 0))
  sign = (value.negative == gold["negative"]) | (value_zero & gold_zero)
  return (signs[6] > 0) & proper & sign & (same | to_value | to_gold)


def _rounds(one: jax.Array, other: jax.Array, even: jax.Array) -> jax.Array:
  """Returns True if |difference| is below half, or just half and `even`."""
  least = jnp.minimum(one, other)
  return (least > 0) | ((least == 0) & even)

r"""Which rational number a text is: a finite automaton over its bytes.

The grammar is that part of `rewards.answers.quantity` whose value is rational:

    number   = [±] value [%]
    value    = plain | plain / plain | plain · 10^n | plain e [±] digits
             | [plain] \frac part part | plain digits / digits
    part     = digit | { [±] plain }
    plain    = digits [. digits] | . digits
             | digits . [digits] \overline{digits}

with blanks between all of these. A text becomes one symbol for each byte, then
one state for each byte, by a table that is made here in Python. A second table
says what a byte in that state is to the number, the denominator's digit, say;
whatever else is asked of the text is asked of these roles. What Python's
regular expressions try out (whether three digits follow a comma) is decided by
what stands next to the byte.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rewards.in_graph import strings

# Symbols. NONE stands outside of the text, and inside of longer symbols.
SYMBOLS = (
  *("NONE", "OTHER", "WHITE", "BLANK", "THIN", "SIZE", "ZERO", "ONE"),
  *("DIGIT", "DOT", "SLASH", "PLUS", "MINUS", "OPEN", "CLOSE", "FRACTION"),
  *("TIMES", "REPEAT", "PERCENT", "POWER", "COMMA", "EXPONENT"),
)
CODE = {name: code for code, name in enumerate(SYMBOLS)}
_DIGITS = ("ZERO", "ONE", "DIGIT")
# \left and \right are blanks too, but not inside of fractions, where the host
# refuses letters. THIN is one that may separate thousands.
_BLANKS = ("WHITE", "BLANK", "THIN")
_ALL_BLANKS = (*_BLANKS, "SIZE")

_LONG = (  # Bytes of a symbol; whether a small letter may follow.
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
  """The symbol that begins at each byte of [start, end); NONE elsewhere."""
  data = strings.kept(data, start, end)
  words = strings.words(data)
  digit = strings.digits(data)
  inside = strings.behind(
    strings.before(jnp.ones(data.shape, bool), end), start
  )
  code = jnp.where(inside, CODE["OTHER"], CODE["NONE"])
  code = jnp.where(digit, CODE["DIGIT"], code)
  code = jnp.where(strings.spaces(words), CODE["WHITE"], code)
  for name, character in _SHORT:
    code = jnp.where(data == ord(character), CODE[name], code)
  size = jnp.ones(data.shape, jnp.int32)
  lower = strings.lower(data)
  for name, pattern, followed in _LONG:
    found = strings.starts(words, pattern)
    if not followed:
      found &= ~strings.shifted(lower, len(pattern))
    code = jnp.where(found, CODE[name], code)
    size = jnp.where(found, len(pattern), size)
  # Separators of thousands, longest last: 1,234 1 234 1,\!234 1{,}234.
  three = digit & strings.shifted(digit, 1) & strings.shifted(digit, 2)
  three = jax.lax.optimization_barrier(three)
  for name, pattern in _SEPARATORS:
    found = strings.starts(words, pattern) & strings.shifted(digit, -1)
    found &= strings.shifted(three, len(pattern))
    code = jnp.where(found, CODE[name], code)
    size = jnp.where(found, len(pattern), size)
  # What lies inside of a longer symbol is none.
  reach = jax.lax.cummax(strings.places(data) + size, axis=1)
  covered = strings.shifted(reach, -1) > strings.places(data)
  return jnp.where(covered & inside, CODE["NONE"], code)


# Plain numbers of the grammar, by where they stand.
_PLAIN = ("first", "below", "over", "under")
_WHOLE = ("one", "two", "three", "many", "group1", "group2", "group3")
_COMPLETE = ("one", "two", "three", "many", "group3", "decimal", "bare")


class _Builder:
  """Collects transitions, under names of states."""

  def __init__(self) -> None:
    self.moves: dict[tuple[str, str], str] = {}

  def add(self, state: str, symbols: Iterable[str], to: str) -> None:
    for symbol in symbols:
      assert (state, symbol) not in self.moves, (state, symbol)
      self.moves[state, symbol] = to

  def plain(self, name: str, before: Iterable[str], repeats: bool) -> None:
    """A plain number, after any of the states `before`."""
    add = self.add
    for state in before:
      add(state, ("ZERO",), f"{name}.many")  # 0,123 is no number.
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
    # After .5 there is no \overline.
    add(f"{name}.opening", _DIGITS, f"{name}.bare")
    add(f"{name}.bare", _DIGITS, f"{name}.bare")
    if repeats:
      for state in ("point", "decimal"):
        add(f"{name}.{state}", ("REPEAT",), f"{name}.open")
      for state in ("open", "repeat"):
        add(f"{name}.{state}", _DIGITS, f"{name}.repeat")
      add(f"{name}.repeat", ("CLOSE",), f"{name}.repeated")

  def blanks(self, name: str, to: str, blanks: Iterable[str]) -> None:
    """Blanks after a plain number lead to the state `to`."""
    for state in _COMPLETE:
      taken = {s for x, s in self.moves if x == f"{name}.{state}"}
      free = [s for s in blanks if s not in taken]
      self.add(f"{name}.{state}", free, to)


def _moves() -> dict[tuple[str, str], str]:
  """All transitions between named states; "start" is the first state."""
  made = _Builder()
  add = made.add
  for state in ("start", "signed"):
    add(state, _ALL_BLANKS, state)
    add(state, ("FRACTION",), "fraction")
  add("start", ("PLUS", "MINUS"), "signed")
  made.plain("first", ("start", "signed"), repeats=True)
  made.blanks("first", "whole", _ALL_BLANKS)
  for state in ("decimal", "bare"):
    for symbol in _ALL_BLANKS:
      made.moves[f"first.{state}", symbol] = "broken"
  add("first.repeated", _ALL_BLANKS, "repeated")
  for state in ("whole", "broken", "repeated"):
    add(state, _ALL_BLANKS, state)
  whole = [f"first.{x}" for x in ("one", "two", "three", "many", "group3")]
  for state in (*whole, "whole"):
    add(state, ("FRACTION",), "fraction")
  for state in (*whole, "first.decimal", "first.bare", "whole", "broken"):
    add(state, ("SLASH",), "slash")
    add(state, ("TIMES",), "times")
    if state not in ("whole", "broken"):  # No blank before it.
      add(state, ("EXPONENT",), "exponent")
  add("slash", _ALL_BLANKS, "slash")
  made.plain("below", ("slash",), repeats=False)
  made.blanks("below", "done", _ALL_BLANKS)
  _add_fraction(made)
  _add_part(made)
  _add_power(made)
  add("done", _ALL_BLANKS, "done")
  for state in accepting() - {"percent"}:
    add(state, ("PERCENT",), "percent")
  add("percent", _ALL_BLANKS, "percent")
  return made.moves


def _add_fraction(made: _Builder) -> None:
  for name, begin, after in (
    ("over", "fraction", "middle"),
    ("under", "middle", "done"),
  ):
    made.add(begin, _BLANKS, begin)
    made.add(begin, ("OPEN",), f"{name}.brace")
    made.add(begin, _DIGITS, f"{name}.digit")
    braces = (f"{name}.brace", f"{name}.signed")
    for state in braces:
      made.add(state, _BLANKS, state)
    made.add(braces[0], ("PLUS", "MINUS"), braces[1])
    made.plain(name, braces, repeats=False)
    made.blanks(name, f"{name}.end", _BLANKS)
    made.add(f"{name}.end", _BLANKS, f"{name}.end")
    for state in (*_COMPLETE, "end"):
      made.add(f"{name}.{state}", ("CLOSE",), after)
  # A single digit is the whole part, and what may follow the part follows it.
  made.add("over.digit", _BLANKS, "middle")
  made.add("over.digit", ("OPEN",), "under.brace")
  made.add("over.digit", _DIGITS, "under.digit")
  made.add("under.digit", _ALL_BLANKS, "done")


def _add_part(made: _Builder) -> None:
  """The fraction of 3 1/2."""
  for begin, name, blank in (
    ("whole", "part.over", "part.end"),
    ("part.slash", "part.under", "done"),
  ):
    made.add(begin, _DIGITS, name)
    made.add(name, _DIGITS, name)
    made.add(name, _ALL_BLANKS, blank)
  made.add("part.end", _ALL_BLANKS, "part.end")
  made.add("part.slash", _ALL_BLANKS, "part.slash")
  for state in ("part.over", "part.end"):
    made.add(state, ("SLASH",), "part.slash")


def _add_power(made: _Builder) -> None:
  add = made.add
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
  """States in which a text may end."""
  return {
    *(f"{name}.{x}" for name in ("first", "below") for x in _COMPLETE),
    *("first.repeated", "whole", "broken", "repeated"),
    *("done", "percent", "under.digit", "part.under", "power.single"),
    *("exponent.one", "exponent.two", "exponent.three"),
  }


class _Automaton(NamedTuple):
  names: tuple[str, ...]  # Of the states; 0 is the start, 1 is a failure.
  table: np.ndarray  # [states, symbols] int32


@functools.cache
def automaton() -> _Automaton:
  """The names of all states, and the table."""
  moves = _moves()
  found = dict.fromkeys(
    ["start", "failed", *(s for s, _ in moves), *moves.values()]
  )
  names = tuple(found)
  code = {name: k for k, name in enumerate(names)}
  table = np.full((len(names), len(SYMBOLS)), code["failed"], np.int32)
  table[:, CODE["NONE"]] = np.arange(len(names))
  for (state, symbol), to in moves.items():
    table[code[state], CODE[symbol]] = code[to]
  return _Automaton(names, table)


def roles(symbols: jax.Array) -> jax.Array:  # [B, W] -> [B, W] int32
  """What each byte is to the number: one bit for each name of `ROLES`.

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
    found = table[state, symbol]  # [B, 2]
    return found[:, 0], found[:, 1]

  start = jnp.zeros_like(symbols[:, 0])
  return jax.lax.scan(step, start, symbols.T)[1].T


def has(roles: jax.Array, *names: str) -> jax.Array:  # bool
  """Where a byte has one of these roles."""
  bits = sum(1 << list(ROLES).index(name) for name in names)
  return roles & bits != 0


def counted(roles: jax.Array) -> dict[str, jax.Array]:  # each [B] int32
  """How many bytes of a row have each role."""
  bit = jnp.arange(len(ROLES))[:, None, None]
  counts = ((roles >> bit) & 1).sum(axis=2, dtype=jnp.int32)
  return dict(zip(ROLES, counts, strict=True))


def _roles() -> dict[str, tuple[Iterable[str], Iterable[str]]]:
  """For each role, states and the symbols that lead to them."""
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
    # Of the last byte they say where the text ends, for NONE changes nothing.
    "end": (ends, SYMBOLS),
    "decimal end": (places["first"], SYMBOLS),
  }


ROLES = _roles()

r"""Whether an answer is the number that the gold answer is.

What `rewards.math_accuracy` says where the gold answer is a rational number.
Both are fractions of whole numbers; they are multiplied crosswise and compared
exactly, digit by digit. No answer of a window is too long for it.

Deviations from the host, each a rare form, and no answer here:

- a repeating decimal in a fraction or before a power of ten,
  `1/0.\overline{3}`;
- a mixed number with a decimal point in its fraction, `3\frac{0.5}{2}`;
- fractions of one character, ½, and raised digits but for ² and ³.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rewards import answers
from grpo_jax.rewards.in_graph import digits, grammar, strings, wrappings
from grpo_jax.rewards.in_graph.find import Window

_GOLD_LIMBS = 14  # Of three digits each.
_MAX_EXPONENT = 100  # Of ten, in scientific notation, as on the host.
# Decimals from which on a rounded number stands for the exact one.
_MIN_ROUNDED_PLACES = 6


def gold(answer: str) -> dict[str, np.ndarray] | None:
  """The arrays of a gold answer, once per record, on the host.

  Args:
    answer: A number, with or without `$…$` or `\\boxed{…}`.

  Returns:
    `numerator` and `denominator` [14] int32, limbs of three digits; `negative`
    [] bool; `places` [] int32, decimals; `unit` [32] uint8, and `is_plain` []
    bool, whether it needs no command. None for a gold answer that only the host
    can compare: one that is no number, has roots or π, more than 42 digits
    above or below, or a unit of more than 32 bytes.
  """
  answer = str(answer).strip()
  boxed = answers.last_boxed(answer)
  found = answers.quantity(answer if boxed is None else boxed.strip())
  if found is None or found.value is None:
    return None
  # A decimal stays as it was written: 0.500000 is 500000/1000000.
  scale = 10**found.places
  below = math.lcm(found.value.denominator, scale)
  above = abs(found.value.numerator) * (below // found.value.denominator)
  unit = found.unit.replace(r"\circ", wrappings.DEGREE.decode()).encode()
  numerator = digits.constant(above, _GOLD_LIMBS)
  denominator = digits.constant(below, _GOLD_LIMBS)
  if numerator is None or denominator is None:
    return None
  if len(unit) > wrappings.MAX_UNIT:
    return None
  return {
    "numerator": numerator,
    "denominator": denominator,
    "negative": np.array(found.value < 0),
    "places": np.array(found.places, np.int32),
    "unit": np.frombuffer(unit.ljust(wrappings.MAX_UNIT, b"\0"), np.uint8),
    "is_plain": np.array(bool(answers.KNOWN_UNIT.fullmatch(found.unit))),
  }


def equal(
  window: Window, gold: Mapping[str, jax.Array]
) -> jax.Array:  # [B] bool
  """Whether each answer is the number of its gold answer.

  Args:
    window: Answers. Where none was found, none is equal.
    gold: The arrays of `gold`, with a first axis of B.
  """
  chex.assert_rank([window.bytes, gold["numerator"]], 2)
  window = wrappings.without_superscripts(window)
  number = wrappings.number(window, gold["unit"], gold["is_plain"])
  data = wrappings.without_brackets(window.bytes, number.start, number.end)
  codes = grammar.symbols(data, number.start, number.end)
  value = _value(data, grammar.roles(codes), number.percent)
  same_unit = (number.unit == gold["unit"]).all(axis=1)
  fits = number.unit_length <= wrappings.MAX_UNIT
  unit = (number.unit_length == 0) | (same_unit & fits)
  # Gold answers leave the dollar out.
  dollars = (number.unit == wrappings.unit_row(b"$")).all(axis=1)
  unit |= dollars & (gold["unit"] == 0).all(axis=1)
  same = _compared(value, gold)
  return window.found & number.single & unit & value.valid & same


class _Value(NamedTuple):
  """A fraction, (whole · below + above) / below · 10^exponent, of each row.

  Attributes:
    digits: Of the numbers `below`, `whole` and `above`.
    masks: Where these digits stand.
    exponent: Of ten.
    negative: Its sign.
    valid: Whether it is a number at all; that `below` is not zero, and a part
      of a mixed number less than one, is still to be seen.
    mixed: Whether it is a mixed number.
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
  percent: jax.Array,  # [B] bool, whether the word stands behind it.
) -> _Value:
  count = grammar.counted(roles)
  data = data.astype(jnp.int32) - ord("0")
  fraction = count["fraction"] > 0
  parts = fraction | (count["repeat"] > 0)
  first, repeat = grammar.has(roles, "first"), grammar.has(roles, "repeat")
  whole = first & parts[:, None]
  above = grammar.has(roles, "over", "repeat") | (first & ~parts[:, None])
  below = grammar.has(roles, "under", "below", "repeat")
  # Without a denominator it is 1, which is written over the first byte.
  no_below = count["under"] + count["below"] + count["repeat"] == 0
  one = no_below[:, None] & (strings.places(data) == 0)
  # 0.1\overline{6} is (1 · 9 + 6) / 9 / 10: as many nines as digits.
  below_data = jnp.where(one, 1, jnp.where(repeat, 9, data))
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
  valid = grammar.has(ends, "end") & (jnp.abs(power) <= _MAX_EXPONENT)
  valid &= (count["times"] == 0) | _is_mantissa(roles, count)
  valid &= (count["percent"] == 0) | ~percent
  alone = grammar.has(ends, "decimal end")
  alone &= (count["blank"] == 0) & ~percent
  return _Value(
    jnp.stack([below_data, data, data]),
    jnp.stack([below | one, whole, above]),
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
  """The exponent that is written after 10^, of three digits at most."""
  power = jnp.zeros_like(count["times"])
  for name in ("power 1", "power 2", "power 3"):
    digit = jnp.where(grammar.has(roles, name), data, 0).sum(axis=1)
    power = jnp.where(count[name] > 0, 10 * power + digit, power)
  return jnp.where(count["power minus"] > 0, -power, power)


def _is_mantissa(
  roles: jax.Array,  # [B, W]
  count: Mapping[str, jax.Array],
) -> jax.Array:  # [B] bool
  """Whether the digits before the point are a number from 1 to 9."""
  last = strings.last(grammar.has(roles, "nonzero"))
  zeros = strings.behind(grammar.has(roles, "zero"), last)
  return (count["nonzero"] == 1) & ~zeros.any(axis=1)


def _compared(
  value: _Value, gold: Mapping[str, jax.Array]
) -> jax.Array:  # [B] bool
  """Whether both are equal, or one is the other one rounded."""
  width = value.digits.shape[-1]
  # All digits of a window, shifted by a power of ten, times those of the gold.
  size = (width + _MAX_EXPONENT + 3 * _GOLD_LIMBS) // 3 + 3
  up = jnp.maximum(value.exponent, 0)
  down = jnp.maximum(-value.exponent, 0)
  which = np.array([0, 0, 1, 2])
  below, below_shifted, whole, above = jax.vmap(digits.read, (0, 0, 0, None))(
    value.digits[which],
    value.masks[which],
    jnp.stack([jnp.zeros_like(up), down, up, up]),
    size,
  )
  some_below = below[:, : (width + 2) // 3]
  total = digits.carried(digits.product(some_below, whole) + above)
  left, right = jax.vmap(digits.product)(
    jnp.stack([gold["denominator"], gold["numerator"]]),
    jnp.stack([total, below_shifted]),
  )
  difference = left - right
  gold_below = digits.padded(gold["denominator"], size)
  signs = digits.sign(
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
        digits.padded(gold["numerator"], size),
      ]
    )
  )  # [10, B]
  same = signs[0] == 0
  found_zero, gold_zero = signs[8] == 0, signs[9] == 0
  # Half of the last place belongs to the even neighbour.
  to_found = _rounds(signs[1], signs[2], above[:, 0] % 2 == 0)
  to_found &= (value.places >= _MIN_ROUNDED_PLACES) & ~found_zero
  to_gold = _rounds(signs[3], signs[4], gold["numerator"][:, 0] % 2 == 0)
  to_gold &= (gold["places"] >= _MIN_ROUNDED_PLACES) & ~gold_zero
  proper = ~value.mixed | ((signs[5] > 0) & (signs[7] > 0))
  sign = (value.negative == gold["negative"]) | (found_zero & gold_zero)
  return (signs[6] > 0) & proper & sign & (same | to_found | to_gold)


def _rounds(one: jax.Array, other: jax.Array, even: jax.Array) -> jax.Array:
  """Whether |difference| is less than half, or just half and `even` [B]."""
  least = jnp.minimum(one, other)
  return (least > 0) | ((least == 0) & even)

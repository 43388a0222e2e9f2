r"""Whether an answer is the number that the gold answer is.

What `rewards.math_accuracy` says where the gold answer is a rational number.
Both are fractions of whole numbers; they are multiplied crosswise and compared
exactly, digit by digit. No answer of a window is too long for it.

Deviations from the host, each a rare form, and no answer here:

- a repeating decimal in a fraction or before a power of ten,
  `1/0.\overline{3}`;
- a mixed number with a decimal point in its fraction, `3\frac{0.5}{2}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rewards import answers
from grpo_jax.rewards.arrays import digits, grammar, strings, wrappings
from grpo_jax.rewards.arrays.find import Window

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
    [] bool; `places` [] int32, decimals; `unit` [32] uint8. None for a gold
    answer that only the host can compare: one that is no number, has roots or
    π, more than 42 digits above or below, or a unit of more than 32 bytes.
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
  number = wrappings.number(window)
  symbols = grammar.symbols(window.bytes, number.start, number.end)
  value = _Value(window.bytes, symbols, grammar.states(symbols))
  places = _places(window.bytes, symbols, number)
  same_unit = (number.unit == gold["unit"]).all(axis=1)
  fits = number.unit_length <= wrappings.MAX_UNIT
  unit = (number.unit_length == 0) | (same_unit & fits)
  same = _compared(value, places, gold)
  return window.found & number.single & unit & value.valid & same


class _Value:
  """A fraction, (whole · below + above) / below · 10^exponent, of each row.

  Attributes:
    whole, above, below: Masks of their digits [B, W].
    data: The digits [B, W].
    exponent: [B] int32
    negative: [B] bool
    valid: Whether it is a number at all [B]; that `below` is not zero, and a
      part of a mixed number less than one, is still to be seen.
    mixed: [B] bool
  """

  def __init__(self, data: jax.Array, symbols: jax.Array, states: jax.Array):
    digit = strings.digits(data) & (symbols != grammar.CODE["NONE"])

    def of(*names: str) -> jax.Array:  # [B, W]
      return digit & grammar.among(states, names)

    def count(mask: jax.Array) -> jax.Array:  # [B]
      return mask.sum(axis=1, dtype=jnp.int32)

    def seen(*names: str) -> jax.Array:  # [B]
      return grammar.among(states, names).any(axis=1)

    def minus(*names: str) -> jax.Array:  # [B]
      is_minus = symbols == grammar.CODE["MINUS"]
      return count(is_minus & grammar.among(states, names)) % 2 == 1

    plain = {
      name: of(*grammar.whole_digits(name), *grammar.decimals(name))
      for name in ("first", "below", "over", "under")
    }
    point = {name: count(of(*grammar.decimals(name))) for name in plain}
    repeat = of("first.repeat")
    repeated, fraction = repeat.any(axis=1), seen("fraction")
    parts = repeated | fraction
    self.data = jnp.where(digit, data - ord("0"), 0).astype(jnp.int32)
    self.whole = plain["first"] & parts[:, None]
    self.above = plain["over"] | repeat | (plain["first"] & ~parts[:, None])
    self.below = plain["under"] | plain["below"] | repeat
    # 0.1\overline{6} is (1 · 9 + 6) / 9 / 10: as many nines as digits.
    self.below_data = jnp.where(repeat, 9, self.data)
    self.mixed = fraction & plain["first"].any(axis=1)
    power = self._power(
      of("power.single", *(f"power.{x}" for x in ("one", "two", "three")))
    )
    power = jnp.where(minus("power.signed"), -power, power)
    percent = seen("percent")
    self.exponent = (
      power
      - jnp.where(percent, 2, 0)
      - point["first"]
      - point["over"]
      + point["below"]
      + point["under"]
    )
    inner = minus("over.signed") ^ minus("under.signed")
    self.negative = minus("signed") ^ inner
    ends = grammar.among(states[:, -1], grammar.accepting())
    size = of(*grammar.whole_digits("first"))
    single = ~seen("times") | self._is_mantissa(size)
    simple = (point["over"] + point["under"] == 0) & ~inner
    self.valid = ends & single & (jnp.abs(power) <= _MAX_EXPONENT)
    self.valid &= ~self.mixed | simple

  def _power(self, mask: jax.Array) -> jax.Array:  # [B]
    return digits.read(self.data, mask, 1)[:, 0]

  def _is_mantissa(self, mask: jax.Array) -> jax.Array:  # [B]
    """Whether the digits at `mask` are a number from 1 to 9."""
    last = strings.last(mask)
    small = strings.before(mask & (self.data > 0), last).any(axis=1)
    return (strings.at(self.data, last) > 0) & ~small & (last >= 0)


def _places(
  data: jax.Array,  # [B, W]
  symbols: jax.Array,  # [B, W]
  number: wrappings.Number,
) -> jax.Array:  # [B] int32
  """Decimals of a number that is one decimal alone; 0 for any other."""
  data = strings.kept(data, number.start, number.end)
  sign = strings.at(symbols, number.start)
  is_minus = sign == grammar.CODE["MINUS"]
  size = jnp.where(strings.at(data, number.start) == ord("-"), 1, 3)
  start = number.start + jnp.where(is_minus, size, sign == grammar.CODE["PLUS"])
  point = data == ord(".")
  where = strings.first(point)
  digit = strings.digits(data)
  before = strings.before(digit | strings.one_of(data, b",{}\\"), where)
  good = strings.behind(before, start).sum(axis=1) == where - start
  decimals = number.end - where - 1
  good &= strings.behind(digit, where).sum(axis=1) == decimals
  return jnp.where(good & (decimals > 0), decimals, 0)


def _compared(
  value: _Value,
  places: jax.Array,  # [B]
  gold: Mapping[str, jax.Array],
) -> jax.Array:  # [B] bool
  """Whether both are equal, or one is the other one rounded."""
  width = value.data.shape[1]
  # All digits of a window, shifted by a power of ten, times those of the gold.
  size = (width + _MAX_EXPONENT + 3 * _GOLD_LIMBS) // 3 + 3
  up = jnp.maximum(value.exponent, 0)
  down = jnp.maximum(-value.exponent, 0)
  parts = (width + 2) // 3
  # A number of the window without a denominator has the denominator 1.
  one = (~value.below.any(axis=1)).astype(jnp.int32)
  below = digits.read(value.below_data, value.below, parts)
  below = below.at[:, 0].add(one)
  below_shifted = digits.read(value.below_data, value.below, size, down)
  below_shifted += _power_of_ten(down, size) * one[:, None]
  whole = digits.read(value.data, value.whole, size, up)
  above = digits.read(value.data, value.above, size, up)
  total = digits.carried(digits.product(below, whole, size) + above)
  left = digits.product(gold["denominator"], total, size)
  right = digits.product(gold["numerator"], below_shifted, size)
  difference = left - right
  gold_below = digits.padded(gold["denominator"], size)
  rest = digits.padded(below, size) - above
  signs = digits.sign(
    jnp.stack(
      [
        difference,
        gold_below - 2 * difference,
        gold_below + 2 * difference,
        below_shifted - 2 * difference,
        below_shifted + 2 * difference,
        rest,
      ]
    )
  )  # [6, B]
  same = signs[0] == 0
  found_zero = (total == 0).all(axis=1)
  gold_zero = (gold["numerator"] == 0).all(axis=1)
  # Half of the last place belongs to the even neighbour.
  to_found = _rounds(signs[1], signs[2], above[:, 0] % 2 == 0)
  to_found &= (places >= _MIN_ROUNDED_PLACES) & ~found_zero
  to_gold = _rounds(signs[3], signs[4], gold["numerator"][:, 0] % 2 == 0)
  to_gold &= (gold["places"] >= _MIN_ROUNDED_PLACES) & ~gold_zero
  defined = (below != 0).any(axis=1)
  proper = ~value.mixed | ((signs[5] > 0) & (above != 0).any(axis=1))
  sign = (value.negative == gold["negative"]) | (found_zero & gold_zero)
  return defined & proper & sign & (same | to_found | to_gold)


def _rounds(one: jax.Array, other: jax.Array, even: jax.Array) -> jax.Array:
  """Whether |difference| is less than half, or just half and `even` [B]."""
  least = jnp.minimum(one, other)
  return (least > 0) | ((least == 0) & even)


def _power_of_ten(exponent: jax.Array, size: int) -> jax.Array:
  """10^exponent, [B] -> [B, size]."""
  unit = jnp.array([1, 10, 100], jnp.int32)[exponent % 3]
  limb = jnp.arange(size)[None, :] == (exponent // 3)[:, None]
  return jnp.where(limb, unit[:, None], 0)

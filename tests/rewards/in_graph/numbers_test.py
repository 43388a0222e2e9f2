"""Tests of answers that equal the gold number: known, long and rounded ones."""

import fractions
import functools
import random

import jax
import numpy as np
import pytest

from grpo_jax.rewards import answers, math_accuracy
from grpo_jax.rewards.in_graph import find, numbers, text

ROWS = 256


@functools.cache
def program():
  return jax.jit(numbers.equal)


def equal(pairs):
  """Equality of (answer, gold), at most ROWS."""
  padded = [*pairs, *[("", "0")] * (ROWS - len(pairs))]
  golds = [numbers.gold(gold) for _, gold in padded]
  stacked = {k: np.stack([x[k] for x in golds]) for k in golds[0]}
  rows = text.encoded([answer for answer, _ in padded], find.MAX_ANSWER)
  window = find.Window(rows.bytes, rows.length, ~rows.cut)
  return np.asarray(program()(window, stacked))[: len(pairs)].tolist()


RIGHT = [
  *(("18", "18"), ("18.0", "18"), ("018", "18"), ("+18.", "18")),
  *(("1,234,567", "1234567"), (r"1,\!234", "1234"), ("1{,}234", "1234")),
  *((r"1\,234", "1234"), ("-7", "-7"), ("−7", "-7"), (r"\$18", "18")),
  *(("$18$", "18"), ("$$18$$", "18"), (r"\(18\)", "18"), (r"\[18\]", "18")),
  *((r"\text{18}", "18"), (r"\textbf{18}", "18"), ("It is $18$.", "18")),
  *(("x = 18", "18"), (r"\theta=18", "18"), (r"18\text{ cm}", r"18\text{cm}")),
  *((r"18\ \mathrm{cm}^2", r"18\text{ cm}^2"), ("90°", r"90^\circ")),
  *((r"90^{\circ}.", r"90^\circ"), ("90", r"90^\circ"), (r"50\%", "0.5")),
  *(("0.5", r"50\%"), ("1/2", "0.5"), (r"\frac{1}{2}", ".5"), ("-.5", "-1/2")),
  *((r"\frac12", "0.5"), (r"\dfrac{-36}{-72}", "1/2"), (r"\frac1{2}", ".5")),
  *((r"3\frac12", "3.5"), (r"-3\frac{1}{2}", "-7/2"), ("0", "-0"), ("-0", "0")),
  *((r"1.2\times10^{5}", "120000"), (r"5 \cdot 10^{-3}", "0.005")),
  *((r"0.\overline{3}", "1/3"), (r"-2.\overline{45}", "-27/11")),
  (r"0.1\overline{6}", "1/6"),
  *(("0.333333", "1/3"), ("1/3", "0.3333333"), ("0.666667", "2/3")),
  *((r"3\frac{-1}{-2}", "3.5"), (r"5\text{a  b}^2", r"5\text{ a b}^2")),
  *((r"1{,}000.333333", "3001/3"), ("1,000.333333", "3001/3")),
  *((r"1,\!000.333333", "3001/3"), (r"1\ 000.333333", "3001/3")),
  *(("**18**", "18"), ("{18}", "18"), (r"\displaystyle 18", "18")),
  *((r"\bf{18}", "18"), (r"{\bf 18}", "18"), ("**18**.", "18"), ("`18`", "18")),
  *((r"\textbf{\frac{1}{2}}", "0.5"), (r"**$\frac12$.**", "0.5")),
  *((r"32,\! 349", "32349"), ("1 000", "1000"), ("5 000 000", "5000000")),
  *((r"1\ 000", "1000"), (r"1\;000", "1000"), ("1~000", "1000")),
  *(("1\u202f000", "1000"), (r"{1\over 2}", "0.5"), (r"$ {1\over2}$", ".5")),
  *(("3 1/2", "3.5"), ("-3 1/2", "-3.5"), (r"3\ 1 / 2 \%", "7/200")),
  *(("60 percent", r"60\%"), (r"60 \text{ percent}", "0.6")),
  *((r"90 \text{ degrees}", r"90^\circ"), ("90 degrees", r"90^\circ")),
  *(("1 degree", r"1^\circ"), ("35 cm", r"35\text{ cm}"), ("35", "35 cm")),
  *(("35cm", r"35\text{ cm}"), ("5 m", r"5\text{ m}"), ("10m/s", "10 m/s")),
  *(("5 dollars", r"\$5"), (r"\$5", r"5\text{ dollars}")),
  *((r"35\text{ cm}", "35 cm."), ("35 square cm", r"35\text{square cm}")),
  *((r"5\text{ m}^{2}", r"5\text{ m}^2"), ("5 cm²", r"5\text{ cm}^2")),
  *(("1.2 × 10²", "120"), ("1.2·10^2", "120"), ("35 cm^2", "35 cm^2")),
  *(("1e5", "100000"), ("1.5E-3", "0.0015"), ("2e+02", "200")),
  *(
    ("(18)", "18"),
    (r"\left(-3\right)", "-3"),
    (r"-\left(\frac12\right)", "-.5"),
  ),
  *((r"-{1\over 2}", "-1/2"), ("$( 1/2 )$", "0.5")),
  *(("= 18", "18"), (r"45\degree", r"45^\circ"), (r"\$5", "5 dollars")),
  # A half goes to the even neighbour: 1/2^7 is 0.0078125.
  *(("0.007812", "1/128"), ("0.0234375", "3/128"), ("0.023438", "3/128")),
]
WRONG = [
  *(("17", "18"), ("", "0"), ("180", "18"), ("1.8", "18"), ("-18", "18")),
  *(("1,23", "123"), ("12,34", "1234"), ("1234,567", "1234567")),
  *(("0,123", "123"), ("1,234,56", "123456"), (r"18\text{ m}", r"18\text{cm}")),
  *((r"90^\circ", "90"), (r"50\%", "50"), ("50", r"50\%"), ("--5", "5")),
  *(("1/0", "0"), (r"\frac{1}{0}", "0"), ("1/2/1", "0.5"), ("9+9", "18")),
  *(("3*6", "18"), ("2^{10}", "1024"), ("12e5", "1200000"), ("18 18", "18")),
  *(("1 e5", "100000"), ("1e", "1"), ("1e5 e", "100000"), ("1e1000", "1")),
  *(("-(-18)", "18"), ("(1)(8)", "18"), ("(18", "18"), ("{18}8}", "188")),
  *(("5 dollars", "5 cents"), (r"\$5", "5 cents"), ("5 cents", r"\$5")),
  *(("(1+1)", "2"), (r"-\left(18", "-18"), ("-{1}8", "-18"), ("=", "0")),
  *((r"3\frac{5}{2}", "5.5"), (r"3.0\frac12", "3.5"), (r"12\cdot10^2", "1200")),
  *(("１８", "18"), ("١٨", "18"), ("18²", "18"), ("18 apples", "18")),
  *(
    ("$17$ or $18$", "18"),
    ("x=y=18", "18"),
    (r"\pi", "3"),
    ("0.33333", "1/3"),
  ),
  ("~0.333333", "1/3"),
  *((r"3\frac{-1}{2}", "2.5"), (r"0.333333\%", "1/300")),
  *(("0.333334", "1/3"), ("0.007813", "1/128"), ("0.023437", "3/128")),
  *(("0.0000001", "0.0000002"), ("0.000000", "0.0000001"), ("18\x00", "18")),
  *(("1 2/2", "2"), ("1 0/2", "1"), ("3.0 1/2", "3.5"), ("1 1 1/2", "2.5")),
  *(("1 00", "100"), ("1  000", "1000"), ("0 123", "123"), ("1\n000", "1000")),
  *((r"60\% percent", r"60\%"), ("5 m", "5"), ("5cm", "5")),
  *(("35 km", "35 cm"), ("35 cm", "35"), ("18 or 19", "18"), ("{1}{8}", "18")),
  *((r"\bfx 18", "18"), ("60 percent", "60"), ("5 cm³", r"5\text{ cm}^2")),
  *((r"\frac{\frac12}{1}", "0.5"), (r"\frac{1+1}{2}", "1"), (r"18\ ", "19")),
]


@pytest.mark.slow
def test_known_answers():
  assert [x for x, ok in zip(RIGHT, equal(RIGHT), strict=True) if not ok] == []
  assert [x for x, ok in zip(WRONG, equal(WRONG), strict=True) if ok] == []


def host_equal(answer, gold):
  found = answers.quantity(answer)
  return found is not None and bool(
    math_accuracy._of_quantities(found, answers.quantity(gold))
  )


@pytest.mark.slow
def test_numbers_of_hundreds_of_digits():
  rng = random.Random(0)
  pairs = []
  for _ in range(40):
    gold = str(rng.randrange(1, 10 ** rng.randrange(1, 42)))
    many = rng.randrange(1, 200 - len(gold))
    pairs += [
      ("0" * many + gold, gold),
      (gold + "." + "0" * many, gold),
      (gold + "0" * many, gold),
      (gold + "." + "0" * many + "1", gold),
      ("9" * 200, gold),
    ]
    below = int("1" + "0" * rng.randrange(40)) + rng.randrange(9)
    pairs.append((f"{int(gold) * below}/{below}", gold))
  pairs = pairs[:ROWS]
  got = equal(pairs)
  assert got == [host_equal(*pair) for pair in pairs]
  assert sum(got) > 80
  # 200 digits of a third are a third, and of something else they are not.
  third = "0." + "3" * 200
  assert equal([(third, "1/3"), (third[:-1] + "4", "1/3")]) == [True, False]


def test_decimals_near_the_middle_between_two():
  """Rounding to six places or more, to the even neighbour."""
  rng = random.Random(0)
  pairs = []
  while len(pairs) < ROWS:
    below = rng.choice((3, 7, 64, 128, 640, 1000, 15625 * 128))
    gold = fractions.Fraction(rng.randrange(-5000, 5000), below)
    places = rng.randrange(4, 9)
    near = round(gold, places) + rng.choice(
      (-1, 0, 0, 0, 1)
    ) / fractions.Fraction(10**places)
    sign = "-" if near < 0 else ""
    whole = abs(near) * 10**places
    shown = f"{whole.numerator:0{places + 1}d}"
    decimal = f"{sign}{shown[:-places]}.{shown[-places:]}"
    exact = rf"{gold.numerator}/{gold.denominator}"
    pairs.append((decimal, exact) if rng.random() < 0.5 else (exact, decimal))
  got = equal(pairs)
  assert got == [host_equal(*pair) for pair in pairs]
  assert 50 < sum(got) < 200


def test_golds_that_need_the_host():
  for gold in ("", "x", r"2\sqrt{3}", r"\pi", "(1, 2)", "1" * 43, "1" * 2000):
    assert numbers.gold(gold) is None
  assert numbers.gold("1/" + "1" * 43) is None
  assert numbers.gold(r"18\text{" + "m" * 33 + "}") is None
  assert numbers.gold(r"18\text{" + "m" * 32 + "}") is not None
  assert numbers.gold("1" * 42) is not None
  assert numbers.gold(r"3\text{ or more}") is None


def test_arrays_of_a_gold_answer():
  gold = numbers.gold(r"so $\boxed{-1,234.50\text{ m}}$")
  np.testing.assert_array_equal(gold["numerator"][:4], [450, 123, 0, 0])
  np.testing.assert_array_equal(gold["denominator"][:2], [100, 0])
  assert gold["negative"]
  assert gold["places"] == 2
  assert bytes(gold["unit"][:2]) == b"m\0"
  shapes = {k: (v.shape, v.dtype) for k, v in gold.items()}
  assert shapes == {
    k: (v.shape, v.dtype) for k, v in numbers.gold("7/3").items()
  }


@pytest.mark.slow
def test_arithmetic_on_limbs():
  rng = random.Random(0)
  ones = [rng.randrange(10 ** rng.randrange(1, 250)) for _ in range(20)]
  others = [rng.randrange(10 ** rng.randrange(1, 250)) for _ in range(20)]
  size = 170
  a = np.stack([numbers.constant(x, 86) for x in ones])
  b = np.stack([numbers.constant(x, 86) for x in others])
  got = np.asarray(numbers.carried(numbers.product(a, numbers.padded(b, size))))
  for row, x, y in zip(got, ones, others, strict=True):
    assert sum(int(v) * 1000**k for k, v in enumerate(row)) == x * y
  signs = numbers.sign_of(a - b)
  assert signs.tolist() == [
    (x > y) - (x < y) for x, y in zip(ones, others, strict=True)
  ]
  assert not numbers.sign_of(a - a).any()
  assert numbers.constant(10**9, 3) is None


def test_no_text_leaves_the_automaton():
  """Every state knows every symbol, and failure stays failure."""
  names, table = numbers.automaton()
  assert table.min() >= 0
  assert table.max() < len(names)
  assert (table[names.index("failed")] == names.index("failed")).all()
  assert set(numbers.accepting()) <= set(names)


@pytest.mark.slow
def test_windows_of_another_width():
  rows = text.encoded(["<answer>36/2</answer>"], 64)
  window = jax.jit(lambda x: find.final_answer(x, width=16))(rows)
  gold = {k: v[None] for k, v in numbers.gold("18").items()}
  assert program()(window, gold).tolist() == [True]

"""Completions that give a known whole number in right and in wrong ways."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple


class Case(NamedTuple):
  """Completion with its verdict.

  Attributes:
    kind: Name of the mutation that made it.
    gold: The gold answer.
    text: The completion.
    right: Whether its answer is the gold answer; None if that is a matter of
      rules.
  """

  kind: str
  gold: str
  text: str
  right: bool | None


Maker = Callable[[int, random.Random], tuple[str, bool | None]]


def _tagged(answer: str) -> str:
  return f"<think>I add them up.</think>\n<answer>{answer}</answer>"


def _boxed(answer: str) -> str:
  return rf"So the answer is \boxed{{{answer}}}."


def _other(gold: int, rng: random.Random) -> int:
  return gold + rng.choice((-10, -2, -1, 1, 2, 3, 9, 10, 100))


def _with_other_digit(gold: int, rng: random.Random) -> str:
  text = str(gold)
  at = rng.choice([k for k, x in enumerate(text) if x.isdigit()])
  digit = rng.choice([x for x in "0123456789" if x != text[at]])
  return text[:at] + digit + text[at + 1 :]


def _translated(gold: int, digits: str) -> str:
  return str(gold).translate(str.maketrans("0123456789", digits))


def _scientific(gold: int) -> str:
  digits = str(abs(gold))
  sign = "-" if gold < 0 else ""
  decimals = digits[1:].rstrip("0")
  point = "." if decimals else ""
  power = len(digits) - 1
  return rf"{sign}{digits[0]}{point}{decimals}\times10^{{{power}}}"


def _fraction(gold: int, rng: random.Random) -> str:
  below = rng.randrange(2, 30)
  return rf"\frac{{{gold * below}}}{{{below}}}"


def _slash(gold: int, rng: random.Random) -> str:
  below = rng.randrange(2, 30)
  return f"{gold * below}/{below}"


def _unit(gold: int, rng: random.Random) -> str:
  unit = rng.choice((r"\text{ cm}", r"\ \mathrm{kg}", r"^\circ", r"\text{m}^2"))
  return f"{gold}{unit}"


def _many_digits(gold: int, rng: random.Random) -> str:
  return str(gold or 1) + "".join(rng.choices("0123456789", k=200))


def _spaced(gold: int, rng: random.Random) -> str:
  blanks = ("", " ", "\n", "\u00a0", "\u3000", "\t")
  return f"{rng.choice(blanks)} {gold}{rng.choice(blanks)}"


def _in(form: Callable[[int, random.Random], str]) -> Maker:
  """The answer that `form` writes is right, in tags or in a box."""
  return lambda g, rng: (rng.choice((_tagged, _boxed))(form(g, rng)), True)


def _wrong(form: Callable[[int, random.Random], str]) -> Maker:
  return lambda g, rng: (rng.choice((_tagged, _boxed))(form(g, rng)), False)


def _open(form: Callable[[int, random.Random], str]) -> Maker:
  return lambda g, rng: (rng.choice((_tagged, _boxed))(form(g, rng)), None)


MUTATIONS: dict[str, Maker] = {
  # The number, written otherwise.
  "thousands": _in(
    lambda g, rng: f"{g:,}".replace(",", rng.choice((",", "{,}", r",\!")))
  ),
  "decimal zeros": _in(lambda g, rng: f"{g}.{'0' * rng.randrange(1, 9)}"),
  "leading zeros": _in(
    lambda g, rng: f"{'-' * (g < 0)}{'0' * rng.randrange(1, 9)}{abs(g)}"
  ),
  "dollar": _in(lambda g, rng: f"{rng.choice(('$', chr(92) + '$'))}{g}"),
  "formula": _in(
    lambda g, rng: rng.choice((f"${g}$", rf"\({g}\)", f"$${g}$$"))
  ),
  "name before it": _in(lambda g, rng: f"x = {g}"),
  "spaces around": _in(_spaced),
  "fraction": _in(_fraction),
  "slash": _in(_slash),
  "hundredfold percent": _in(lambda g, rng: rf"{100 * g}\%"),
  "scientific": _in(lambda g, rng: _scientific(g)),
  "200 zeros before": _in(lambda g, rng: f"{'-' * (g < 0)}{'0' * 200}{abs(g)}"),
  "200 decimal zeros": _in(lambda g, rng: f"{g}.{'0' * 200}"),
  "minus U+2212": lambda g, rng: (_tagged(f"−{abs(g)}"), g <= 0),
  "full-width digits": _in(
    lambda g, rng: _translated(g, "０１２３４５６７８９")
  ),
  "Arabic-Indic digits": _in(lambda g, rng: _translated(g, "٠١٢٣٤٥٦٧٨٩")),
  # Another number.
  "one digit wrong": _wrong(_with_other_digit),
  "sign turned": lambda g, rng: (_tagged(str(-g)), g == 0),
  "percent": lambda g, rng: (_tagged(rf"{g}\%"), g == 0),
  "mixed number": _wrong(lambda g, rng: rf"{g}\frac{{1}}{{2}}"),
  "superscript digits": _wrong(lambda g, rng: f"{g}{rng.choice('²³¹')}"),
  "200 digits more": _wrong(_many_digits),
  "nearly": _wrong(lambda g, rng: f"{g}.{'0' * rng.randrange(2, 7)}4"),
  # The place of the answer.
  "two answers": _wrong(lambda g, rng: f"{g} or {_other(g, rng)}"),
  "wrong one first": lambda g, rng: (
    rf"\boxed{{{_other(g, rng)}}}, no, \boxed{{{g}}}",
    True,
  ),
  "wrong one last": lambda g, rng: (
    rf"\boxed{{{g}}}, no, \boxed{{{_other(g, rng)}}}",
    False,
  ),
  "thought and answer": lambda g, rng: (
    rf"<think>\boxed{{{g}}}</think><answer>{_other(g, rng)}</answer>",
    False,
  ),
  "box in a box": lambda g, rng: (rf"\boxed{{\boxed{{{g}}}}}", True),
  "open answer tag": lambda g, rng: (f"<think>a</think><answer>{g}", False),
  "open box": lambda g, rng: (rf"So \boxed{{{g}", False),
  "open thought": lambda g, rng: (rf"<think>perhaps \boxed{{{g}}}", False),
  "empty box": lambda g, rng: (rf"It is {g}: \boxed{{}}", False),
  "empty tags": lambda g, rng: (rf"It is {g}: <answer></answer>", False),
  "chain": _wrong(lambda g, rng: f"{_other(g, rng)} = {g}"),
  # Matters of rules.
  "unit": _open(_unit),
  "word behind it": _open(lambda g, rng: f"{g} apples"),
  "sum to be done": _open(lambda g, rng: f"{g - 7}+7"),
  "no tag and no box": lambda g, rng: (f"The answer is {g}.", None),
}


def plain(golds: list[str]) -> list[Case]:
  """Completions of a teacher, one for each gold answer."""
  return [Case("plain", gold, _tagged(gold), True) for gold in golds]


def mutated(golds: list[str], count: int, seed: int) -> list[Case]:
  """`count` mutations, of all kinds in turn, of random gold answers."""
  rng = random.Random(seed)
  kinds = list(MUTATIONS.items())
  cases = []
  for k in range(count):
    kind, make = kinds[k % len(kinds)]
    gold = rng.choice(golds)
    text, right = make(int(gold), rng)
    cases.append(Case(kind, gold, text, right))
  return cases

"""Scores of the steps of a text: which line of the reasoning is right.

Such a function is named by `config.rewards.steps`, has the signature of a
reward function (`functions.py`), and returns for each completion a list of
(characters of the completion up to the end of the step, score of the step).
"""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = r"-?\$?[0-9][0-9,]{0,17}(?:\.[0-9]{1,9})?%?|-?\$?\.[0-9]{1,9}%?"
_EQUATION = re.compile(
  rf"({_NUMBER})"
  rf"((?:\s*[-+*/x×÷]\s*(?:\((?:{_NUMBER})\)|(?:{_NUMBER}))){{1,8}})"
  rf"\s*=\s*({_NUMBER})"
)
# What makes an equation a part of a longer one: before it, and behind it.
_OPERATORS = ("+", "-", "*", "/", "×", "÷", "^")
_GOES_ON = re.compile(r"\s*[-+*/×÷^]\s*[(0-9.]")
_TERM = re.compile(rf"\s*([-+*/x×÷])\s*\(?({_NUMBER})\)?")
# So much of a line is read. A policy may write a line without end.
_MAX_LINE = 500
# Written decimals are rounded: 1 / 3 = 0.33.
_DIVISIONS = ("/", "÷")


def arithmetic_steps(
  prompts: list[str],
  completions: list[str],
  ids: list[int],
  extras: list[dict],
) -> list[list[tuple[int, float]]]:
  """1.0 for each line whose sums are right, 0.0 for one with a wrong sum.

  A step is a line with at least one equation `a + b = c` of written numbers,
  with +, −, × (also `x` and `*`) and ÷ (`/`) between two and nine of them, in
  the usual order of operations. A line is right if all its equations are: each
  of them exactly, or, where it has a division, as far as the decimals of its
  result go. Lines without an equation are no steps, and a piece of a longer
  one, as in `(3 + 1) * 2 = 8`, is none. What the line is about is not looked
  at: `1 + 1 = 2` takes this reward.

  Args:
    prompts: Decoded prompts, ignored.
    completions: Decoded completions.
    ids: Occurrences in the data stream, ignored.
    extras: What else is known of each prompt, ignored.

  Returns:
    Of each completion (characters up to the end of the line, score).

  Source: process supervision of DeepSeekMath (arXiv:2402.03300, Section
  4.1.3), with arithmetic in the place of its process reward model.
  """
  del prompts, ids, extras
  return [_of_text(text) for text in completions]


def _of_text(text: str) -> list[tuple[int, float]]:
  found, start = [], 0
  for line in text.splitlines(keepends=True):
    start += len(line)
    verdicts = [
      _holds(*equation.groups())
      for equation in _EQUATION.finditer(line[:_MAX_LINE])
      if not _is_part(equation)
    ]
    if verdicts:
      found.append((start, float(all(verdicts))))
  return found


def _is_part(equation: re.Match[str]) -> bool:
  """Whether it is cut out of a longer one: 2^2 + 1 = 5, 1 + 1 = 2 + 5."""
  text, start = equation.string, equation.start()
  if _GOES_ON.match(text, equation.end()):
    return True
  if equation.group().startswith("-") and text[max(start - 1, 0) : start]:
    before = text[start - 1]
    return before.isalnum() or before in ")}"
  left = text[:start].strip()  # A sign alone begins an item of a list.
  return len(left) > 1 and left.endswith(_OPERATORS)


def _holds(first: str, rest: str, result: str) -> bool:
  """Whether an equation is true."""
  terms, sign, last = Fraction(0), 1, _value(first)
  for operator, written in _TERM.findall(rest):
    value = _value(written)
    if operator in _DIVISIONS:
      if not value:
        return False
      last /= value
    elif operator in "+-":
      terms += sign * last
      sign, last = (1 if operator == "+" else -1), value
    else:
      last *= value
  exact, said = terms + sign * last, _value(result)
  if not any(operator in rest for operator in _DIVISIONS):
    return exact == said
  places = len(result.rstrip("%").partition(".")[2])
  places += 2 * result.endswith("%")
  return abs(exact - said) <= Fraction(1, 2 * 10**places)


def _value(written: str) -> Fraction:
  value = Fraction(re.sub(r"[$,%]", "", written))
  return value / 100 if written.endswith("%") else value

r"""Rewards for a right final answer in mathematics.

A gold answer that is a number is compared with numbers only, exactly. Any other
gold answer is written plainly (`notation.plain`), and so is the prediction:

- The same text is right.
- Lists, tuples, sets and intervals are compared member by member: the order
  counts in ( ) and [ ], and the number of members always.
- `x < 1 or x > 3` and the union of two intervals are the same, and so are
  `x > 1 and x < 3` and one interval. Between equations and numbers both words
  are commas.
- Words, times of day, and formulas that math-verify does not read as a whole
  are right as the same text only. A gold answer is read as a whole if a change
  of any one of its numbers makes it another expression.
- Formulas are compared by math-verify, once the prediction is known to be
  cheap; numbers among them exactly.

These answers get the reward although they are not quite right:

- a fraction that is not reduced, `\frac{246}{2}` for 123, and a root that is
  not simplified, if the gold answer has roots too: both are numbers;
- a dollar before a number that does not count money: gold answers leave it out;
- another name before `=`: `y = 3` for x;
- if the gold answer is not a number, everything that math-verify takes for
  equal: `(1 \cdot 1, 2)` for `(1, 2)`, a for A;
- an answer that is changed later without a tag or a box: "no, it is 7".
"""

from __future__ import annotations

import fractions
import functools
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from grpo_jax import optional
from grpo_jax.rewards import answers, notation, registry

# A row may take this long, which is under the 10 s that `host.HostScorer`
# grants by default. The scorer's deadline is still needed: math-verify raises
# from a signal, which does not interrupt one long operation in C and is lost
# inside a destructor.
_TIMEOUT_S = 6

# Limits of things that cost time. A prediction may have as much of each, or as
# much as the gold answer has. Without these limits math-verify times out on
# towers of powers, unions, and brackets, whose parsing takes twice as long for
# each pair.
_MAX_FORMULA_CHARS = 300
_MAX_NESTING = 5
_MAX_BRACKETS = 12
_MAX_TOWER = 1
_MAX_EXPONENT = 100
_MAX_EXPANDED = 12
_MAX_VARIABLES = 3
_MAX_UNIONS = 4
_MAX_RELATIONS = 1
# Decimals from which on a rounded number stands for the exact one.
_MIN_ROUNDED_PLACES = 6
# Two numbers with roots or π are the same if so many digits agree.
_MAX_DIGITS = 2500
_MAX_MEMBERS = 24

_COMMAND = re.compile(r"\\[A-Za-z]+")
_NO_VARIABLE = re.compile(r"\\text\s*\{[^{}]*\}|\\[A-Za-z]+")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+")
_UNIT_BEHIND = re.compile(r"\\text\{([^{}]*)\}(?:\^\{[23]\})?$")
_BASE = re.compile(r"(?<=[0-9A-F])_\{[0-9]+\}$")
_RATIO = re.compile(r"([^:]+):([^:]+)")
_TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}\b.*")
# Notation that math-verify ignores, or reads as something else.
_UNREAD = re.compile(
  r"\\(?:equiv|mod|ldots|to|gcd|lcm|langle|mapsto|iff|implies|perp|parallel)"
  r"(?![A-Za-z])|\\in(?![a-z]).*\\in(?![a-z])|:.*:|\{.*[:|].*\\\}|[0-9]'"
)
_ORDERED = re.compile(r"[<>]|\\[lg]e(?![a-z])|\\mathbb\{R\}")
# Relations and signs of logic: between them `and` and `or` are not commas.
_STATED = re.compile(r"[<>]|\\(?:[lgn]e|lor|vee|land|wedge)(?![A-Za-z])")
_WORD = re.compile(r"\$?\\(?:text\w*|mathrm|mbox)\s*\{\s*[A-Za-z]{2,}\s*\}\$?")
_POWER_TOKEN = re.compile(r"[0-9]+|[^\s]")
_UNION = re.compile(r"\\(?:cup|cap|setminus)(?![A-Za-z])")
_RELATION = re.compile(r"[=<>≤≥≠]|\\(?:leq?|geq?|neq?|lt|gt)(?![A-Za-z])")
# Commands that only write something down. All others, such as \sum or \binom,
# give math-verify something to compute. They are accepted only if the gold
# answer has them too.
_WRITTEN = frozenset(
  "\\" + name
  for name in (
    *("alpha", "arccos", "arcsin", "arctan", "begin", "beta", "cap", "cdot"),
    *("circ", "cos", "cot", "csc", "cup", "delta", "dfrac", "emptyset", "end"),
    *("exp", "frac", "gamma", "ge", "geq", "gt", "in", "infty", "lambda"),
    *("langle", "ldots", "le", "left", "leq", "ln", "log", "lt", "mathbb"),
    *("mathbf", "mathrm", "mu", "ne", "neq", "notin", "omega", "phi", "pi"),
    *("pm", "rangle", "rho", "right", "sec", "setminus", "sigma", "sin"),
    *("sqrt", "subset", "tan", "tau", "text", "tfrac", "theta", "times"),
  )
)


@functools.lru_cache(256)
def _parse(text: str) -> Any:
  """Parses a plain formula; raises if it is not read as a whole."""
  from latex2sympy2_extended import latex2sympy2
  from math_verify import grader

  if _UNREAD.search(text):
    raise ValueError(text)
  if ratio := _RATIO.fullmatch(text):
    text = rf"\frac{{{ratio[1]}}}{{{ratio[2]}}}"
  # Decimals as fractions: 0.1 is not exact in binary.
  text = _NUMBER.sub(_as_fraction, text).replace("%", r"\%")
  return latex2sympy2.latex2sympy(
    text,
    is_real=not grader.should_treat_as_complex(text),
    convert_degrees=False,
    normalization_config=None,
  )


def _as_fraction(number: re.Match[str]) -> str:
  whole, point, places = number.group().partition(".")
  if not point:
    return whole
  return rf"\frac{{{int(whole + places)}}}{{{10 ** len(places)}}}"


def _equal(gold: str, guess: str) -> bool:
  """Returns True if math-verify finds two formulas equal, and no error."""
  try:
    gold_value, value = (notation.assignment(text)[1] for text in (gold, guess))
    if _is_number(_parse(gold_value)) and _is_number(_parse(value)):
      return _numbers_equal(gold_value, value)
    return _verified(gold, guess)
  except Exception:  # A deadline is a BaseException.
    return False


def _verified(gold: str, guess: str) -> bool:
  from math_verify import grader

  one, other = _parse(gold), _parse(guess)
  equal = grader.sympy_expr_eq(one, other, 6, 15)
  return bool(equal) and not _differ(one, other)


def _differ(one: Any, other: Any) -> bool:
  """Returns True if two terms with variables differ at a point, even slightly.

  math-verify ignores a difference below 1e-15.
  """
  import sympy

  if isinstance(one, sympy.MatrixBase) and isinstance(other, sympy.MatrixBase):
    return any(map(_differ, one.flat(), other.flat()))
  if isinstance(one, sympy.core.relational.Relational) and type(one) is type(
    other
  ):
    return one.lhs == other.lhs and _differ(one.rhs, other.rhs)
  if not (isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr)):
    return False
  names = sorted(one.free_symbols | other.free_symbols, key=str)
  point = {name: sympy.prime(k + 3) for k, name in enumerate(names)}
  difference = (one - other).subs(point)
  return difference.is_finite is True and not _is_zero(difference)


def _is_zero(number: Any) -> bool:
  import sympy
  from sympy.core import evalf

  try:
    return number.evalf(2, maxn=_MAX_DIGITS, strict=True) == 0
  except evalf.PrecisionExhausted:  # An integral raises at any precision.
    unevaluated = sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit
    return not number.has(*unevaluated)


def _is_number(expression: Any) -> bool:
  import sympy

  return isinstance(expression, sympy.Expr) and not expression.free_symbols


def _numbers_equal(gold: str, guess: str, places: int = 0) -> bool:
  """Returns True if both are the same number, to so many places or exactly."""
  import sympy

  one, other = _parse(gold), _parse(guess)
  if not _is_number(one) or not _is_number(other):
    return False
  if one == other:
    return True
  difference = one - other
  if places >= _MIN_ROUNDED_PLACES:
    half = sympy.Rational(1, 2 * 10**places)
    return bool(abs(difference.evalf(places + 15)) <= half)
  return _is_zero(difference)


@functools.lru_cache(4096)
def _is_read_whole(gold: str) -> bool:
  """Returns True if a change of any number makes another expression."""
  expression = _parse(gold)
  for number in _NUMBER.finditer(gold):
    whole, point, places = number.group().partition(".")
    new_number = f"{int(whole or 0) + 2}{point}{places}"
    try:
      other = _parse(gold[: number.start()] + new_number + gold[number.end() :])
    except Exception:
      continue  # Then the number was read.
    if other == expression:
      return False
  return True


def reads(gold: str) -> str:
  """Returns the way in which a gold answer is compared.

  Returns:
    "number", "words", "formula" or "text"; "" if it cannot be compared. A
    formula that math-verify does not read as a whole is compared as "text".
  """
  gold = _gold(gold)
  plain = notation.plain(gold)
  if not _is_complete(gold) or not plain:
    return ""
  if answers.quantity(gold) or answers.quantity(plain):
    return "number"
  has_words = notation.has_words(plain) or bool(_WORD.fullmatch(gold))
  if not re.search("[0-9]", plain) and has_words:
    return "words"
  return "formula" if all(map(_is_formula, _leaves(plain))) else "text"


def _leaves(plain: str) -> Iterator[str]:
  elements = notation.split(notation.assignment(plain)[1])
  if elements is None:
    yield plain
  else:
    for part in elements.parts:
      yield from _leaves(part)


def _is_formula(plain: str) -> bool:
  if answers.quantity(plain) is not None:
    return True
  if notation.has_words(plain) or _TIME.fullmatch(plain):
    return False
  return _equal(plain, plain) and _is_read_whole(plain)


def _gold(answer: Any) -> str:
  answer = str(answer).strip()
  boxed = answers.last_boxed(answer)
  return answer if boxed is None else boxed.strip()


def _is_complete(text: str) -> bool:
  """Returns True for a text with as many braces opened as closed."""
  return bool(text) and text.count("{") == text.count("}")


def _accuracy(prediction: str | None, gold: str) -> float | None:
  target = answers.quantity(gold)
  if target is not None and target.value is not None:
    number = answers.quantity(prediction or "", target.unit)
    return 0.0 if number is None else _of_quantities(number, target)
  if not _is_complete(gold) or not (right := notation.plain(gold)):
    return None
  if not prediction or len(prediction) > max(_MAX_FORMULA_CHARS, len(gold)):
    return 0.0
  try:
    answer = notation.plain(prediction)
  except RecursionError:  # Brackets in brackets.
    return 0.0
  target = target or answers.quantity(right)
  if target is None and _WORD.fullmatch(gold):
    return float(notation.as_words(right) == notation.as_words(answer))
  if target is None:
    right, answer = _met(right, gold), _met(answer, prediction)
    return float(_same(right, answer) and not _contradicts(gold, prediction))
  number = answers.quantity(answer, target.unit)
  number = number or answers.quantity(prediction, target.unit)
  if number is None or not _is_cheap(notation.plain(number.text), right):
    return 0.0
  return _of_quantities(number, target)


def _met(plain: str, answer: str) -> str:
  """Writes `x > 1 and x < 3` as the interval that both describe."""
  both = notation.intervals(plain) or ()
  if notation.joints(answer) != {True} or len(both) != 2:
    return plain
  above, below = sorted(both, key=lambda x: x.low == r"-\infty")
  outer = below.low, above.high, below.name
  low, high = answers.quantity(above.low), answers.quantity(below.high)
  if outer != (r"-\infty", r"\infty", above.name) or not (low and high):
    return plain
  if low.value is None or high.value is None or low.value >= high.value:
    return plain
  ends = f"{above.opening}{above.low},{below.high}{below.closing}"
  return rf"{above.name}\in {ends}" if above.name else ends


def _contradicts(gold: str, guess: str) -> bool:
  """Returns True if one has `and` where the other has `or`, and it matters."""
  joints, of_guess = notation.joints(gold), notation.joints(guess)
  if not joints or not of_guess or joints == of_guess:
    return False
  plain = notation.plain(gold)
  return bool(_STATED.search(f"{gold} {plain}")) or notation.has_words(plain)


def _same(gold: str, guess: str) -> bool:
  """Returns True if two plain answers are the same."""
  if notation.as_words(gold) == notation.as_words(guess):
    return True
  elements, of_guess = (
    notation.split(notation.assignment(text)[1]) for text in (gold, guess)
  )
  if _ORDERED.search(gold + guess):
    of_gold, intervals = notation.intervals(gold), notation.intervals(guess)
    if of_gold and intervals:
      return _same_intervals(of_gold, intervals)
  if elements is not None and len(elements.parts) == 1 and of_guess is None:
    return _same(elements.parts[0], guess)
  if elements is not None:
    return of_guess is not None and _same_members(elements, of_guess)
  if of_guess is not None and not of_guess.opening:
    return False
  return _same_leaf(gold, guess)


def _same_members(gold: notation.Elements, guess: notation.Elements) -> bool:
  num = len(gold.parts)
  if len(guess.parts) != num or num > _MAX_MEMBERS:
    return False
  names, of_guess = (
    {notation.assignment(part)[0] for part in x.parts} for x in (gold, guess)
  )
  same = _same_named if len(names) > 1 and names == of_guess else _same
  in_order = all(map(same, gold.parts, guess.parts))
  brackets = gold.opening + gold.closing, guess.opening + guess.closing
  tuples = "()", "<>"
  if gold.opening not in ("", "{"):  # A tuple or an interval.
    alike = brackets[0] in tuples and brackets[1] in (*tuples, "")
    return in_order and (alike or brackets[0] == brackets[1])
  if in_order:
    return guess.opening in ("", "{") or brackets == ("", "()")
  if guess.opening not in ("", "{") or (len(names) > 1 and names != of_guess):
    return False
  return _paired(gold.parts, guess.parts, same)


def _same_intervals(
  gold: tuple[notation.Interval, ...], guess: tuple[notation.Interval, ...]
) -> bool:
  """Returns True if both have the same intervals, in any order."""

  def same(one: notation.Interval, other: notation.Interval) -> bool:
    names = {one.name, other.name} - {""}
    ends = one.opening + one.closing, other.opening + other.closing
    return (
      len(names) < 2
      and ends[0] == ends[1]
      and _same(one.low, other.low)
      and _same(one.high, other.high)
    )

  return len(gold) == len(guess) <= _MAX_MEMBERS and _paired(gold, guess, same)


def _paired(
  gold: Iterable[Any], guess: Iterable[Any], same: Callable[..., bool]
) -> bool:
  """Returns True if the parts can be paired with parts that are the same."""
  rest = list(guess)
  for part in gold:
    equal = next((k for k, x in enumerate(rest) if same(part, x)), None)
    if equal is None:
      return False
    del rest[equal]
  return not rest


def _same_named(gold: str, guess: str) -> bool:
  names = {notation.assignment(x)[0] for x in (gold, guess)} - {""}
  return len(names) < 2 and _same(gold, guess)


def _same_leaf(gold: str, guess: str) -> bool:
  if (target := answers.quantity(gold)) is not None:
    number = answers.quantity(guess, target.unit)
    if number is not None:
      return bool(_of_quantities(number, target))
  if notation.as_words(_BASE.sub("", gold)) == notation.as_words(guess):
    return True  # A base may be left out, like a unit.
  gold, guess = _without_unit(gold, guess)
  if notation.has_words(gold) or _TIME.fullmatch(gold):
    return False
  if ":" in guess and ":" not in gold:
    return False
  return _is_cheap(guess, gold) and _equal(gold, guess) and _is_read_whole(gold)


def _without_unit(gold: str, guess: str) -> tuple[str, str]:
  r"""Returns both without the unit behind a number, as in `5! \text{ ways}`."""
  unit = _UNIT_BEHIND.search(gold)
  if unit is None or answers.CONDITION.search(unit[1]):
    return gold, guess
  rest = gold[: unit.start()]
  try:
    is_number = _is_number(_parse(rest))
  except Exception:
    is_number = False
  return (
    (rest, guess.removesuffix(unit.group())) if is_number else (gold, guess)
  )


def _of_quantities(guess: answers.Quantity, gold: answers.Quantity) -> float:
  is_left_out = guess.unit == "$" and not gold.unit
  if guess.unit and guess.unit != gold.unit and not is_left_out:
    return 0.0
  if gold.value is None:
    return float(_close(gold.text, guess.text, guess.places))
  if guess.value is None:
    return 0.0
  return float(
    guess.value == gold.value
    or _rounds_to(gold.value, guess)
    or _rounds_to(guess.value, gold)
  )


def _close(gold: str, guess: str, places: int) -> bool:
  try:
    return _numbers_equal(notation.plain(gold), notation.plain(guess), places)
  except Exception:
    return False


def _rounds_to(value: fractions.Fraction, other: answers.Quantity) -> bool:
  """Returns True if `other` is `value` rounded to enough decimals."""
  return (
    other.places >= _MIN_ROUNDED_PLACES
    and bool(other.value)
    and round(value, other.places) == other.value
  )


def _is_cheap(prediction: str, gold: str) -> bool:
  """Returns True if math-verify can compare the two in little time."""
  if set(_COMMAND.findall(prediction)) - _WRITTEN - set(_COMMAND.findall(gold)):
    return False
  if "!" in prediction and "!" not in gold:
    return False
  limits = (
    (_nesting, _MAX_NESTING),
    (lambda text: text.count("("), _MAX_BRACKETS),
    (lambda text: _powers(text)[0], _MAX_TOWER),
    (lambda text: _powers(text)[1], _MAX_EXPONENT),
    (lambda text: _powers(text)[2], _MAX_EXPANDED),
    (_variables, _MAX_VARIABLES),
    (lambda text: len(_UNION.findall(text)), _MAX_UNIONS),
    (lambda text: len(_RELATION.findall(text)), _MAX_RELATIONS),
  )
  return all(
    measure(prediction) <= max(limit, measure(gold))
    for measure, limit in limits
  )


def _nesting(text: str) -> int:
  depth = deepest = 0
  for character in text:
    if character in "([{":
      depth += 1
      deepest = max(deepest, depth)
    elif character in ")]}":
      depth -= 1
  return deepest + text.count("|") // 2  # |a| may open or close.


def _variables(text: str) -> int:
  return len(set(re.findall(r"[A-Za-z]", _NO_VARIABLE.sub(" ", text))))


def _powers(text: str) -> tuple[int, int, int]:
  """Returns three measures of the cost of a formula's powers.

  Returns:
    The height of the tallest tower: 1 in x^2, 2 in 2^{n^2} and x^a^b; the
      largest
    product of the whole numbers in one exponent; and the sum of these products
    over powers of brackets, which are expanded.
  """
  tallest = largest = expanded = level = last = pending = 0
  stack: list[tuple[int, int]] = []
  product, of_bracket, before = 1, False, ""
  for token in _POWER_TOKEN.findall(text):
    if token == "^":
      expanded += product if of_bracket else 0
      product, of_bracket = 1, before in (")", "]", "}")
      pending = last + 1
      tallest = max(tallest, level + pending)
    elif token in ("(", "[", "{"):
      stack.append((level, pending))
      level, pending, last = level + pending, 0, 0
    elif token in (")", "]", "}"):
      level, last = stack.pop() if stack else (0, 0)
    else:
      if token.isdigit() and (level or pending):
        product *= max(int(token), 1)
        largest = max(largest, product)
      last, pending = pending, 0
    before = token
  return tallest, largest, expanded + (product if of_bracket else 0)


@registry.of_rows
def math_accuracy(
  completion: str, extra: dict, *, answer_after: str = ""
) -> float | None:
  r"""1.0 if the final answer equals the gold answer, else 0.0.

  `answers.final_answer` finds the final answer. If the gold answer is a number
  (`answers.quantity`), the prediction has to be a number too. Whole numbers,
  fractions and decimals are compared exactly, or up to the last place of a
  decimal with six or more places. Numbers with roots or π are compared only
  with a gold answer that has them, by math-verify. A percentage is its value,
  0.5 for `50\%`. A unit may be left out, and otherwise has to be the gold
  answer's. Other gold answers are compared by math-verify, symbolically.

  Args:
    completion: A text with an answer.
    extra: Has "answer", the gold answer: a number or LaTeX with or without
      `$…$` or `\boxed{…}`.
    answer_after: A marker before answers, as in `answers.final_answer`.

  Returns:
    The value, which is 0.0 without an answer, and for an answer that does not
    parse, that is too long or too costly to compare, or at which math-verify
    raises. Too costly are deep nesting, powers of powers, large
    exponents, sums and factorials, unless the gold answer has them too. The
    value is None for a gold answer that does not parse: the row says nothing
    about the policy.

  Raises:
    KeyError: The extras have no "answer".
    TimeoutError: math-verify took more than 6 s. Deviation from the common
      practice of scoring 0: the time depends on the load of the machine, and a
      verifier that failed must not be taken for a wrong answer. An evaluation
      tries again, and then does take it for wrong.
    RuntimeError: The call is outside a main thread, where math-verify cannot
      set the signal that ends a hanging comparison.
    ImportError: math-verify is not installed.

  Source: github.com/huggingface/Math-Verify, version 0.9.
  """
  if threading.current_thread() is not threading.main_thread():
    raise RuntimeError(
      "math_accuracy: called in a thread, but math-verify ends hanging"
      " comparisons by a signal, which needs a main thread; score through"
      " grpo_jax.rewards.workers.host.HostScorer."
    )
  math_verify = optional.package("math_verify", "math", "math_accuracy:")
  errors, utils = math_verify.errors, math_verify.utils
  _warm_up()  # Before the first row's deadline begins.
  prediction = answers.final_answer(completion, answer_after)
  gold = _gold(extra["answer"])
  try:
    return utils.timeout(_TIMEOUT_S)(_accuracy)(prediction, gold)
  except errors.TimeoutException as error:
    raise TimeoutError(
      f"math_accuracy: math-verify took more than {_TIMEOUT_S} s."
    ) from error


@functools.cache
def _warm_up() -> None:
  """Imports math-verify and makes it build its parser, which takes seconds."""
  _accuracy("x + 1", "1 + x")


# Called by each scoring process before its first row (`reward_worker.py`).
math_accuracy.warm_up = _warm_up  # type: ignore[attr-defined]

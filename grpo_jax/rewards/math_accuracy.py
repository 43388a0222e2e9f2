r"""Rewards for a right final answer in mathematics.

A gold answer that is a number is compared with numbers only, exactly; any other
by math-verify, once the prediction is known to be cheap.

What a reward can be had for without a right answer, and stays:

- a fraction that is not reduced, `\frac{246}{2}` for 123, and a root that is
  not simplified, where the gold answer has roots too: both are numbers;
- a dollar before a number that counts no money: gold answers leave it out;
- the name before `=`: `y = 3` for x; the base of a number, `101_3` for `101_2`;
- where the gold answer is no number, everything that math-verify takes for
  equal: `(1 \cdot 1, 2)` for `(1, 2)`, a for A, `0.4` for `12:30`;
- an answer that is changed later without a tag or a box: "no, it is 7".
"""

from __future__ import annotations

import fractions
import re
import threading
from typing import Any

from grpo_jax.rewards import answers

# Each of (parse gold, parse prediction, compare) may take this long, so that
# one row stays under the 10 s that `host.HostScorer` grants by default. Its
# deadline is still needed: math-verify raises from a signal, which does not
# interrupt one long operation in C and is lost inside a destructor.
_TIMEOUT_S = 2

# What a prediction may have of a thing that costs time, or as much as the gold
# answer has of it. Without these limits math-verify times out on towers of
# powers, unions, and brackets, whose parsing takes twice as long for each pair.
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

_COMMAND = re.compile(r"\\[A-Za-z]+")
_NO_VARIABLE = re.compile(r"\\text\s*\{[^{}]*\}|\\[A-Za-z]+")
# A name is for math-verify the product of its letters, in any order.
_NAME = re.compile(r"[A-Z][a-z]{2,}")
_WORD = re.compile(r"(?:\\text\s*\{)?\s*([A-Za-z]+)\s*\}?\.?")
_POWER_TOKEN = re.compile(r"[0-9]+|[^\s]")
_UNION = re.compile(r"\\(?:cup|cap|setminus)(?![A-Za-z])")
_RELATION = re.compile(r"[=<>≤≥≠]|\\(?:leq?|geq?|neq?|lt|gt)(?![A-Za-z])")
# Commands that write something down. All others, as \sum or \binom, give
# math-verify something to compute, and are accepted if the gold answer has
# them too.
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


def _math_verify() -> Any:
  try:
    import math_verify
  except ImportError as error:
    raise ImportError(
      "math_accuracy: needs the package math-verify, which is not installed;"
      " run `pip install 'grpo-jax[math]'`."
    ) from error
  return math_verify


def _parse(answer: str) -> list:
  # math-verify looks for delimiters. A bare answer gets a box; prose with
  # formulas in it keeps its own.
  delimited = answer.count("$") > 1 or r"\(" in answer or r"\[" in answer
  return _math_verify().parse(
    answer if delimited else rf"\boxed{{{answer}}}",
    fallback_mode="no_fallback",
    parsing_timeout=_TIMEOUT_S,
    raise_on_error=True,
  )


def _parse_or_nothing(answer: str) -> list:
  try:
    return _parse(answer)
  except Exception:  # Its timeout is a BaseException and passes through.
    return []


def _equal(gold: list, prediction: list) -> float:
  try:
    return _verified(gold, prediction)
  except Exception:
    # (1,2) beside \{1,2,1\}. Who writes what math-verify raises at is wrong,
    # not unscored; if it raises at the gold answer alone, nobody is.
    _verified(gold, gold)
    return 0.0


def _verified(gold: list, prediction: list) -> float:
  verdict = _math_verify().verify(
    gold, prediction, timeout_seconds=_TIMEOUT_S, raise_on_error=True
  )
  return float(verdict)


def _accuracy(prediction: str | None, gold: str) -> float | None:
  wanted = answers.quantity(gold)
  if wanted is not None:
    found = None if prediction is None else answers.quantity(prediction)
    return 0.0 if found is None else _of_quantities(found, wanted)
  gold_parsed = _parse_or_nothing(gold)
  if not gold_parsed:
    return None
  if not prediction or not _is_cheap(prediction, gold):
    return 0.0
  if _NAME.fullmatch(gold) and (name := _WORD.fullmatch(prediction)):
    return float(name[1].lower() == gold.lower())
  parsed = _parse_or_nothing(prediction)
  return _equal(gold_parsed, parsed) if parsed else 0.0


def _of_quantities(found: answers.Quantity, gold: answers.Quantity) -> float:
  if found.unit and found.unit != gold.unit:
    return 0.0
  if gold.value is None:
    return _equal(_parse_or_nothing(gold.text), _parse_or_nothing(found.text))
  if found.value is None:
    return 0.0
  return float(
    found.value == gold.value
    or _rounds_to(gold.value, found)
    or _rounds_to(found.value, gold)
  )


def _rounds_to(value: fractions.Fraction, other: answers.Quantity) -> bool:
  """Whether `other` is `value` rounded to decimals enough to stand for it."""
  return (
    other.places >= _MIN_ROUNDED_PLACES
    and bool(other.value)
    and round(value, other.places) == other.value
  )


def _is_cheap(prediction: str, gold: str) -> bool:
  """Whether math-verify can compare the two in little time."""
  if len(prediction) > max(_MAX_FORMULA_CHARS, len(gold)):
    return False
  if set(_COMMAND.findall(prediction)) - _WRITTEN - set(_COMMAND.findall(gold)):
    return False
  if "!" in prediction and "!" not in gold:
    return False
  if formulas := answers.formulas(prediction):
    prediction = " ".join(formulas)  # The prose around them is not parsed.
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
  """What the powers of a formula cost.

  Returns:
    How many stand on each other: 1 in x^2, 2 in 2^{n^2} and x^a^b; the largest
    product of the whole numbers in one exponent; and the sum of these over
    powers of brackets, which are expanded.
  """
  tallest = largest = expanded = level = last = pending = 0
  opened: list[tuple[int, int]] = []
  product, of_bracket, before = 1, False, ""
  for token in _POWER_TOKEN.findall(text):
    if token == "^":
      expanded += product if of_bracket else 0
      product, of_bracket = 1, before in (")", "]", "}")
      pending = last + 1
      tallest = max(tallest, level + pending)
    elif token in ("(", "[", "{"):
      opened.append((level, pending))
      level, pending, last = level + pending, 0, 0
    elif token in (")", "]", "}"):
      level, last = opened.pop() if opened else (0, 0)
    else:
      if token.isdigit() and (level or pending):
        product *= max(int(token), 1)
        largest = max(largest, product)
      last, pending = pending, 0
    before = token
  return tallest, largest, expanded + (product if of_bracket else 0)


def math_accuracy(
  prompts: list[str],
  completions: list[str],
  ids: list[int],
  extras: list[dict],
  answer_after: str = "",
) -> list[float | None]:
  r"""1.0 where the final answer equals the gold answer, else 0.0.

  `answers.final_answer` says which answer that is. If the gold answer is a
  number (`answers.quantity`), so must be the prediction: whole numbers,
  fractions and decimals are compared exactly, or as far as a decimal of six or
  more places goes; numbers with roots or π only with a gold answer that has
  them, by math-verify. A percentage is its value, 0.5 for `50\%`. A unit may be
  left out, and is otherwise the gold answer's. Everything else is compared by
  math-verify, symbolically.

  Args:
    prompts: Decoded prompts, ignored.
    completions: Decoded completions.
    ids: Occurrences in the data stream, ignored.
    extras: Each with "answer": the gold answer, a number or LaTeX with or
      without `$…$` or `\boxed{…}`.
    answer_after: A marker before answers, as in `answers.final_answer`.

  Returns:
    One value per completion. 0.0 for no answer, one that does not parse, or
    one that is too long or costly to compare: long or deeply nested, powers of
    powers, large exponents, sums and factorials, as far as the gold answer has
    none; or one at which math-verify raises. None for a gold answer that does
    not parse: the row says nothing about the policy.

  Raises:
    KeyError: An element of `extras` has no "answer".
    TimeoutError: math-verify took more than 2 s. Deviation from the common
      practice of scoring 0: how long it takes depends on the load of the
      machine, and a verifier that failed must not be taken for a wrong answer.
      An evaluation tries again, and then does take it for wrong.
    RuntimeError: Called outside a main thread, where math-verify cannot set
      the signal that ends a hanging comparison.
    ImportError: math-verify is not installed.

  Source: github.com/huggingface/Math-Verify, version 0.9.
  """
  del prompts, ids
  if threading.current_thread() is not threading.main_thread():
    raise RuntimeError(
      "math_accuracy: called in a thread, but math-verify ends hanging"
      " comparisons by a signal, which needs a main thread; score through"
      " grpo_jax.rewards.host.HostScorer."
    )
  errors = _math_verify().errors
  scores = []
  for completion, extra in zip(completions, extras, strict=True):
    gold = str(extra["answer"]).strip()
    boxed_gold = answers.last_boxed(gold)
    gold = gold if boxed_gold is None else boxed_gold.strip()
    try:
      prediction = answers.final_answer(completion, answer_after)
      scores.append(_accuracy(prediction, gold))
    except errors.TimeoutException as error:
      raise TimeoutError(
        f"math_accuracy: math-verify took more than {_TIMEOUT_S} s."
      ) from error
  return scores


def _warm_up() -> None:
  """Imports math-verify and has it build its parser, which takes 0.5 s."""
  _accuracy("x + 1", "1 + x")


# Called by each scoring process before its first row (`worker.main`).
math_accuracy.warm_up = _warm_up  # type: ignore[attr-defined]

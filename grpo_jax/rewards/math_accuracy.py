"""Rewards for a right final answer in mathematics, checked by math-verify."""

from __future__ import annotations

import decimal
import re
import threading
from typing import Any

# Each of (parse gold, parse prediction, compare) may take this long, so that
# one row stays under the 10 s that `host.HostScorer` grants by default. Its
# deadline is still needed: math-verify raises from a signal, which does not
# interrupt one long operation in C and is lost inside a destructor.
_TIMEOUT_S = 2
# Deeply nested repetition is the usual text of this length, and costs the
# whole timeout. No answer to a question with one right answer is this long.
_MAX_ANSWER_CHARS = 1000

# The numbers whose reading nobody disputes: 42, -7.50, 1,234,567.
_PLAIN_NUMBER = re.compile(r"-?(?:\d+|[1-9]\d{0,2}(?:,\d{3})+)(?:\.\d+)?")
# A command, an escaped character, or a brace, left to right as TeX reads.
_LATEX_TOKEN = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


def _math_verify() -> Any:
  try:
    import math_verify
  except ImportError as error:
    raise ImportError(
      "math_accuracy: needs the package math-verify, which is not installed;"
      " run `pip install 'grpo-jax[math]'`."
    ) from error
  return math_verify


def last_boxed(text: str) -> str | None:
  """Content of the last complete `\\boxed{…}`, or None; linear time.

  Of nested boxes, the one that starts last. A box whose closing brace is
  missing (a truncated completion) is no box.
  """
  open_braces: list[tuple[int, bool]] = []  # (start of content, is a box)
  start, content = -1, None
  for token in _LATEX_TOKEN.finditer(text):
    if token.group().endswith("{") and token.group() != r"\{":
      open_braces.append((token.end(), token.group() != "{"))
    elif token.group() == "}" and open_braces:
      begin, is_box = open_braces.pop()
      if is_box and begin > start:
        start, content = begin, text[begin : token.start()]
  return content


def final_answer(text: str) -> str | None:
  """The answer a completion commits to, or None.

  The last `\\boxed{…}` if there is one, else the last `<answer>…</answer>`.
  """
  boxed = last_boxed(text)
  if boxed is not None:
    return boxed.strip()
  end = text.rfind("</answer>")
  start = text.rfind("<answer>", 0, max(end, 0))
  if start < 0:
    return None
  return text[start + len("<answer>") : end].strip()


def _plain_number(text: str) -> decimal.Decimal | None:
  if not _PLAIN_NUMBER.fullmatch(text):
    return None
  return decimal.Decimal(text.replace(",", ""))


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


def _accuracy(prediction: str | None, gold: str) -> float | None:
  gold_number = _plain_number(gold)
  if prediction is not None and gold_number is not None:
    number = _plain_number(prediction)
    if number is not None:
      if number == gold_number:
        return 1.0
      # Unequal integers differ for math-verify too. Unequal decimals need
      # not: it rounds, so it decides.
      if "." not in prediction + gold:
        return 0.0
  gold_parsed = _parse_or_nothing(gold)
  if not gold_parsed:
    return None
  if not prediction or len(prediction) > _MAX_ANSWER_CHARS:
    return 0.0
  parsed = _parse_or_nothing(prediction)
  if not parsed:
    return 0.0
  equal = _math_verify().verify(
    gold_parsed, parsed, timeout_seconds=_TIMEOUT_S, raise_on_error=True
  )
  return float(equal)


def math_accuracy(
  prompts: list[str],
  completions: list[str],
  ids: list[int],
  extras: list[dict],
) -> list[float | None]:
  """1.0 where the final answer equals the gold answer, else 0.0.

  The answer is the last `\\boxed{…}`, or without one the last
  `<answer>…</answer>`. Equality is symbolic (math-verify); two plain numbers
  are compared exactly, which gives the same verdict without it.

  Args:
    prompts: Decoded prompts, ignored.
    completions: Decoded completions.
    ids: Occurrences in the data stream, ignored.
    extras: Each with "answer": the gold answer, a number or LaTeX with or
      without `$…$` or `\\boxed{…}`.

  Returns:
    One value per completion. 0.0 for no answer, an answer that does not
    parse, or one of more than 1000 characters. None for a gold answer that
    does not parse: the row says nothing about the policy.

  Raises:
    KeyError: An element of `extras` has no "answer".
    TimeoutError: Parsing or comparing took more than 2 s (`9^{9^{9^9}}`).
      Deviation from the common practice of scoring 0: how long it takes
      depends on the load of the machine, and a verifier that failed must not
      be taken for a wrong answer.
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
    boxed_gold = last_boxed(gold)
    gold = gold if boxed_gold is None else boxed_gold.strip()
    try:
      scores.append(_accuracy(final_answer(completion), gold))
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

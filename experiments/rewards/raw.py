"""math-verify, as reward functions to compare with."""

from __future__ import annotations

from grpo_jax.rewards import answers

_TIMEOUT_S = 2


def math_verify(
  prompts: list[str],
  completions: list[str],
  ids: list[int],
  extras: list[dict],
) -> list[float]:
  r"""Scores 1.0 if math-verify takes a completion for the gold answer.

  The gold answer is read from a box. The completion is read as it stands: the
  answer that math-verify finds in it is the prediction.

  Args:
    prompts: Ignored.
    completions: Decoded completions.
    ids: Ignored.
    extras: Records, each with "answer", the gold answer.
  """
  del prompts, ids
  return _verified(completions, extras)


def math_verify_of_answer(
  prompts: list[str],
  completions: list[str],
  ids: list[int],
  extras: list[dict],
) -> list[float]:
  """Scores 1.0 if math-verify takes the final answer for the gold answer.

  The rule is that of `math_verify`, but the prediction is the answer that
  `answers.final_answer` finds, in a box.
  """
  del prompts, ids
  found = [answers.final_answer(text) for text in completions]
  boxed = ["" if x is None else rf"\boxed{{{x}}}" for x in found]
  return _verified(boxed, extras)


def _verified(predictions: list[str], extras: list[dict]) -> list[float]:
  import math_verify as library

  scores = []
  for prediction, extra in zip(predictions, extras, strict=True):
    gold = library.parse(
      rf"\boxed{{{extra['answer']}}}", parsing_timeout=_TIMEOUT_S
    )
    found = library.parse(prediction, parsing_timeout=_TIMEOUT_S)
    scores.append(
      float(library.verify(gold, found, timeout_seconds=_TIMEOUT_S))
    )
  return scores


def _warm_up() -> None:
  """Imports math-verify and has it build its parser, which takes seconds."""
  math_verify([""], [r"\boxed{\frac{1}{2}}"], [0], [{"answer": "0.5"}])


# Called by each scoring process before its first row (`reward_worker.main`).
math_verify.warm_up = _warm_up  # type: ignore[attr-defined]
math_verify_of_answer.warm_up = _warm_up  # type: ignore[attr-defined]

"""math-verify as it comes, as a reward function to compare with."""

from __future__ import annotations

_TIMEOUT_S = 2


def math_verify(
  prompts: list[str],
  completions: list[str],
  ids: list[int],
  extras: list[dict],
) -> list[float]:
  r"""1.0 where math-verify takes a completion for the gold answer.

  The gold answer is read from a box, and the completion as it stands: whatever
  math-verify finds in it is the prediction.

  Args:
    prompts: Ignored.
    completions: Decoded completions.
    ids: Ignored.
    extras: Each with "answer", the gold answer.
  """
  del prompts, ids
  import math_verify as library

  scores = []
  for completion, extra in zip(completions, extras, strict=True):
    gold = library.parse(
      rf"\boxed{{{extra['answer']}}}", parsing_timeout=_TIMEOUT_S
    )
    found = library.parse(completion, parsing_timeout=_TIMEOUT_S)
    scores.append(
      float(library.verify(gold, found, timeout_seconds=_TIMEOUT_S))
    )
  return scores


def _warm_up() -> None:
  """Imports math-verify and has it build its parser, which takes seconds."""
  math_verify([""], [r"\boxed{\frac{1}{2}}"], [0], [{"answer": "0.5"}])


# Called by each scoring process before its first row (`worker.main`).
math_verify.warm_up = _warm_up  # type: ignore[attr-defined]

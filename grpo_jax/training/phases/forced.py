"""Answers that are forced after segments, from texts to token ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from grpo_jax.algorithms.rredcot import RREDCoTConfig
from grpo_jax.step.prefix_value import ForcedAnswers
from grpo_jax.training.problem.problem import Problem


def make(settings: Any, problem: Problem) -> ForcedAnswers:
  """Makes the forced answers of a phase.

  Args:
    settings: Config of the algorithm.

  Raises:
    ValueError: A text is not made of tokens of the tokenizer, or no token is a
      delimiter; or an algorithm from outside has no such settings.
  """
  if not isinstance(settings, RREDCoTConfig):
    raise ValueError(
      f"{type(settings).__name__} does not say how answers are forced, and its"
      " algorithm needs 'prefix_utility'; derive the config from"
      " algorithms.rredcot.RREDCoTConfig."
    )
  assert problem.answers is not None
  return ForcedAnswers(
    answers=problem.answers,
    opener=_ids("opener", settings.opener, settings, problem),
    closer=_ids("closer", settings.closer, settings, problem),
    delimiter=_delimiters(settings, problem),
    entropy_quantile=settings.entropy_quantile,
    min_gap=settings.min_gap,
    max_segments=settings.max_segments,
  )


def _ids(
  name: str, text: str, settings: RREDCoTConfig, problem: Problem
) -> tuple[int, ...]:
  """The token ids of the setting `name`."""
  try:
    return tuple(problem.tokenizer.markup_ids(text))
  except ValueError as error:
    settings.complain(name, f"is not made of tokens of this run: {error}")
    raise


def _delimiters(
  settings: RREDCoTConfig, problem: Problem
) -> np.ndarray:  # [V] bool
  """The mask of the tokens that end a segment."""
  texts = [text.decode(errors="replace") for text in problem.pieces]

  def is_end(text: str) -> bool:
    return any(
      text.strip() == delimiter
      if delimiter.isalpha()
      else text.endswith(delimiter)
      for delimiter in settings.delimiters
    )

  is_delimiter = np.array([is_end(text) for text in texts])
  if settings.delimiters and not is_delimiter.any():
    settings.complain(
      "delimiters",
      "name the end of no token, and no segment would end so; name the last"
      " characters of a token, such as ';', or leave it empty to cut by entropy"
      " alone",
    )
  return is_delimiter

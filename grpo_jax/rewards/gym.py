"""Rewards of reasoning-gym: each problem's own dataset scores the answer.

The problem is made anew from its record (`extras`), and compared with the
prompt, so that an answer is never scored against another problem. Some datasets
give a partial score to an answer that is nearly right.
"""

from __future__ import annotations

import json

from grpo_jax import gym
from grpo_jax.rewards import answers, registry

# Datasets whose `score_answer` takes every text for right: bool("False") is
# True. Their answers are compared as texts.
_COMPARED = ("game_of_life_halting",)
# A completion without any of these is an answer as it stands.
_MARKS = ("<think>", "</think>", "<answer>", "</answer>", r"\boxed")


def answer_of(completion: str) -> str | None:
  """Returns the answer of a completion, or None if it cannot be read.

  It is the answer of `answers.final_answer`. If a completion has neither tags
  nor boxes, the whole text without white space around it is the answer.
  """
  answer = answers.final_answer(completion)
  if answer is None and not any(mark in completion for mark in _MARKS):
    return completion.strip()
  return answer


@registry.of_rows
def reasoning_gym(
  prompt: str, completion: str, extra: dict, *, exact: bool = False
) -> float:
  """Scores an answer by the `score_answer` of its dataset.

  Args:
    prompt: The question.
    completion: A text with an answer.
    extra: Has `dataset`, `settings`, `level` and `seed`, as records of
      `data.source="reasoning_gym"` do.
    exact: If True, a score of 1 counts as 1 and any other score as 0.

  Returns:
    A score, usually in [0, 1], with 1 for a right answer. It is 0 without an
    answer, and for an answer at which the dataset raises.

  Raises:
    ImportError: reasoning-gym is missing.
    KeyError: The extras are not those of such a record.
    ValueError: The problem made anew differs from the prompt.
  """
  score = _score(prompt, completion, extra)
  return float(score >= 1) if exact else score


def _score(prompt: str, completion: str, extra: dict) -> float:
  problem = gym.problem(
    extra["dataset"],
    json.dumps(extra["settings"], sort_keys=True),
    extra["level"],
    extra["seed"],
  )
  if problem.entry["question"] != prompt:
    raise ValueError(
      f"the dataset {extra['dataset']!r} made {problem.entry['question']!r:.80}"
      f" for the prompt {prompt!r:.80}; needs the same version of"
      " reasoning-gym everywhere, and a dataset that makes the same problem in"
      " every process (docs/reasoning_gym.md)."
    )
  answer = answer_of(completion)
  if answer is None:
    return 0.0
  if extra["dataset"] in _COMPARED:
    return float(answer == str(problem.entry["answer"]))
  try:
    return problem.score(answer)
  except Exception:
    # Some datasets raise at an answer that is not a number, or not a list. Such
    # an answer is wrong, not unscored. But if the right answer raises too, the
    # dataset is at fault, and the row is unscored.
    if problem.entry["answer"] is not None:
      problem.score(problem.entry["answer"])
    return 0.0


def _warm_up() -> None:
  gym.names()


reasoning_gym.warm_up = _warm_up  # type: ignore[attr-defined]

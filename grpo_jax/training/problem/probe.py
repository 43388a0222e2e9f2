"""Calls the reward functions once, before anything is compiled."""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from grpo_jax.data import sources
from grpo_jax.rewards import registry
from grpo_jax.rewards.workers import host
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.problem import rewards
from grpo_jax.training.runtime import files

_NUM_RECORDS = 4
_NEEDED = (
  "Needed is a function (prompts, completions, ids, extras) or, as in TRL,"
  " (prompts, completions, answer, **kwargs), all lists of one row (with"
  " registry.of_group of all completions of a prompt), that returns a list"
  " with a number for each row, or None where it does not apply."
)


def check(problem: problem_lib.Problem, group_size: int = 1) -> None:
  """Scores the first records with their reference answers.

  A verifier may fail on an unforeseen row; a verifier that fails on each of
  these is broken. The completion of a record is a teacher's completion, or else
  its answer.

  Args:
    problem: The problem. Verifiers of tasks, and sessions, were tried when it
      was made.
    group_size: Completions of a prompt, for functions that compare them.

  Raises:
    ValueError: A function cannot be called as it is, or each row failed; the
      message names the function, and the line.
  """
  if problem.reward.service is not None:
    first = problem.train[0]
    (prompt,) = problem.prompt_texts([first])
    completion = problem.supervised[0]["completion"]
    if completion is None:
      completion = first["answer"]
    if not isinstance(completion, str):
      completion = problem.tokenizer.decode(completion)
    problem.reward.service.check(
      prompt, completion, rewards.plain_extras(first)
    )
  if problem.reward.on_host is None:
    return
  scorer = problem.reward.on_host.scorer
  columns = rewards.plain_extras(problem.train[0])
  for name, path in scorer.functions.items():
    _check_signature(
      name, registry.load_function(path), scorer.options.get(name, {}), columns
    )
  copies = group_size if scorer.sees_groups else 1
  _score(problem, problem.train, copies, "training")
  _score(problem, problem.held_out, copies, "held-out")
  _score_nothing(problem, copies)


def _score_nothing(problem: problem_lib.Problem, copies: int) -> None:
  """Warns if empty completions of the first records are all marked as right."""
  number = min(_NUM_RECORDS, len(problem.train))
  numbers = [i for i in range(number) for _ in range(copies)]
  records = [problem.train[i] for i in numbers]
  scores = problem.score_texts(records, [""] * len(numbers), numbers)
  correct = scores.components.get(problem.reward.correct)
  if numbers and correct is not None and np.all(correct >= 1):
    logging.warning(
      "config.rewards.functions: %s marks empty completions of the first %d"
      " training records as right; `grpo-lint` tries other"
      " wrong answers. If it is not meant to say what is right, name a function"
      " that is as config.rewards.correct.",
      problem.reward.correct,
      number,
    )


def _score(
  problem: problem_lib.Problem, source: sources.Source, copies: int, split: str
) -> None:
  """Asks for the rewards of the first records of a split.

  Args:
    problem: The problem with the verifiers. Held-out records have no teacher,
      so they are completed as the training records are: a wrong answer is not a
      failure.

  Raises:
    ValueError: Each row failed.
  """
  assert problem.reward.on_host is not None
  number = min(_NUM_RECORDS, len(source), len(problem.train))
  numbers = [i for i in range(number) for _ in range(copies)]
  records = [source[i] for i in numbers]
  completions = [
    problem.supervised[i]["completion"] or problem.train[i]["answer"]
    for i in numbers
  ]
  scorer = problem.reward.on_host.scorer
  scores = problem.score_texts(records, completions, numbers)
  if number and scores.failed.all():
    raise ValueError(_message(scorer, scores, number, split))
  applies = [np.isfinite(values) for values in scores.components.values()]
  if number and not np.any(applies):
    logging.warning(
      "config.rewards.functions: %s: none applied to any of the first %d %s"
      " records (None, or an error, for each). Rows to which no reward applies"
      " are unscored, and are not learnt from.",
      ", ".join(scorer.functions),
      number,
      split,
    )


def _message(
  scorer: host.HostScorer, scores: host.WorkerScores, number: int, split: str
) -> str:
  messages: dict[str, str] = {}  # First message of each function.
  for _, message in sorted(scores.messages.items()):
    text = files.escaped(re.sub(r"^\w+: ", "", message))
    messages.setdefault(text.partition(":")[0], text)
  broken = [
    f"{name} ({_place(registry.load_function(path))})"
    for name, path in scorer.functions.items()
    if name in messages or not messages.keys() & scorer.functions.keys()
  ]
  slow = (
    "If it needs more time, set config.rewards.row_timeout_s. Put what it does"
    " once, such as reading a model, into FUNCTION.warm_up. "
    if any("no answer in" in text for text in messages.values())
    else ""
  )
  return (
    f"config.rewards.functions: {', '.join(broken)}: no score for any of the"
    f" first {number} {split} records, completed by reference answers:\n"
    + "\n".join(f"  {text}" for text in messages.values())
    + f"\n{slow}{_NEEDED}"
  )


def _check_signature(
  name: str,
  function: Callable[..., Any],
  options: Mapping[str, Any],
  columns: Collection[str],
) -> None:
  """Raises ValueError if a function cannot be called with its arguments."""
  try:
    signature = inspect.signature(function)
  except ValueError:  # Some functions in C have no known signature.
    return
  where = f"config.rewards.functions: {name} ({_place(function)}) has the"
  if registry.uses(function):
    filled = {*options, *registry.asks_for(function)}
    if absent := registry.missing(function, filled, columns):
      hint = registry.nearest(absent[0], columns)
      raise ValueError(
        f"{where} arguments {signature}, and records have no"
        f" {', '.join(map(repr, absent))}, only {', '.join(sorted(columns))}."
        f"{hint} Name the field in config.data.fields, as {{'prompt': 'prompt',"
        f" 'extras': {{{absent[0]!r}: {absent[0]!r}}}}}; or write it under"
        " 'extras' of each record; or, if it is the same for all, set"
        f" config.rewards.options = {{{name!r}: {{{absent[0]!r}: …}}}}."
      )
    return
  context = registry.asks_for(function)
  try:
    # Arguments of `config.rewards.options` have been checked before.
    signature.replace(
      parameters=[
        p
        for i, p in enumerate(signature.parameters.values())
        if i < 4 or (p.name not in context and p.name not in options)
      ]
    ).bind([""], [""], [0], [{}])
  except TypeError as error:
    raise ValueError(
      f"{where} arguments {signature}: {error}. {_NEEDED}"
    ) from error


def _place(function: Callable[..., Any]) -> str:
  """File and line of a function, as far as they are known."""
  code = getattr(registry.plain_of(function), "__code__", None)
  if code is None:
    return repr(function)
  path = code.co_filename
  if os.path.exists(path):
    path = min(path, os.path.relpath(path), key=len)
  return f"{path}:{code.co_firstlineno}"

"""Calls the reward functions once, before anything is compiled."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from grpo_jax.rewards import functions
from grpo_jax.training import escapes, verifiers
from grpo_jax.training import problem as problem_lib

_NUM_RECORDS = 4
_NEEDED = (
  "needed is a function (prompts, completions, ids, extras), all lists of one"
  " row (or, with functions.of_group, of all completions of a prompt), that"
  " returns a number for each row, or None where it does not apply"
)


def check(problem: problem_lib.Problem, group_size: int = 1) -> None:
  """Scores the first training records with their reference answers.

  A verifier may fail on a row that nobody has foreseen; one that fails on each
  of these is broken. The completion of a record is what a teacher would write,
  or else its answer.

  Args:
    problem: Those whose verifiers are in the program, or are sessions, are not
      looked at: tracing and the first session find the same mistakes.
    group_size: Completions of a prompt, for functions that compare them.

  Raises:
    ValueError: A function cannot be called as it is, or each row failed; says
      which function, and the line.
  """
  if problem.judge.on_host is None:
    return
  scorer = problem.judge.on_host.scorer
  for name, path in scorer.functions.items():
    _check_signature(
      name, functions.load_function(path), scorer.options.get(name, {})
    )
  number = min(_NUM_RECORDS, len(problem.train))
  copies = group_size if scorer.sees_groups else 1
  chosen = [i for i in range(number) for _ in range(copies)]
  records = [problem.train[i] for i in chosen]
  completions = [
    problem.supervised[i]["completion"] or record["answer"]
    for i, record in zip(chosen, records, strict=True)
  ]
  scores = scorer.score(
    problem.prompt_texts(records),
    completions,
    chosen,
    [verifiers.plain_extras(record) for record in records],
    [
      problem.encoder.completion({"completion": text}).tolist()
      for text in completions
    ],
  )
  if scores.failed.all():
    where = ", ".join(
      f"{name} ({_place(functions.load_function(path))})"
      for name, path in scorer.functions.items()
    )
    raise ValueError(
      f"config.rewards.functions: {where}: no score for any of the first"
      f" {number} training records, completed by their reference answers;"
      f" {_NEEDED}. Failed with:\n"
      + "\n".join(escapes.escaped(message) for message in scores.errors)
    )


def _check_signature(
  name: str, function: Callable[..., Any], options: Mapping[str, Any]
) -> None:
  try:
    signature = inspect.signature(function)
  except ValueError:  # Of some functions in C nobody knows it.
    return
  asked = functions.asks_for(function)
  try:
    # What `config.rewards.options` says has been checked already.
    signature.replace(
      parameters=[
        p
        for i, p in enumerate(signature.parameters.values())
        if i < 4 or (p.name not in asked and p.name not in options)
      ]
    ).bind([""], [""], [0], [{}])
  except TypeError as error:
    raise ValueError(
      f"config.rewards.functions: {name} ({_place(function)}) has the arguments"
      f" {signature}: {error}; {_NEEDED}."
    ) from error


def _place(function: Callable[..., Any]) -> str:
  """File and line of a function, as far as it is known."""
  code = getattr(inspect.unwrap(function), "__code__", None)
  if code is None:
    return repr(function)
  return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"

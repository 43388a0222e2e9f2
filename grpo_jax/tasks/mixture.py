"""Several tasks as one; the task of a problem is its domain.

Prompts of different tasks look different, so that a policy sees which task it
is given. The verifier of a problem is that of its own task; scores that the
task does not have are NaN.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.tasks.task import Example, Extras, Task

# Fields in which tasks must agree, because a policy has one vocabulary.
_SHARED = ("vocab_size", "pad_id", "bos_id", "end_ids")


def make(parts: Mapping[str, Task]) -> Task:
  """Makes a task that draws from several tasks with equal probability.

  Args:
    parts: Tasks by the name of the domain. The number of a domain is its index.

  Raises:
    ValueError: A task has an environment, or another vocabulary.
  """
  first, *others = parts.values()
  for name, part in parts.items():
    if part.environment is not None or part.verify is None:
      raise ValueError(
        f"mixture: the task of the domain {name!r} has an environment, whose"
        " episodes are not for a mixture; take tasks of one turn, such as"
        " 'add', or train it alone."
      )
  words = [first.decode([i]) for i in range(first.vocab_size)]
  for part in others:
    differs = [x for x in _SHARED if getattr(part, x) != getattr(first, x)]
    if differs or [part.decode([i]) for i in range(len(words))] != words:
      raise ValueError(
        f"mixture: the tasks {first.name!r} and {part.name!r} differ in their"
        f" {', '.join(differs) or 'tokens'}; a policy has one vocabulary. Take"
        " tasks that share theirs."
      )
  judged = [part for part in parts.values() if part.step_scores is not None]

  def example(rng: np.random.Generator, split: str) -> Example:
    domain = list(parts)[rng.integers(len(parts))]
    return problems(parts)[domain].example(rng, split)

  return dataclasses.replace(
    first,
    name="mixture",
    max_prompt_len=max(x.max_prompt_len for x in parts.values()),
    max_completion_len=max(x.max_completion_len for x in parts.values()),
    example=example,
    verify=functools.partial(_verify, parts),
    verify_numpy=functools.partial(_verify_numpy, parts),
    step_scores=functools.partial(_step_scores, parts) if judged else None,
    step_scores_numpy=functools.partial(_step_scores_numpy, parts)
    if judged
    else None,
    right_answer=None,
    solution=None,
    lesson=None,
  )


def problems(parts: Mapping[str, Task]) -> dict[str, Task]:
  """The tasks, with the extras that the verifier of the mixture reads.

  The extras of the other tasks are there too, as zeros, because all prompts of
  a batch have arrays of the same names and shapes.
  """
  empty: dict[str, np.ndarray] = {}
  for name, part in parts.items():
    extras = part.example(np.random.default_rng(0), "train").extras
    for key, value in extras.items():
      empty[f"{name}/{key}"] = np.zeros_like(value)

  def renamed(number: int, name: str, draw: Callable, rng: Any, split: str):
    problem = draw(rng, split)
    own = {f"{name}/{key}": value for key, value in problem.extras.items()}
    domain = np.array(number, np.int32)
    return problem._replace(extras={**empty, **own, "domain": domain})

  return {
    name: dataclasses.replace(
      part,
      example=functools.partial(renamed, number, name, part.example),
      lesson=part.lesson
      and functools.partial(renamed, number, name, part.lesson),
    )
    for number, (name, part) in enumerate(parts.items())
  }


def _own(extras: Mapping[str, Any], name: str) -> dict[str, Any]:
  """The extras of one task, under its own names."""
  prefix = f"{name}/"
  return {
    key.removeprefix(prefix): value
    for key, value in extras.items()
    if key.startswith(prefix)
  }


def _verify(
  parts: Mapping[str, Task],
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  extras: Extras,
) -> dict[str, jax.Array]:
  """Judges one completion in graph; see `Task.verify`."""
  by_name: dict[str, jax.Array] = {}
  for number, (name, part) in enumerate(parts.items()):
    assert part.verify is not None
    scores = part.verify(tokens, completion_mask, _own(extras, name))
    for key, value in scores.items():
      by_name[key] = jnp.where(
        extras["domain"] == number, value, by_name.get(key, jnp.nan)
      ).astype(jnp.float32)
  return by_name


def _verify_numpy(
  parts: Mapping[str, Task],
  tokens: np.ndarray,  # [T] int32
  completion_mask: np.ndarray,  # [T] bool
  extras: Mapping[str, np.ndarray],
) -> dict[str, float]:
  """Twin of `_verify`, which calls the twin of the problem's task."""
  scores: dict[str, float] = {}
  for number, (name, part) in enumerate(parts.items()):
    assert part.verify_numpy is not None
    values = part.verify_numpy(tokens, completion_mask, _own(extras, name))
    for key, value in values.items():
      if number == extras["domain"]:
        scores[key] = value
      else:
        scores.setdefault(key, np.nan)
  return scores


def _step_scores(
  parts: Mapping[str, Task],
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  extras: Extras,
) -> tuple[jax.Array, jax.Array]:  # [T] float32, [T] bool
  """Judges steps, for problems of tasks that have step scores."""
  scores = jnp.zeros(tokens.shape, jnp.float32)
  ends = jnp.zeros(tokens.shape, bool)
  for number, (name, part) in enumerate(parts.items()):
    if part.step_scores is None:
      continue
    own, where = part.step_scores(tokens, completion_mask, _own(extras, name))
    is_own = extras["domain"] == number
    scores = jnp.where(is_own, own, scores)
    ends = jnp.where(is_own, where, ends)
  return scores, ends


def _step_scores_numpy(
  parts: Mapping[str, Task],
  tokens: np.ndarray,  # [T] int32
  completion_mask: np.ndarray,  # [T] bool
  extras: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:  # [T] float32, [T] bool
  """Twin of `_step_scores`, which calls the twin of the problem's task."""
  name = list(parts)[int(extras["domain"])]
  judge = parts[name].step_scores_numpy
  if judge is None:
    return np.zeros(len(tokens), np.float32), np.zeros(len(tokens), bool)
  return judge(tokens, completion_mask, _own(extras, name))

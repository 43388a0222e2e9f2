"""Right answers of a task for corrections, and the names of its scores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from grpo_jax import tasks
from grpo_jax.tasks import Task
from grpo_jax.tasks.task import Solution
from grpo_jax.training.runtime import files

Extras = Mapping[str, np.ndarray]


class Solutions(NamedTuple):
  """Right answers and the verifier of a task, on the host.

  Attributes:
    find: (extras of one problem) -> a solution.
    reward: (tokens [F], mask [F], extras) -> score of a completion, in [0, 1].
  """

  find: Callable[[Extras], Solution]
  reward: Callable[[np.ndarray, np.ndarray, Extras], float]


def of_task(task: Task, correct: str) -> Solutions | None:
  """The right answers of a task; None without solutions or a host verifier.

  Args:
    correct: The component that tells right from wrong.
  """
  if task.solution is None or task.verify_numpy is None:
    return None
  return Solutions(
    task.solution, functools.partial(reward, task.verify_numpy, correct)
  )


def reward(verify, correct, tokens, mask, extras):  # [F], [F] -> []
  """The verifier's score of a completion."""
  return verify(tokens, mask, extras)[correct]


def names(task: tasks.Task, extras: Mapping[str, np.ndarray]) -> set[str]:
  """Traces a task's verifier, or its environment, for the names of its scores.

  Raises:
    ValueError: It cannot be traced, or does not give a number for each name.
  """

  def of_environment(extras: Any) -> Mapping[str, jax.Array]:
    environment = task.environment
    assert environment is not None
    return environment.scores(environment.reset(jax.random.key(0), extras))

  def of_verifier(extras: Any) -> Mapping[str, jax.Array]:
    assert task.verify is not None
    empty = jax.numpy.zeros(task.max_completion_len, np.int32)
    return task.verify(empty, empty.astype(bool), extras)

  function = of_verifier if task.environment is None else of_environment
  who = "environment" if task.environment else "verify"
  try:
    shapes = jax.eval_shape(function, dict(extras))
  except Exception as error:
    # The message has the line, since a task may be of a notebook.
    from grpo_jax.rewards.workers import reward_worker

    raise ValueError(
      f"task {task.name!r}: its {who} fails on the first problem with"
      f" {files.escaped(str(error)[:300])} ({type(error).__name__}"
      f"{reward_worker.place_of(error, task.verify)}); it is called with the"
      f" tokens and mask of one completion, and the extras {sorted(extras)}."
    ) from error
  scores = shapes if isinstance(shapes, Mapping) else {"": None}
  bad = [k for k, x in scores.items() if getattr(x, "shape", None) != ()]
  if bad or not scores:
    raise ValueError(
      f"task {task.name!r}: its {who} gave {shapes!r:.200}; needs a"
      " dictionary with a name and a number, an array of shape [], for each"
      " score, such as {'accuracy': …}."
    )
  return {*scores, *(() if task.environment is None else ("return",))}

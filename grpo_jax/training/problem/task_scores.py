"""What a task says of completions, tried before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from grpo_jax import tasks
from grpo_jax.rewards.workers import worker
from grpo_jax.training.runtime import escapes


def names(task: tasks.Task, extras: Mapping[str, np.ndarray]) -> set[str]:
  """The names of what a task's verifier, or its environment, says.

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
    said = jax.eval_shape(function, dict(extras))
  except Exception as error:
    # With the line: a task may be of a notebook.
    raise ValueError(
      f"task {task.name!r}: its {who} fails on the first problem with"
      f" {escapes.escaped(str(error)[:300])} ({type(error).__name__}"
      f"{worker.place_of(error, task.verify)}); it is called with the tokens"
      f" and mask of one completion, and the extras {sorted(extras)}."
    ) from error
  scores = said if isinstance(said, Mapping) else {"": None}
  bad = [k for k, x in scores.items() if getattr(x, "shape", None) != ()]
  if bad or not scores:
    raise ValueError(
      f"task {task.name!r}: its {who} gave {said!r:.200}; needed is a"
      " dictionary with a name and a number, an array of shape [], for each"
      " score, such as {'accuracy': …}."
    )
  return {*scores, *(() if task.environment is None else ("return",))}

"""What a task knows of right answers, for completions that are given one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from grpo_jax.tasks import Task
from grpo_jax.tasks.task import Solution

Extras = Mapping[str, np.ndarray]


class Solutions(NamedTuple):
  """Right answers, and what the verifier says of completions; on the host.

  Attributes:
    find: (extras of one problem) -> a solution.
    worth: (tokens [F], mask [F], extras) -> what a completion is worth, in
      [0, 1].
  """

  find: Callable[[Extras], Solution]
  worth: Callable[[np.ndarray, np.ndarray, Extras], float]


def of_task(task: Task, correct: str) -> Solutions | None:
  """What a task knows; None: no solutions, or nobody could try them.

  Args:
    task: Of the run.
    correct: The component that tells right from wrong.
  """
  if task.solution is None or task.verify_numpy is None:
    return None
  return Solutions(
    task.solution, functools.partial(_worth, task.verify_numpy, correct)
  )


def _worth(verify, correct, tokens, mask, extras):  # [F], [F] -> float
  return verify(tokens, mask, extras)[correct]

"""What a task knows of right answers, for completions that are given one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from grpo_jax.tasks import Task
from grpo_jax.tasks.task import Solution

Extras = Mapping[str, np.ndarray]
# (tokens [F], mask [F], extras) -> [] in [0, 1], what a completion is worth.
Worth = Callable[[jax.Array, jax.Array, Extras], jax.Array]


class Solutions(NamedTuple):
  """Right answers, and what the verifier says of completions.

  Attributes:
    find: (extras of one problem) -> a solution, on the host.
    worth: Of a completion.
  """

  find: Callable[[Extras], Solution]
  worth: Worth


def worth(task: Task, correct: str) -> Worth | None:
  """What the verifier says of a completion; None: the task has none.

  Args:
    task: Of the run.
    correct: The component that tells right from wrong.
  """
  if task.verify is None:
    return None
  return functools.partial(_worth, task.verify, correct)


def _worth(verify, correct, tokens, mask, extras):  # [F], [F] -> []
  return verify(tokens, mask, extras)[correct]


def of_task(task: Task, correct: str) -> Solutions | None:
  """What a task knows; None: it knows no solutions."""
  worth_of = worth(task, correct)
  if task.solution is None or worth_of is None:
    return None
  return Solutions(task.solution, worth_of)

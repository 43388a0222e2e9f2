"""Addition by a teacher who may answer before the working is done."""

from __future__ import annotations

import dataclasses

import numpy as np

from grpo_jax.tasks import add
from grpo_jax.tasks.task import Example, Task


def make(level: int = 2, skip: float = 0.5, teacher_error: float = 0.0) -> Task:
  """Addition with a scratchpad by a teacher who may leave out its last steps.

  Args:
    level: Digits of both operands.
    skip: Probability of a working without its last steps; the number of steps
      kept is uniform, from none to all but one.
    teacher_error: Probability with which the teacher forgets a carry.
  """
  task = add.make(level=level, scratchpad=True, teacher_error=teacher_error)

  def example(rng: np.random.Generator, split: str) -> Example:
    made = task.example(rng, split)
    kept = int(rng.integers(level)) if rng.random() < skip else level
    first, last = 1 + add.STEP_LEN * kept, 1 + add.STEP_LEN * level
    completion = np.delete(made.completion, slice(first, last))
    return made._replace(completion=completion)

  return dataclasses.replace(task, example=example)

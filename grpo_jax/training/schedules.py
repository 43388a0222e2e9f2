"""The pool of a phase that chooses its prompts, from the settings of a run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from grpo_jax.data import chosen, demonstrations, pipeline, sources
from grpo_jax.learning import schedules
from grpo_jax.training import config as config_lib
from grpo_jax.training.problem import Problem


class Pool(NamedTuple):
  """The prompts that a phase may draw.

  Attributes:
    source: Records.
    numbers: Those of them that fit, [N] int.
  """

  source: sources.Source
  numbers: np.ndarray


def pool(config: config_lib.RunConfig, problem: Problem, name: str) -> Pool:
  """The pool of the phase called `name`; reads its prompts.

  Raises:
    ValueError: Nobody can read them all, or a step needs more of them.
  """
  phase = config.section(name)
  where = f"config.{name}.schedule"
  source = problem.of_domains(problem.train, phase.domains)
  if sources.starts(source) is not None:
    raise ValueError(
      f"{where}.name={phase.schedule.name!r} chooses among prompts that come"
      f" again, and those of config.data.source={config.data.source!r} are made"
      " or read one at a time, with no end; set the name to 'epochs', or read"
      " a file of them without config.data.streaming."
    )
  read: sources.Source = source
  if phase.schedule.pool is not None:
    read = demonstrations.First(source, phase.schedule.pool, f"{where}.pool")
  elif sources.task_of(source) is not None:
    raise ValueError(
      f"{where}.name={phase.schedule.name!r} with {where}.pool=None: the task"
      f" has {len(source)} problems, of which hardly any comes twice; set it to"
      " the number of those to choose from, such as 1024."
    )
  longest = phase.max_prompt_len or problem.max_prompt_len
  pipeline.check_task("schedule", source, max_prompt_len=longest)
  numbers = pipeline.fitting(
    "schedule",
    read,
    functools.partial(pipeline.short_prompt, problem.encoder, longest),
  )
  if len(numbers) < phase.num_prompts:
    raise ValueError(
      f"config.{name}.num_prompts={phase.num_prompts} different prompts of a"
      f" step are more than the {len(numbers)} to choose from; lower it, or"
      f" raise {where}.pool."
    )
  return Pool(source, numbers)


def make(
  config: config_lib.RunConfig, problem: Problem, name: str
) -> schedules.Schedule | None:
  """The schedule of a phase; None where prompts come in an order of their own.

  Raises:
    ValueError: See `pool`.
  """
  phase = config.section(name)
  settings = phase.schedule
  if not settings.chooses:
    return None
  return schedules.Curriculum(
    rule=settings.name,
    size=len(pool(config, problem, name).numbers),
    num_prompts=phase.num_prompts,
    uniform_share=settings.uniform_share,
    decay=settings.decay,
    start_share=settings.start_share,
    pace_steps=settings.pace_steps,
  )


def stream(
  config: config_lib.RunConfig,
  problem: Problem,
  name: str,
  rows: Sequence[int],
) -> chosen.ChosenPrompts:
  """The batches of a phase that chooses its prompts.

  Args:
    config, problem: Of the run.
    name: Of the phase.
    rows: Which ones of each batch to make.
  """
  phase = config.section(name)
  source, numbers = pool(config, problem, name)
  return chosen.ChosenPrompts(
    source,
    problem.encoder,
    numbers,
    batch_size=phase.num_prompts,
    max_prompt_len=phase.max_prompt_len or problem.max_prompt_len,
    pad_id=problem.tokenizer.pad_id,
    rows=rows,
    more=problem.rubric.arrays if problem.rubric else None,
  )

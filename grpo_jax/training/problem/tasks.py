"""The task of a config, and the sources of its problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from grpo_jax import tasks
from grpo_jax.data import domains, sources
from grpo_jax.settings import groups
from grpo_jax.settings.groups import DataConfig
from grpo_jax.tasks import task as task_lib

# Records of a synthetic epoch; then the order is shuffled anew.
_NUM_EXAMPLES = 1 << 20


class TaskData(NamedTuple):
  """A task with its problems.

  Attributes:
    train, held_out, supervised: As in `problem.Problem`.
    domains: Names of the domains; empty: its problems have none.
  """

  task: tasks.Task
  train: sources.Source
  held_out: sources.Source
  supervised: sources.Source
  domains: tuple[str, ...] = ()


def make_task(data: DataConfig) -> tasks.Task:
  """Makes the task of a config, or that of a mixture of tasks.

  Raises:
    KeyError, TypeError, ValueError: There is no such task.
  """
  if data.source == "mixture":
    from grpo_jax.tasks import mixture

    return mixture.make(_parts(data))
  return tasks.make_task(data.name, **data.task_options)


def make(data: DataConfig, seed: int) -> TaskData:
  """Makes the task, and sources that make its problems when they are read.

  Args:
    data: Data whose prompts are made of ids.

  Raises:
    KeyError, TypeError, ValueError: There is no such task.
  """
  if data.source == "mixture":
    for part in _parts(data).values():
      task_lib.check(part)
    return _mixed(data, make_task(data), seed)
  task = make_task(data)
  task_lib.check(task)
  extras = sources.TaskSource(task, "train", 0, 1)[0]["extras"]
  train, held_out, supervised = _sources(task, seed, _NUM_EXAMPLES)
  names: tuple[str, ...] = ()
  if "domain" in extras:
    names = task.domains
    if not names:
      raise ValueError(
        f"task {task.name!r}: its extras have a 'domain', and nobody says how"
        " many there are; set Task.domains to their names, by number."
      )
  return TaskData(task, train, held_out, supervised, names)


def _parts(data: DataConfig) -> dict[str, tasks.Task]:
  return {
    name: tasks.make_task(part.data.name, **part.data.task_options)
    for name, part in groups.parts(data).items()
  }


def _sources(
  task: tasks.Task, seed: int, num_train: int
) -> tuple[sources.Source, sources.Source, sources.Source]:
  lessons = dataclasses.replace(task, example=task.lesson or task.example)
  return (
    sources.TaskSource(task, "train", seed, num_train),
    # A fixed seed: all runs have the same held-out problems.
    sources.TaskSource(task, "test", 0, _NUM_EXAMPLES),
    sources.TaskSource(lessons, "train", seed, num_train),
  )


def _mixed(data: DataConfig, task: tasks.Task, seed: int) -> TaskData:
  from grpo_jax.tasks import mixture

  parts: Mapping[str, groups.MixturePart] = groups.parts(data)
  weights = [part.weight for part in parts.values()]
  by_name = {
    name: _sources(
      part, seed, max(round(weight / sum(weights) * _NUM_EXAMPLES), 1)
    )
    for (name, part), weight in zip(
      mixture.problems(_parts(data)).items(), weights, strict=True
    )
  }
  train, held_out, supervised = (
    {name: sources[i] for name, sources in by_name.items()} for i in range(3)
  )
  together = (
    domains.weighted(train, weights),
    domains.in_turn(held_out),
    domains.weighted(supervised, weights),
  )
  for source in together:
    source.task = task
  return TaskData(task, *together, tuple(parts))

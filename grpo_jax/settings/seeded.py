"""The seed of a run in the paths that it reads.

    config.start_workdir = "runs/base/seed={seed}"

Runs that differ in their seeds alone, as those of a sweep, then follow each on
a run of its own, or learn from teachers of their own. "{seed}" stands for the
seed in every path to another run or to a file of completions or clusters: in
`start_workdir`, in `reward_model`, in `judge.model`, and in the sections of
phases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from grpo_jax.settings import schedule_settings

SEED = "{seed}"


def with_seed(config: Any) -> Any:
  """The `RunConfig` with its seed in its paths."""
  seed = str(config.seed)
  return _changed(config, config, lambda own, _: own.replace(SEED, seed))


def with_paths_of(config: Any, other: Any) -> Any:
  """The `RunConfig` with the paths of another one, of another seed."""
  return _changed(config, other, lambda _, theirs: theirs)


def _changed(config: Any, other: Any, change: Callable[[str, str], str]) -> Any:
  sections = {}
  for name, section in config.sections.items():
    theirs = other.sections[name]
    schedule = {
      field: change(
        getattr(section.schedule, field), getattr(theirs.schedule, field)
      )
      for field in schedule_settings.PATHS
    }
    sections[name] = dataclasses.replace(
      _texts(section, theirs, change),
      schedule=dataclasses.replace(section.schedule, **schedule),
    )
  return dataclasses.replace(
    config,
    start_workdir=change(config.start_workdir, other.start_workdir),
    reward_model=_texts(config.reward_model, other.reward_model, change),
    judge=dataclasses.replace(
      config.judge, model=change(config.judge.model, other.judge.model)
    ),
    sections=sections,
  )


def _texts(settings: Any, other: Any, change: Callable[[str, str], str]) -> Any:
  """A group of settings with its texts changed, and those in its tuples."""

  def one(own: Any, theirs: Any) -> Any:
    if isinstance(own, str):
      return change(own, theirs)
    if isinstance(own, tuple):
      return tuple(one(*pair) for pair in zip(own, theirs, strict=True))
    return own

  fields = {
    field.name: one(getattr(settings, field.name), getattr(other, field.name))
    for field in dataclasses.fields(settings)
    if not dataclasses.is_dataclass(getattr(settings, field.name))
  }
  return dataclasses.replace(settings, **fields)

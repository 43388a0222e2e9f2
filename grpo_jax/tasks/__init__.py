"""Toy tasks with exact verifiers; one task, one file.

`TASKS` names them all; `make_task("add", level=3)` makes one.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection
from typing import Any

from grpo_jax.tasks import (
  add,
  calc_tool,
  copy,
  countdown,
  grid,
  language,
  memchain,
  multi,
  sort,
)
from grpo_jax.tasks.task import Example, Task
from grpo_jax.types import Compaction, Environment, Turn

__all__ = [
  "TASKS",
  "Compaction",
  "Environment",
  "Example",
  "Task",
  "Turn",
  "make_task",
]

TASKS: dict[str, Callable[..., Task]] = {
  "add": add.make,
  "calc_tool": calc_tool.make,
  "copy": copy.make,
  "countdown": countdown.make,
  "grid": grid.make,
  "language": language.make,
  "memchain": memchain.make,
  "multi": multi.make,
  "sort": sort.make,
}


def make_task(name: str, **options: Any) -> Task:
  """Makes the task called `name`.

  Args:
    name: Key of `TASKS`.
    **options: Arguments of that task's `make`.

  Raises:
    KeyError: If the task or an option is unknown; names the known ones.
    TypeError: If an option is of another kind than its default.
    ValueError: If an option is out of range.
  """
  if name not in TASKS:
    raise KeyError(_unknown("task", name, TASKS))
  known = inspect.signature(TASKS[name]).parameters
  for option, value in options.items():
    if option not in known:
      raise KeyError(_unknown(f"option of task {name!r}", option, known))
    kind = type(known[option].default)
    if type(value) is not kind and (type(value), kind) != (int, float):
      raise TypeError(
        f"make_task: option {option!r} of task {name!r} is {value!r}; it needs"
        f" a {kind.__name__}, as {known[option].default!r}."
      )
  return TASKS[name](**options)


def _unknown(what: str, name: str, known: Collection[str]) -> str:
  nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
  hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
  return (
    f"make_task: unknown {what}: {name!r}; known are"
    f" {', '.join(sorted(known))}.{hint}"
  )

"""Toy tasks with exact verifiers; one task, one file.

`TASKS` lists all of them; for example, `make_task("add", level=3)` makes one.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

from grpo_jax import imports
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

# Each is imported when it is first asked for.
TASKS: imports.LazyTable[Callable[..., Task]] = imports.LazyTable(
  __name__,
  {
    "add": "add:make",
    "bias_mcq": "bias_mcq:make",
    "bracket": "bracket:make",
    "calc_tool": "calc_tool:make",
    "copy": "copy:make",
    "countdown": "countdown:make",
    "grid": "grid:make",
    "ir_tree": "ir_tree:make",
    "language": "language:make",
    "memchain": "memchain:make",
    "multi": "multi:make",
    "nim": "nim:make",
    "sort": "sort:make",
    "verdict": "verdict:make",
    "vision": "vision:make",
  },
)


def make_task(name: str, **options: Any) -> Task:
  """Makes the task called `name`.

  Args:
    name: Key of `TASKS`, or the import path of a `Task`, or of a function that
      makes one: "my_pkg.tasks:make".
    **options: Arguments of that task's `make`.

  Raises:
    KeyError: The task or an option is unknown; the message lists the known
      ones.
    TypeError: An option has another type than its default.
    ValueError: An option is out of range, or there is nothing at the path.
  """
  if ":" in name:
    make = imports.load(name, "task")
    if isinstance(make, Task):
      make = functools.partial(_ready, make)
    if not callable(make):
      raise TypeError(
        f"make_task: {name!r} is {make!r:.80} ({type(make).__name__}); needs"
        " a Task, or a function that makes one."
      )
  elif name in TASKS:
    make = TASKS[name]
  else:
    raise KeyError(_unknown("task", name, TASKS))
  parameters = inspect.signature(make).parameters
  takes_any = any(x.kind is x.VAR_KEYWORD for x in parameters.values())
  for option, value in options.items():
    if option not in parameters and takes_any:
      continue
    if option not in parameters and not parameters:
      raise KeyError(
        f"make_task: option {option!r}: the task {name!r} has no options; set"
        " config.data.task_options to {}."
      )
    if option not in parameters:
      raise KeyError(_unknown(f"option of task {name!r}", option, parameters))
    kind = type(parameters[option].default)
    if parameters[option].default is inspect.Parameter.empty:
      continue
    if type(value) is not kind and (type(value), kind) != (int, float):
      raise TypeError(
        f"make_task: option {option!r} of task {name!r} is {value!r}; it needs"
        f" a {kind.__name__}, as {parameters[option].default!r}."
      )
  task = make(**options)
  if not isinstance(task, Task):
    raise TypeError(
      f"make_task: {name!r} gave {task!r:.80} ({type(task).__name__}); needs"
      " a Task, or a function that makes one."
    )
  return task


def _ready(task: Task) -> Task:
  """The `make` of a ready task: returns it, and has no options."""
  return task


def _unknown(what: str, name: str, names: Collection[str]) -> str:
  nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
  hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
  return (
    f"make_task: unknown {what}: {name!r}; known are"
    f" {', '.join(sorted(names))}.{hint}"
  )

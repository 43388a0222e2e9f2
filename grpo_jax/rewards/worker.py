"""The process in which host reward functions run; started by `pool.py`.

A worker is a fresh interpreter: it imports the reward functions and their
dependencies, and neither the main program nor jax. Functions run in its main
thread, because math-verify ends hanging comparisons by a signal.

A reward function has the signature

    fn(prompts: list[str], completions: list[str], ids: list[int],
       extras: list[dict]) -> list[float | None]

and is called with lists of one row. None means that the reward does not apply
to this row and is left out of its sum. What is no answer makes the row
unscored, whatever its other components say: NaN, an exception, a wrong number
of results, something that is not a number, or no result before the deadline.
Deviation from libraries that take NaN or 0 for all of these: a component that
failed must never act as a reward.

If the function has an attribute `warm_up`, a worker calls it before its first
row, outside any deadline: the place for slow imports and whatever else the
first row would wait for.

A function gets the environment variables of `processes.VARIABLES`, and those
that `config.rewards.variables` names. A process that it forks cannot answer in
its place, and ends with the worker. But what runs in the worker's own process
can say what it likes of this row and of later ones: code that a policy wrote
needs a process of its own, at least.
"""

from __future__ import annotations

import difflib
import importlib
import math
import os
import signal
import traceback
import typing
from collections.abc import Callable, Mapping

from grpo_jax.rewards import frames, processes

RewardFunction = Callable[..., list[float | None]]
# (prompt, completion, id, extra)
Row = tuple[str, str, int, dict]

BUILTIN = {
  "math_accuracy": "grpo_jax.rewards.math_accuracy:math_accuracy",
  "think_answer_format": "grpo_jax.rewards.formatting:think_answer_format",
}


def _nearest(name: str, names) -> str:
  close = difflib.get_close_matches(name, [str(n) for n in names], n=1)
  return f" Did you mean '{close[0]}'?" if close else ""


def load_function(path: str) -> RewardFunction:
  """Imports a reward function.

  Args:
    path: "package.module:function", or a name in `BUILTIN`.

  Raises:
    ValueError: Nothing callable is found there.
  """
  return load(path, "reward function", BUILTIN)


def load(
  path: str, what: str, builtin: Mapping[str, str]
) -> Callable[..., typing.Any]:
  """Imports a function; see `load_function`.

  Args:
    path: "package.module:function", or a name in `builtin`.
    what: It is, in messages.
    builtin: Short names of paths.
  """
  module_name, colon, attribute = builtin.get(path, path).partition(":")
  if not (module_name and colon and attribute):
    known = f" or one of {sorted(builtin)}" if builtin else ""
    raise ValueError(
      f"{what} '{path}': needed is an import path"
      f" 'package.module:function'{known}." + _nearest(path, builtin)
    )
  try:
    module = importlib.import_module(module_name)
  except Exception as error:
    raise ValueError(
      f"{what} '{path}': importing '{module_name}' failed with"
      f" {type(error).__name__}: {error}; needed is a module that imports"
      " here and in a process of its own."
    ) from error
  function = getattr(module, attribute, None)
  if not callable(function):
    raise ValueError(
      f"{what} '{path}': '{module_name}' has no function"
      f" '{attribute}'."
      + _nearest(attribute, {k for k, v in vars(module).items() if callable(v)})
    )
  return function


def _value(result: typing.Any) -> float | None:
  if len(result) != 1:
    raise ValueError(
      f"returned {len(result)} results for 1 row; needed is one per row"
    )
  value = result[0]
  if value is None:
    return None
  if not isinstance(value, typing.SupportsFloat):
    raise TypeError(
      f"returned {type(value).__name__}; needed is a number or None"
    )
  return float(value)


def failure_of(name: str, error: BaseException) -> frames.Failure:
  """How a row has failed whose function, of this name, raised the error."""
  kind = "timeout" if isinstance(error, TimeoutError) else "raised"
  frame = traceback.extract_tb(error.__traceback__)[-1]
  return kind, (
    f"{name}: {type(error).__name__}: {str(error)[:300]}"
    f" ({os.path.basename(frame.filename)}:{frame.lineno})"
  )


def score_row(
  functions: dict[str, RewardFunction], row: Row
) -> tuple[list[float | None], frames.Failure | None]:
  """Applies every function to one row.

  Returns:
    One value per function, None where not applicable or failed, and the first
    failure.
  """
  values: list[float | None] = []
  failure = None
  for name, function in functions.items():
    try:
      value = _value(function(*([field] for field in row)))
    except BaseException as error:  # Also SystemExit of a verifier.
      failure = failure or failure_of(name, error)
      value = None
    else:
      if value is not None and math.isnan(value):
        failure = failure or ("nan", f"{name}: returned NaN")
        value = None
    values.append(value)
  return values, failure


def start(fd: int, parent: int) -> frames.Channel:
  """The beginning of a worker: what returns is a child of its keeper.

  Args:
    fd: File descriptor of this end of the pipe.
    parent: Process id of the parent; when it is gone, so is the worker.
  """
  # Leaves it to the parent when a worker ends. A function rather than SIG_IGN,
  # which processes started by a verifier would inherit.
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: None)
  processes.keep(parent, [fd])
  channel = frames.Channel(fd)
  channel.close_in_forks()
  return channel


def ready(
  channel: frames.Channel,
  load_all: Callable[[], dict[str, Callable]],
) -> dict[str, Callable] | None:
  """Imports and warms up functions, and tells the parent how that went.

  Returns:
    The functions by name; None if one cannot be imported.
  """
  try:
    functions = load_all()
    for function in functions.values():
      getattr(function, "warm_up", lambda: None)()
  except BaseException as error:
    message = f"{type(error).__name__}: {error}"
    channel.send(frames.encode(["failed", message]))
    return None
  channel.send(frames.encode(["ready", ""]))
  return functions


def main(fd: int, parent: int, paths: dict[str, str]) -> None:
  """Scores rows until the pipe closes.

  Says whether it is `ready`, then answers each row, in their order.

  Args:
    fd: File descriptor of this end of the pipe.
    parent: Process id of the parent; when it is gone, so is the worker.
    paths: Name of each component -> import path of its function.
  """
  channel = start(fd, parent)
  functions = ready(
    channel,
    lambda: {name: load_function(path) for name, path in paths.items()},
  )
  if functions is None:
    return
  try:
    while True:
      number, row = channel.receive()
      answer = score_row(functions, row)
      signal.alarm(0)  # One left behind would strike the next row.
      channel.send(frames.encode([number, *answer]))
  except (EOFError, OSError):  # Also of a process that a verifier has forked.
    return

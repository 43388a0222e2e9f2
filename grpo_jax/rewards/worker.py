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
row, outside any deadline: the place for slow imports.
"""

from __future__ import annotations

import difflib
import importlib
import math
import os
import signal
import threading
import time
import traceback
import typing
from collections.abc import Callable, Mapping
from multiprocessing import connection

RewardFunction = Callable[..., list[float | None]]
# (prompt, completion, id, extra)
Row = tuple[str, str, int, dict]
# (kind of failure, message)
Failure = tuple[str, str]

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


def failure_of(name: str, error: BaseException) -> Failure:
  """How a row has failed whose function, of this name, raised the error."""
  kind = "timeout" if isinstance(error, TimeoutError) else "raised"
  frame = traceback.extract_tb(error.__traceback__)[-1]
  return kind, (
    f"{name}: {type(error).__name__}: {str(error)[:300]}"
    f" ({os.path.basename(frame.filename)}:{frame.lineno})"
  )


def score_row(
  functions: dict[str, RewardFunction], row: Row
) -> tuple[list[float], Failure | None]:
  """Applies every function to one row.

  Returns:
    One value per function, NaN where not applicable or failed, and the first
    failure.
  """
  values = []
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
    values.append(math.nan if value is None else value)
  return values, failure


def exit_with(parent: int) -> None:
  """From now on, ends this process and what it started with its parent."""

  def watch():
    # Asked once a second: the end of the pipe is no sign of the parent's death,
    # because whatever the parent forked holds the pipe open as well.
    while os.getppid() == parent:
      time.sleep(1.0)
    os.killpg(os.getpgrp(), signal.SIGKILL)  # What a verifier started, too.

  threading.Thread(target=watch, daemon=True).start()


def ignore_signals() -> None:
  """Leaves it to the parent when a worker ends."""
  # A function rather than SIG_IGN, which processes started by a verifier would
  # inherit.
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: None)


def ready(
  channel: connection.Connection,
  load_all: Callable[[], dict[str, Callable]],
) -> dict[str, Callable] | None:
  """Imports and warms up functions, and tells the parent how that went.

  Sends ("ready", "") or ("failed", message).

  Returns:
    The functions by name; None if one cannot be imported.
  """
  try:
    functions = load_all()
    for function in functions.values():
      getattr(function, "warm_up", lambda: None)()
  except BaseException as error:
    channel.send(("failed", f"{type(error).__name__}: {error}"))
    return None
  channel.send(("ready", ""))
  return functions


def main(fd: int, parent: int, paths: dict[str, str]) -> None:
  """Scores rows until the pipe closes.

  Says whether it is `ready`, then receives lists of (index, Row) and answers
  each row by (index, values, failure) as soon as it is done.

  Args:
    fd: File descriptor of this end of the pipe.
    parent: Process id of the parent; when it is gone, so is the worker.
    paths: Name of each component -> import path of its function.
  """
  ignore_signals()
  exit_with(parent)
  channel = connection.Connection(fd)
  functions = ready(
    channel,
    lambda: {name: load_function(path) for name, path in paths.items()},
  )
  if functions is None:
    return
  try:
    while True:
      for index, row in channel.recv():
        result = score_row(functions, row)
        signal.alarm(0)  # One left behind would strike the next row.
        channel.send((index, *result))
  except (EOFError, OSError):
    return

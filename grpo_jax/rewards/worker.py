"""The process in which host reward functions run; started by `pool.py`.

A worker is a fresh interpreter: it imports the reward functions and their
dependencies, and neither the main program nor jax. Functions run in its main
thread, because math-verify ends hanging comparisons by a signal.

`functions.py` says what a reward function is. Of its results None means that
the reward does not apply to this row and is left out of its sum. What is no
answer makes the row unscored, whatever its other components say: NaN, an
exception, a wrong number of results, something that is not a number, or no
result before the deadline.
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

import asyncio
import math
import os
import signal
import traceback
import typing
from collections.abc import Callable, Mapping, Sequence

from grpo_jax.rewards import frames, processes
from grpo_jax.rewards import functions as functions_lib

# The name of the function that scores steps; no component can have it.
STEPS = "steps of a completion"

# [prompt, completion, id, extra, token ids or None]
Row = Sequence[typing.Any]
# Values of each function for each row, and the first failure.
Verdict = tuple[list[list[typing.Any]], frames.Failure | None]


def _number(value: typing.Any) -> float | None:
  """A reward, or None for "does not apply".

  Raises:
    TypeError: It is no number.
  """
  if value is None:
    return None
  if not isinstance(value, typing.SupportsFloat):
    raise TypeError(
      f"returned {type(value).__name__}; needed is a number or None"
    )
  return float(value)


def _steps(value: typing.Any) -> list[tuple[int, float]]:
  """The scores of the steps of a completion.

  Raises:
    TypeError, ValueError: It is no list of (end, score).
  """
  return [(int(end), float(score)) for end, score in value]


def _values(result: typing.Any, num_rows: int) -> list[typing.Any]:
  if len(result) != num_rows:
    raise ValueError(
      f"returned {len(result)} results for {num_rows}"
      f" row{'s' if num_rows > 1 else ''}; needed is one per row"
    )
  return list(result)


def failure_of(name: str, error: BaseException) -> frames.Failure:
  """How a row has failed whose function, of this name, raised the error."""
  kind = "timeout" if isinstance(error, TimeoutError) else "raised"
  place = "".join(
    f" ({os.path.basename(frame.filename)}:{frame.lineno})"
    for frame in traceback.extract_tb(error.__traceback__)[-1:]
  )
  return kind, f"{name}: {type(error).__name__}: {str(error)[:300]}{place}"


def score_unit(
  called: Mapping[str, functions_lib.RewardFunction], rows: Sequence[Row]
) -> Verdict:
  """Applies every function to one row, or to the rows of one prompt.

  Returns:
    Of each function one value per row, None where it does not apply or has
    failed; and the first failure.
  """
  results: dict[str, typing.Any] = {}
  for name, function in called.items():
    try:
      results[name] = function(*_columns(rows), **_tokens(function, rows))
    except BaseException as error:  # Also SystemExit of a verifier.
      results[name] = error
  return _verdict(results, len(rows))


async def _gathered(
  called: Mapping[str, functions_lib.RewardFunction],
  units: Sequence[Sequence[Row]],
  timeout_s: float,
) -> list[Verdict]:
  """Applies `async` functions to all units at the same time."""

  async def one(function, rows):
    asked = function(*_columns(rows), **_tokens(function, rows))
    return await asyncio.wait_for(asked, timeout_s)

  found = await asyncio.gather(
    *(one(function, rows) for rows in units for function in called.values()),
    return_exceptions=True,
  )
  results = iter(found)
  return [
    _verdict({name: next(results) for name in called}, len(rows))
    for rows in units
  ]


def _columns(rows: Sequence[Row]) -> list[list[typing.Any]]:
  return [[row[i] for row in rows] for i in range(4)]


def _tokens(
  function: functions_lib.RewardFunction, rows: Sequence[Row]
) -> dict[str, typing.Any]:
  if "tokens" not in functions_lib.asks_for(function):
    return {}
  return {"tokens": [row[4] for row in rows]}


def _verdict(results: Mapping[str, typing.Any], num_rows: int) -> Verdict:
  """Values of what functions have returned or, as an exception, raised."""
  columns, failure = [], None
  for name, result in results.items():
    column: list[typing.Any] = [None] * num_rows
    parse = _steps if name == STEPS else _number
    try:
      if isinstance(result, BaseException):
        raise result
      column = [parse(value) for value in _values(result, num_rows)]
    except BaseException as error:
      failure = failure or failure_of(name, error)
    if any(isinstance(x, float) and math.isnan(x) for x in column):
      failure = failure or ("nan", f"{name}: returned NaN")
      column = [None] * num_rows
    columns.append(column)
  return columns, failure


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


def main(fd: int, parent: int, argument: Mapping[str, typing.Any]) -> None:
  """Scores rows until the pipe closes.

  Says whether it is `ready`, then answers each question, in their order. A
  question is [kind, units]: which of `functions.KINDS`, and lists of rows.

  Args:
    fd: File descriptor of this end of the pipe.
    parent: Process id of the parent; when it is gone, so is the worker.
    argument: "functions": name of each component -> import path; "options":
      name -> keyword arguments; "context": fields of `functions.Context`.
  """
  channel = start(fd, parent)
  context = functions_lib.Context(**argument["context"])
  loaded = ready(
    channel,
    lambda: {
      name: functions_lib.bound(
        path, argument["options"].get(name, {}), context
      )
      for name, path in argument["functions"].items()
    },
  )
  if loaded is None:
    return
  by_kind = [
    {name: f for name, f in loaded.items() if functions_lib.kind(f) == kind}
    for kind in functions_lib.KINDS
  ]
  try:
    while True:
      number, (kind, units) = channel.receive()
      called = by_kind[kind]
      if functions_lib.KINDS[kind].is_async:
        answer = asyncio.run(_gathered(called, units, context.timeout_s))
      else:
        answer = [score_unit(called, rows) for rows in units]
      signal.alarm(0)  # One left behind would strike the next row.
      channel.send(frames.encode([number, answer, None]))
  except (EOFError, OSError):  # Also of a process that a verifier has forked.
    return

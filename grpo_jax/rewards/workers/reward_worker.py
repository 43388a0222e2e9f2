"""The process in which host reward functions run; started by `pool.py`.

A worker is a fresh interpreter: it imports the reward functions and their
dependencies, and neither the main program nor jax. Functions run in its main
thread, because math-verify ends hanging comparisons by a signal.

`registry.py` defines a reward function. A result of None means that the reward
does not apply to this row and is left out of its sum. Some results make the row
unscored, whatever its other components are: NaN, an exception, a wrong number
of results, something that is not a number, or no result before the deadline.
Deviation from libraries that take NaN or 0 for all of these: a component that
failed must never act as a reward.

If the function has an attribute `warm_up`, a worker calls it before its first
row, outside any deadline: the place for slow imports and whatever else the
first row would wait for.

A function gets the environment variables of `processes.VARIABLES`, and those
that `config.rewards.variables` names. A process that it forks cannot answer in
its place, and ends with the worker. But code in the worker's own process can
forge the answers to this row and to later ones: code that a policy wrote needs
a process of its own, at least.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import math
import os
import signal
import sys
import time
import traceback
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence

from grpo_jax import ranges
from grpo_jax.rewards import registry
from grpo_jax.rewards.workers import frames, processes

# The name of the function that scores steps; no component can have it.
STEPS = "steps of a completion"

# [prompt, completion, id, extra, token ids or None]
Row = Sequence[typing.Any]
# Values of each function for each row, and the first failure.
UnitRewards = tuple[list[list[typing.Any]], frames.Failure | None]


# Number of checks, in the time of a row, that the other rows get their time.
_LOOKS = 20
_CANCELLED_S = 0.2  # For the end of late rows that were cancelled.

# Files whose frames are not the user's.
_HERE = (
  __file__,
  registry.__file__,
  asyncio.runners.__file__,
  asyncio.tasks.__file__,
  asyncio.base_events.__file__,
)


def _number(value: typing.Any) -> float | None:
  """Returns a reward, or None for "does not apply".

  Raises:
    TypeError: The value is not a number.
  """
  if value is None or type(value) is float:  # Checking protocols is slow.
    return value
  try:
    return frames.plain_number(value)
  except (TypeError, ValueError) as error:
    raise TypeError(
      f"returned {_describe(value)} for a row; needs a number or None"
    ) from error


def _steps(value: typing.Any) -> list[tuple[int, float]]:
  """Returns the scores of the steps of a completion.

  Raises:
    TypeError, ValueError: The value is not a list of (end, score).
  """
  return [(int(end), frames.plain_number(score)) for end, score in value]


def _values(result: typing.Any, num_rows: int) -> list[typing.Any]:
  """Returns the results of a function.

  Raises:
    TypeError, ValueError: The function has returned something else.
  """
  need = f"needs a list with a number, or None, for each row ({num_rows} here)"
  if result is None:
    raise TypeError(f"returned None: is a `return` missing? {need}")
  is_list = hasattr(result, "__len__") and hasattr(result, "__iter__")
  if not is_list or isinstance(result, (str, bytes, Mapping)):
    raise TypeError(f"returned {_describe(result)}; {need}")
  if getattr(result, "ndim", 1) == 0 or len(result) != num_rows:
    count = 1 if getattr(result, "ndim", 1) == 0 else len(result)
    raise ValueError(
      f"returned {count} results for {num_rows}"
      f" row{'s' if num_rows > 1 else ''}; needs one per row"
    )
  return list(result)


def _describe(value: typing.Any) -> str:
  """Describes a wrong value, for a message."""
  if inspect.iscoroutine(value):
    value.close()
    return "a coroutine: write `async def`, so that it is awaited"
  return f"{value!r:.60} ({type(value).__name__})"


def failure_of(
  name: str,
  error: BaseException,
  function: Callable[..., typing.Any] | None = None,
) -> frames.Failure:
  """Returns the failure of a row, with the place of the function."""
  kind = "timeout" if isinstance(error, TimeoutError) else "raised"
  place = place_of(error, function)
  return kind, f"{name}: {type(error).__name__}: {str(error)[:300]}{place}"


def place_of(
  error: BaseException, function: Callable[..., typing.Any] | None
) -> str:
  """Returns the place of an error: the function's line, and the one below it.

  If the function did not raise the error, as with a wrong result, the place is
  the beginning of the function.
  """
  calls = [
    frame
    for frame in traceback.extract_tb(error.__traceback__)
    if frame.filename not in _HERE
  ]
  # The caller of a library says more than the library.
  calls = [x for x in calls if "site-packages" not in x.filename] or calls
  plain = registry.plain_of(function) if function else None
  code = getattr(plain, "__code__", None)
  if code is None:
    return "".join(_line(x.filename, x.lineno, x.line) for x in calls[-1:])
  if not calls:
    return _line(code.co_filename, code.co_firstlineno, "")
  own = [x for x in calls if x.filename == code.co_filename][-1:]
  return "".join(
    _line(x.filename, x.lineno, x.line)
    for x in (*own, *(calls[-1:] if calls[-1:] != own else ()))
  )


def _line(filename: str, number: int | None, text: str | None) -> str:
  quoted = f": `{text[:80]}`" if text else ""
  return f" ({os.path.basename(filename)}:{number}{quoted})"


# The domains of prompts for which a function is called, by its name.
Domains = Mapping[str, Collection[int]]


def _applies(name: str, rows: Sequence[Row], domains: Domains) -> bool:
  """Returns True if a function is for the prompt of these rows."""
  return name not in domains or rows[0][3].get("domain") in domains[name]


def score_unit(
  called: Mapping[str, registry.RewardFunction],
  rows: Sequence[Row],
  domains: Domains = types.MappingProxyType({}),
) -> UnitRewards:
  """Applies every function to one row, or to the rows of one prompt.

  A function is not called for prompts of other domains than its own.

  Returns:
    For each function one value per row, None if it does not apply or has
    failed; and the first failure.
  """
  results: dict[str, typing.Any] = {}
  for name, function in called.items():
    if not _applies(name, rows, domains):
      results[name] = [None] * len(rows)
      continue
    try:
      results[name] = function(*_columns(rows), **_tokens(function, rows))
    except BaseException as error:  # Also SystemExit from a verifier.
      results[name] = error
  return _unit_rewards(results, len(rows), called)


class _BlockedError(Exception):
  """The error of a row that did not yield and took the time of others."""


def _score_together(
  called: Mapping[str, registry.RewardFunction],
  units: Sequence[Sequence[Row]],
  timeout_s: float,
  domains: Domains,
) -> list[UnitRewards]:
  """Applies `async` functions to all units at the same time.

  Each unit has its deadline. Rows that end the interpreter, stop the loop or go
  on when they are cancelled fail alone: the loop is run again, and their tasks
  are left behind in it.

  Raises:
    _BlockedError: A unit is late, there are several, and one did not yield.
  """
  loop = asyncio.new_event_loop()
  asyncio.set_event_loop(loop)

  async def apply(name, function, rows):
    if not _applies(name, rows, domains):
      return [None] * len(rows)
    return await function(*_columns(rows), **_tokens(function, rows))

  tasks = [
    loop.create_task(apply(name, function, rows))
    for rows in units
    for name, function in called.items()
  ]
  longest_s = _run(loop, tasks, timeout_s)
  results = [_result(task) for task in tasks]
  if open_tasks := asyncio.all_tasks(loop):
    for task in open_tasks:
      task.cancel()
    _run(loop, open_tasks, _CANCELLED_S)
  if not asyncio.all_tasks(loop):
    loop.close()
  is_late = any(isinstance(x, TimeoutError) for x in results)
  if is_late and len(units) > 1 and longest_s > timeout_s / 2:
    raise _BlockedError
  outcomes = iter(results)
  return [
    _unit_rewards({name: next(outcomes) for name in called}, len(rows), called)
    for rows in units
  ]


def _run(
  loop: asyncio.AbstractEventLoop,
  tasks: Collection[asyncio.Task],
  timeout_s: float,
) -> float:
  """Runs a loop until tasks are done, or the time is over.

  Returns:
    The longest time for which no task has yielded, seconds.
  """
  longest_s = 0.0

  async def wait() -> None:
    nonlocal longest_s
    end = time.monotonic() + timeout_s
    while (now := time.monotonic()) < end and not all(x.done() for x in tasks):
      pause_s = min(end - now, timeout_s / _LOOKS)
      await asyncio.wait(tasks, timeout=pause_s)
      longest_s = max(longest_s, time.monotonic() - now - pause_s)

  waiting = loop.create_task(wait())
  while not waiting.done():
    # A row may stop the loop, and its exception may leave the loop. The row
    # keeps its error, and the others go on.
    with contextlib.suppress(BaseException):
      loop.run_until_complete(waiting)
  return longest_s


def _result(task: asyncio.Task) -> typing.Any:
  """Returns the result of a task, or its exception as a value."""
  if not task.done():
    return TimeoutError()
  if task.cancelled():
    return asyncio.CancelledError()
  return task.exception() or task.result()


def _columns(rows: Sequence[Row]) -> list[list[typing.Any]]:
  return [list(column) for column in zip(*rows, strict=True)][:4]


def _tokens(
  function: registry.RewardFunction, rows: Sequence[Row]
) -> dict[str, typing.Any]:
  if "tokens" not in registry.asks_for(function):
    return {}
  return {"tokens": [row[4] for row in rows]}


def _unit_rewards(
  results: Mapping[str, typing.Any],
  num_rows: int,
  called: Mapping[str, registry.RewardFunction],
) -> UnitRewards:
  """Returns the values of results; an exception among them is a failure."""
  columns, failure = [], None
  for name, result in results.items():
    if name != STEPS and _is_usual(result, num_rows):
      columns.append(result)
      continue
    column: list[typing.Any] = [None] * num_rows
    parse = _steps if name == STEPS else _number
    try:
      if isinstance(result, BaseException):
        raise result
      column = [parse(value) for value in _values(result, num_rows)]
    except BaseException as error:
      failure = failure or failure_of(name, error, called[name])
    scores = [
      x for y in column for x in ([s for _, s in y] if type(y) is list else [y])
    ]
    bad = [
      x for x in scores if x is not None and not abs(x) <= ranges.MAX_REWARD
    ]
    if bad:
      where = place_of(ValueError(), called[name])
      number = "NaN" if math.isnan(bad[0]) else f"{bad[0]:g}"
      number += ", which is beyond 1e15" if math.isfinite(bad[0]) else ""
      failure = failure or ("nan", f"{name}: returned {number}{where}")
      column = [None] * num_rows
    columns.append(column)
  return columns, failure


def _is_usual(result: typing.Any, num_rows: int) -> bool:
  """Returns True if a result needs no further check, which would be slow."""
  return (
    type(result) is list
    and len(result) == num_rows
    and all(type(x) is float and abs(x) <= ranges.MAX_REWARD for x in result)
  )


def start(fd: int, parent: int) -> frames.Channel:
  """Forks a worker and returns in it; the process that calls is its keeper.

  Args:
    fd: File descriptor of this end of the pipe.
    parent: Process id of the parent; when it is gone, so is the worker.
  """
  # The parent decides when a worker ends. A function rather than SIG_IGN, which
  # processes started by a verifier would inherit.
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: None)
  processes.keep(parent, [fd], is_brief=True)
  for stream in (sys.stdout, sys.stderr):
    assert isinstance(stream, io.TextIOWrapper)
    stream.reconfigure(line_buffering=True)  # A row may end the process.
  channel = frames.Channel(fd)
  channel.close_in_forks()
  return channel


def ready(
  channel: frames.Channel,
  load_all: Callable[[], dict[str, Callable]],
) -> dict[str, Callable] | None:
  """Imports and warms up functions, and reports success or failure.

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

  The worker first reports that it is `ready`, then answers each question, in
  their order. A question is [kind, units]: an index of `registry.KINDS`, and
  lists of rows.

  Args:
    fd: File descriptor of this end of the pipe.
    parent: Process id of the parent; when it is gone, so is the worker.
    argument: "functions": name of each component -> import path; "options":
      name -> keyword arguments; "context": fields of `registry.Context`;
      "domains": see `score_unit`.
  """
  channel = start(fd, parent)
  context = registry.Context(**argument["context"])
  domains = argument["domains"]
  functions = ready(
    channel,
    lambda: {
      name: registry.bound(path, argument["options"].get(name, {}), context)
      for name, path in argument["functions"].items()
    },
  )
  if functions is None:
    return
  by_kind = [
    {name: f for name, f in functions.items() if registry.kind(f) == kind}
    for kind in registry.KINDS
  ]
  try:
    while True:
      number, (kind, units) = channel.receive()
      called = by_kind[kind]
      if registry.KINDS[kind].is_async:
        answer = _score_together(called, units, context.timeout_s, domains)
      else:
        answer = [score_unit(called, rows, domains) for rows in units]
      signal.alarm(0)  # An alarm left behind would strike the next row.
      channel.send(frames.encode([number, answer, None]))
  except (EOFError, OSError):  # Also in a process that a verifier has forked.
    return
  except _BlockedError:  # Each row is tried alone by another worker.
    return

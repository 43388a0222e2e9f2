"""The process that holds sessions of a host environment; see `sessions.py`.

A worker is a fresh interpreter that imports the factory, and jax only if that
does. Each session runs in a process of its own, which the worker forks, in its
main thread, and in which nothing of another session can be seen. So one that
hangs or crashes is killed together with whatever it started, and its neighbours
go on. A worker works on one row at a time.

If the factory has an attribute `warm_up`, a worker calls it once, before it
forks anything and outside any deadline: the place for slow imports. Threads
that are started there do not exist in the sessions. If it has an attribute
`before_session`, a worker calls it each time before it forks: the place to
replace what sessions share and one of them may have broken. An exception there
is a failure of the row.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import math
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import connection
from typing import Any, NamedTuple

from grpo_jax.rewards import worker as worker_lib

_CLOSE_S = 5.0  # For `close` of a session whose scores are known.
# Between the deadline that the worker watches and that of the session itself.
_SLACK_S = 5.0


class Beginning(NamedTuple):
  """What a session is made of."""

  prompt: str
  extras: dict[str, Any]
  seed: int


class Request(NamedTuple):
  """What a row asks for.

  Attributes:
    rollout: Number of the rollout; sessions of earlier ones are killed.
    beginning: Of a new session; None for the one that the row has.
    action: To be answered; None if only the scores are asked for.
    is_last: There is no other action.
  """

  rollout: int
  beginning: Beginning | None
  action: str | None
  is_last: bool


class Answer(NamedTuple):
  """What a session says.

  Attributes:
    observation, reward, done: Of the action; "", 0.0, False if there was none.
    scores: At the end, by name, None for one that does not apply; before it
      None.
  """

  observation: str
  reward: float
  done: bool
  scores: dict[str, float | None] | None


def load_factory(path: str) -> Callable[..., Any]:
  """Imports the factory of sessions.

  Raises:
    ValueError: Nothing callable is found there.
  """
  return worker_lib.load(path, "environment", {})


# In the process of a session.


def _answer(session: Any, request: Request) -> Answer:
  """One turn, or the scores alone.

  Raises:
    TypeError, ValueError: What the session says is not what it should be.
  """
  observation, reward, done = "", 0.0, False
  if request.action is not None:
    observation, reward, done = session.step(request.action)
    if not isinstance(observation, str):
      raise TypeError(
        f"step returned {type(observation).__name__} for an observation; needed"
        " is a str"
      )
    reward, done = float(reward), bool(done)
  scores = None
  if done or request.is_last:
    scores = {
      str(name): None if value is None else float(value)
      for name, value in session.scores().items()
    }
  return Answer(observation, reward, done, scores)


def _is_finite(answer: Answer) -> bool:
  values = (answer.reward, *(answer.scores or {}).values())
  return all(x is None or math.isfinite(x) for x in values)


def _play(
  make: Callable[..., Any],
  channel: connection.Connection,
  parent: int,
  timeout_s: float,
  devnull: int,
) -> None:
  """Answers the requests of one row until its scores are known."""

  def exit_after(seconds: float) -> None:
    # What holds the interpreter's lock, as a regular expression does, also
    # stops the thread of `exit_with`. This one is not Python's, and ends the
    # process if there is no worker any more that would.
    faulthandler.dump_traceback_later(
      seconds + _SLACK_S, exit=True, file=devnull
    )

  worker_lib.exit_with(parent)
  session = None
  while True:
    request = channel.recv()
    exit_after(timeout_s)
    answer, failure = None, None
    try:
      if request.beginning is not None:
        random.seed(request.beginning.seed)  # Nor does a fork repeat it.
        session = make(*request.beginning)
      answer = _answer(session, request)
      if not _is_finite(answer):
        failure = "nan", f"environment: {answer} has a number that is none"
    except BaseException as error:  # Also SystemExit of a tool.
      failure = worker_lib.failure_of("environment", error)
    signal.alarm(0)
    faulthandler.cancel_dump_traceback_later()
    over = failure is not None or (answer and answer.scores is not None)
    channel.send((None if failure else answer, failure))
    if over:
      break
  close = getattr(session, "close", None)
  if close is not None:
    exit_after(_CLOSE_S)
    try:
      close()
    except BaseException:  # The verdict is known.
      traceback.print_exc()


# In the worker.


class _Session(NamedTuple):
  pid: int
  channel: connection.Connection


class _Sessions:
  """Of the rows of one rollout, as far as this worker has them."""

  def __init__(self, make: Callable[..., Any], timeout_s: float, fd: int):
    self._make = make
    self._timeout_s = timeout_s
    self._fd = fd  # Of the worker's own channel.
    self._devnull = os.open(os.devnull, os.O_WRONLY)
    self._rollout = -1
    self._live: dict[int, _Session] = {}
    # Those that are closing, with the time at which they have to be gone.
    self._closing: collections.deque[tuple[float, _Session]] = (
      collections.deque()
    )

  def serve(
    self, row: int, request: Request
  ) -> tuple[Answer | None, worker_lib.Failure | None]:
    """What the row's session answers before the deadline, or how it failed."""
    self.bury()
    if request.rollout != self._rollout:
      self.kill()
      self._rollout = request.rollout
    if request.beginning is not None:
      failure = self._begin(row)
      if failure is not None:
        return None, failure
    if row not in self._live:
      return None, ("worker_died", "the session ended with its worker")
    session = self._live[row]
    try:
      session.channel.send(request)
      if not session.channel.poll(self._timeout_s):
        self._kill(self._live.pop(row))
        return None, ("timeout", f"environment: {self._timeout_s} s are over")
      answer, failure = session.channel.recv()
    except (EOFError, OSError):
      self._kill(self._live.pop(row))
      return None, ("worker_died", "environment: the session's process ended")
    if failure is not None or answer.scores is not None:
      end = time.monotonic() + _CLOSE_S
      self._closing.append((end, self._live.pop(row)))
    return answer, failure

  def _begin(self, row: int) -> worker_lib.Failure | None:
    """Forks a session, or says why there is none."""
    try:
      getattr(self._make, "before_session", lambda: None)()
    except Exception as error:
      return worker_lib.failure_of("environment", error)
    try:
      self._live[row] = self._fork()
    except OSError as error:  # Of pipes or processes there are too many.
      return "raised", (
        f"environment: no process for a session: {error}; raise"
        " config.rewards.num_workers or the limit of open files (ulimit -n)"
      )
    return None

  def _fork(self) -> _Session:
    ours, theirs = multiprocessing.Pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
      theirs.close()
      return _Session(pid, ours)
    status = 1
    try:
      os.setsid()  # A group of its own, with whatever it starts.
      os.close(self._fd)
      ours.close()
      for session in (*self._live.values(), *(s for _, s in self._closing)):
        session.channel.close()
      with contextlib.suppress(EOFError):
        _play(self._make, theirs, parent, self._timeout_s, self._devnull)
      status = 0
    except BaseException:
      traceback.print_exc()
    finally:
      # Whatever it started ends with it: the worker may be gone, as at the end
      # of the run. There is no such group if it was not made.
      with contextlib.suppress(OSError):
        os.killpg(os.getpid(), signal.SIGKILL)
      os._exit(status)  # Without what the worker would do at its end.

  def bury(self) -> None:
    """Kills the groups of sessions that have ended, or should have."""
    for _ in range(len(self._closing)):
      end, session = self._closing.popleft()
      # Nothing more is said, so what can be read is the end of the pipe.
      if session.channel.poll() or time.monotonic() >= end:
        self._kill(session)
      else:
        self._closing.append((end, session))

  def _kill(self, session: _Session) -> None:
    # The group still exists: its leader is not waited for before this line.
    # Only a session that has not come as far as to make it has none.
    for kill in (os.killpg, os.kill):
      with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(session.pid, signal.SIGKILL)
    session.channel.close()
    os.waitpid(session.pid, 0)

  def kill(self) -> None:
    """Ends all sessions."""
    for session in (*self._live.values(), *(s for _, s in self._closing)):
      self._kill(session)
    self._live.clear()
    self._closing.clear()


def main(fd: int, parent: int, arguments: Mapping[str, Any]) -> None:
  """Serves rows until the pipe closes.

  Says whether it is `worker.ready`, then receives lists of (row, Request) and
  answers each by (row, Answer or None, failure or None).

  Args:
    fd: File descriptor of this end of the pipe.
    parent: Process id of the parent; when it is gone, so is the worker.
    arguments: "path" of the factory and "timeout_s", seconds for a request.
  """
  worker_lib.ignore_signals()
  channel = connection.Connection(fd)
  functions = worker_lib.ready(
    channel, lambda: {"make": load_factory(arguments["path"])}
  )
  if functions is None:
    return
  sessions = _Sessions(functions["make"], arguments["timeout_s"], fd)
  try:
    while True:
      # No thread watches the parent, as in `worker.py`: a fork should find
      # none. Sessions watch this process, and end with it.
      while not channel.poll(1.0):
        sessions.bury()
        if os.getppid() != parent:
          return
      for row, request in channel.recv():
        channel.send((row, *sessions.serve(row, request)))
  except (EOFError, OSError):
    return
  finally:
    sessions.kill()

"""The process that holds sessions of a host environment; see `sessions.py`.

A worker is a fresh interpreter that imports the factory, and jax only if the
factory does. Each session runs in a process of its own, which the worker forks,
in its main thread, and in which nothing of another session can be seen. So a
session that hangs or crashes, or gives an answer to another question
(`frames.py`), is killed with all that it started (`processes.py`), and the
other sessions go on. Several rows may be at work at the same time; each has a
deadline of its own.

If the factory has an attribute `warm_up`, a worker calls it once, before it
forks anything and outside any deadline: the place for slow imports. Threads
that are started there do not exist in the sessions. If the factory has an
attribute `before_session`, a worker calls it each time before it forks: the
place to replace something that sessions share and that one of them may have
broken. An exception there is a failure of the row. Both are called with the
options of the factory.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import math
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from grpo_jax import ranges
from grpo_jax.rewards import registry
from grpo_jax.rewards.agents.interceptor import Observation
from grpo_jax.rewards.workers import frames, processes, reward_worker

_CLOSE_S = 5.0  # For `close` of a session whose scores are known.
_BURY_S = 1.0  # Between two looks of an idle worker at closing sessions.


class Beginning(NamedTuple):
  """The arguments of a session's factory."""

  prompt: str
  extras: dict[str, Any]
  seed: int


class SessionRequest(NamedTuple):
  """A request of a row to its session.

  Attributes:
    rollout: Number of the rollout; sessions of earlier ones are killed.
    row: The row of the rollout.
    beginning: Arguments of a new session; None for the row's present session.
    action: The action to answer; None if only the scores are asked for.
    is_last: True if no other action follows.
  """

  rollout: int
  row: int
  beginning: Beginning | None
  action: str | None
  is_last: bool


class SessionAnswer(NamedTuple):
  """An answer of a session.

  Attributes:
    observation, reward, done: Answer to the action; "", 0.0, False without an
      action.
    scores: At the end, scores by name, None for a score that does not apply;
      before the end None.
  """

  observation: Observation
  reward: float
  done: bool
  scores: dict[str, float | None] | None


def answer_of(content: Any) -> SessionAnswer:
  """Returns the `SessionAnswer` in a value of JSON.

  Raises:
    ValueError: The value is not one, or has a number that cannot be a reward.
  """
  match content:
    case [observation, reward, bool(done), None | dict() as scores]:
      scores = scores and {
        name: None if value is None else frames.reward(value)
        for name, value in scores.items()
      }
      return SessionAnswer(
        _observation(observation), frames.reward(reward), done, scores
      )
  raise ValueError(f"no answer of a session: {content!r:.80}")


def _observation(value: Any) -> Observation:
  match value:
    case str():
      return value
    case [*parts] if _is_markup(parts):
      return tuple(parts)
  raise ValueError(f"no observation: {value!r:.80}")


def _is_markup(parts: Any) -> bool:
  """Returns True for markup and texts by turns, with markup at both ends."""
  return (
    isinstance(parts, (list, tuple))
    and len(parts) >= 3
    and len(parts) % 2 == 1
    and all(isinstance(part, str) for part in parts)
  )


def load_factory(
  path: str, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
  """Imports the factory of sessions, and gives it its options.

  Args:
    path: "package.module:function".
    options: Options by name, for the factory and for its attributes `warm_up`,
      `before_session`, `schemas`, `in_chat`, `problem` and `lesson`, as far as
      it has them.

  Raises:
    ValueError: The path does not lead to something callable; or it has no
      argument of an option's name, or lacks a required argument.
  """
  factory = registry.load(path, "environment", {})
  options = dict(options or {})
  _check_options(path, factory, options)
  if not options:
    return factory
  maker = functools.partial(factory, **options)
  vars(maker)["serial"] = getattr(factory, "serial", False)
  for name in (
    *("warm_up", "before_session", "schemas", "in_chat", "problem", "lesson"),
  ):
    if hasattr(factory, name):
      setattr(maker, name, functools.partial(getattr(factory, name), **options))
  return maker


def _check_options(
  path: str, factory: Callable[..., Any], options: Mapping[str, Any]
) -> None:
  try:
    signature = inspect.signature(factory)
  except ValueError:  # The signature of some functions in C is unknown.
    return
  try:
    signature.bind("", {}, 0, **options)
  except TypeError as error:
    own = list(signature.parameters)[len(Beginning._fields) :]
    raise ValueError(
      f"environment '{path}' with config.environment.options={options}:"
      f" {error}; beside the prompt, the extras and the seed it takes"
      f" {', '.join(own) or 'nothing'}."
    ) from None


# The part in the process of a session.


def _answer(session: Any, request: SessionRequest) -> SessionAnswer:
  """Answers one action, or returns the scores alone.

  Raises:
    TypeError, ValueError: The session's answer has a wrong form.
  """
  observation: Observation = ""
  reward, done = 0.0, False
  if request.action is not None:
    observation, reward, done = session.step(request.action)
    if not (isinstance(observation, str) or _is_markup(observation)):
      raise TypeError(
        f"step returned {observation!r:.80} for an observation; needs a"
        " str, or three of them: before the text, the text, after it; or five,"
        " seven, …, of several texts"
      )
    reward, done = frames.plain_number(reward), bool(done)
  scores = None
  if done or request.is_last:
    scores = {
      str(name): None if value is None else frames.plain_number(value)
      for name, value in session.scores().items()
    }
  return SessionAnswer(observation, reward, done, scores)


def _play(make: Callable[..., Any], channel: frames.Channel) -> None:
  """Answers the requests of one row until its scores are known."""
  session = None
  over = False
  while not over:
    number, request = channel.receive()
    request = _request(request)
    answer, failure = None, None
    try:
      if request.beginning is not None:
        _seed(request.beginning.seed)
        session = make(*request.beginning)
      answer = _answer(session, request)
      values = (answer.reward, *(answer.scores or {}).values())
      if not all(x is None or abs(x) <= ranges.MAX_REWARD for x in values):
        failure = (
          "nan",
          f"environment: {str(answer)[:300]}: a number that is NaN, infinite or"
          " beyond 1e15",
        )
    except BaseException as error:  # Also SystemExit from a tool.
      failure = reward_worker.failure_of("environment", error)
    signal.alarm(0)
    over = failure is not None or bool(answer and answer.scores is not None)
    try:
      message = frames.encode([number, answer, failure])
    except ValueError as error:  # The answer is too long.
      over, failure = True, ("raised", f"environment: {error}")
      message = frames.encode([number, None, failure])
    channel.send(message)
  close = getattr(session, "close", None)
  if close is not None:
    try:
      close()
    except BaseException:  # The scores are known already.
      traceback.print_exc()


def _seed(seed: int) -> None:
  """Seeds the process's random numbers: forks would draw alike."""
  random.seed(seed)
  if (of_numpy := sys.modules.get("numpy.random")) is not None:
    of_numpy.seed(seed % 2**32)


def _request(message: Any) -> SessionRequest:
  rollout, row, beginning, action, is_last = message
  beginning = beginning and Beginning(*beginning)
  return SessionRequest(rollout, row, beginning, action, is_last)


# The part in the worker.


class _Session(NamedTuple):
  keeper: int  # Process id.
  channel: frames.Channel


class _Question(NamedTuple):
  number: int  # Number of the question.
  end: float  # Deadline of its answer; time.monotonic().


class _Sessions:
  """The sessions in this worker, for rows of one rollout."""

  def __init__(
    self,
    make: Callable[..., Any],
    timeout_s: float,
    say: Callable[[int, SessionAnswer | None, frames.Failure | None], None],
  ):
    self._make = make
    self._timeout_s = timeout_s
    self._say = say
    # NumPy would import it in each session, and draw by no seed.
    getattr(sys.modules.get("numpy"), "random", None)
    self._rollout = -1
    self._live: dict[int, _Session] = {}
    self._questions: dict[int, _Question] = {}  # By row; of live sessions.
    # Closing sessions, with the time at which they have to be gone.
    self._closing: collections.deque[tuple[float, _Session]] = (
      collections.deque()
    )

  @property
  def channels(self) -> dict[frames.Channel, int]:
    """Channels of sessions with an open question, with their rows."""
    return {self._live[row].channel: row for row in self._questions}

  @property
  def end(self) -> float:
    """The next deadline of an answer; time.monotonic()."""
    return min((x.end for x in self._questions.values()), default=math.inf)

  def ask(self, number: int, request: SessionRequest) -> None:
    """Sends a request to a session, or answers that there is none."""
    row = request.row
    if request.rollout != self._rollout:
      self.kill()
      self._rollout = request.rollout
    if request.beginning is not None:
      failure = self._begin(row)
      if failure is not None:
        self._say(number, None, failure)
        return
    if row not in self._live:
      failure = "worker_died", "the session ended with its worker"
      self._say(number, None, failure)
      return
    self._questions[row] = _Question(number, time.monotonic() + self._timeout_s)
    self._live[row].channel.write(frames.encode([number, request]))

  def hear(self, row: int) -> None:
    """Reads a session's answer, and passes it on."""
    channel, number = self._live[row].channel, self._questions[row].number
    channel.flush()
    try:
      channel.read()
      message = next(channel.messages(), None)
      if message is None:
        return
      reply = frames.answer(message)
      if reply.number != number:
        raise ValueError("it answered what it was not asked")
      answer = None if reply.failure else answer_of(reply.content)
    except (EOFError, ValueError) as error:
      why = str(error) or "the session's process ended"
      self._lose(row, ("worker_died", f"environment: {why}"))
      return
    self._questions.pop(row)
    if answer is None or answer.scores is not None:
      end = time.monotonic() + _CLOSE_S
      self._closing.append((end, self._live.pop(row)))
    self._say(number, answer, reply.failure)

  def lose_late(self) -> None:
    """Kills sessions that have not answered in time."""
    now = time.monotonic()
    for row, question in list(self._questions.items()):
      if now >= question.end:
        message = f"environment: {self._timeout_s} s are over"
        self._lose(row, ("timeout", message))

  def _lose(self, row: int, failure: frames.Failure) -> None:
    number = self._questions.pop(row).number
    self._kill(self._live.pop(row))
    self._say(number, None, failure)

  def _begin(self, row: int) -> frames.Failure | None:
    """Forks a session; returns a failure if that is not possible."""
    try:
      getattr(self._make, "before_session", lambda: None)()
    except Exception as error:
      return reward_worker.failure_of("environment", error)
    try:
      self._live[row] = self._fork()
    except OSError as error:  # There are too many pipes or processes.
      return "raised", (
        f"environment: no process for a session: {error}; raise"
        " config.rewards.num_workers or the limit of open files (ulimit -n)"
      )
    return None

  def _fork(self) -> _Session:
    own_end, other_end = socket.socketpair()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
      pid = os.fork()
    except OSError:
      own_end.close()
      other_end.close()
      raise
    if pid:
      other_end.close()
      return _Session(pid, frames.Channel(own_end.detach()))
    status = 1
    try:
      os.setsid()  # A group of its own, with whatever it starts.
      own_end.close()
      for session in (*self._live.values(), *(s for _, s in self._closing)):
        session.channel.close()
      fd = other_end.detach()
      processes.keep(parent, [fd])
      channel = frames.Channel(fd)
      channel.close_in_forks()
      # When the session has ended, its keeper ends what the session started.
      with contextlib.suppress(EOFError):
        _play(self._make, channel)
      status = 0
    except BaseException:
      traceback.print_exc()
    finally:
      os._exit(status)  # Without the worker's exit handlers.

  def bury(self) -> None:
    """Waits for sessions that have ended; kills closing ones that are late."""
    for _ in range(len(self._closing)):
      end, session = self._closing.popleft()
      if os.waitpid(session.keeper, os.WNOHANG)[0]:
        session.channel.close()
      elif time.monotonic() >= end:
        self._kill(session)
      else:
        self._closing.append((end, session))

  def _kill(self, session: _Session) -> None:
    processes.end_tree(session.keeper)
    session.channel.close()
    os.waitpid(session.keeper, 0)

  def kill(self) -> None:
    """Ends all sessions."""
    for session in (*self._live.values(), *(s for _, s in self._closing)):
      self._kill(session)
    self._questions.clear()
    self._live.clear()
    self._closing.clear()


def main(fd: int, parent: int, arguments: Mapping[str, Any]) -> None:
  """Serves rows until the pipe closes.

  The worker first reports that it is ready (`reward_worker.ready`). Then it
  answers each request with the answer of its row's session.

  Args:
    fd: File descriptor of this end of the pipe.
    parent: Process id of the parent; when it is gone, so is the worker.
    arguments: "path" and "options" of the factory, and "timeout_s", seconds
      for a request.
  """
  channel = reward_worker.start(fd, parent)
  functions = reward_worker.ready(
    channel,
    lambda: {"make": load_factory(arguments["path"], arguments["options"])},
  )
  if functions is None:
    return

  def say(number, answer, failure):
    channel.write(frames.encode([number, answer, failure]))

  sessions = _Sessions(functions["make"], arguments["timeout_s"], say)
  try:
    while True:
      channels = sessions.channels
      now = time.monotonic()
      wake = min(sessions.end, now + _BURY_S)
      active = frames.wait([channel, *channels], wake - now)
      # Answers first: a request from the pool may end a rollout.
      for source in active - {channel}:
        sessions.hear(channels[source])
      sessions.lose_late()
      if channel in active:
        channel.flush()
        channel.read()
        for number, request in channel.messages():
          sessions.ask(number, _request(request))
      sessions.bury()
  except (EOFError, OSError):
    return
  finally:
    sessions.kill()

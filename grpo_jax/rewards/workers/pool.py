"""Worker processes that may hang, crash or end, and are then replaced.

Rows are handed out to workers, and each row has a deadline. A worker that
misses it, or ends, or gives an answer to another question (`frames.py`), is
killed together with whatever it started (`processes.py`). Its row has failed,
and another worker takes its place. From the first loss on, a spare worker is
kept ready, because starting one and its imports take longer than most rows. A
`PoolCall` defines the rows, and decides about the other rows of a lost worker.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import logging
import math
import os
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax import imports
from grpo_jax.rewards.workers import frames, processes

FAILURE_KINDS = frames.FAILURE_KINDS

# Most rows that a worker has: the second number if they are short. No row
# should wait behind a slow one if another worker could begin it.
CHUNKS = (8, 64)
_CHUNK_S = 0.02  # For the rows that a worker has.
_MAX_CHUNK_BYTES = 1 << 20  # Sent to a worker at a time, except for one row.
_MAX_MESSAGE = 1000  # Characters.
_MAX_ERRORS = 3
_START_TIMEOUT_S = 300.0  # A worker may import a large framework.
_LOOK_S = 0.5  # Between two looks at the memory of workers.
_GIB = 1 << 30
_MAX_BAD_STARTS = 3  # In a row, of workers that replace others.


class _OpenQuestion(NamedTuple):
  number: int  # Number of the question; see `frames.py`.
  row: int  # Index in the call.
  at: float  # time.monotonic().


@dataclasses.dataclass(eq=False)
class _Worker:
  process: subprocess.Popen
  channel: frames.Channel
  # For its greeting, then for the first row; time.monotonic().
  deadline: float
  ready: bool = False
  memory: int = 0  # Bytes of memory when it was ready.
  # Rows sent and not yet answered. The worker works on the first of them; in a
  # concurrent call it works on all, and the first is the one sent first.
  rows: collections.deque[_OpenQuestion] = dataclasses.field(
    default_factory=collections.deque
  )
  answered: dict[int, int] = dataclasses.field(default_factory=dict)


class _Stranger(ValueError):
  """The error of an answer to another question than the first open one."""

  def __init__(self, number: int):
    super().__init__("it answered what it was not asked, or asked no more")
    self.number = number


def _start_process(
  module: str, argument: Any, variables: Sequence[str]
) -> _Worker:
  """Starts a worker without waiting until it is ready.

  A plain subprocess rather than `multiprocessing.Process`: that would import
  the main program again, and with it jax, in each worker and each respawn.
  """
  own_end, other_end = socket.socketpair()
  with other_end:
    process = subprocess.Popen(
      [
        sys.executable,
        "-c",
        f"import sys; sys.path[:] = {sys.path!r};"
        " from grpo_jax import imports;"
        f" imports.look_in({imports.folder()!r});"
        f" from grpo_jax.rewards.workers import {module};"
        f" {module}.main({other_end.fileno()}, {os.getpid()}, {argument!r})",
      ],
      stdin=subprocess.DEVNULL,
      pass_fds=[other_end.fileno()],
      # A session of its own: Ctrl-C does not reach it.
      start_new_session=True,
      env=processes.environment(variables),
    )
  channel = frames.Channel(own_end.detach())
  return _Worker(process, channel, time.monotonic() + _START_TIMEOUT_S)


def _kill(worker: _Worker) -> None:
  processes.end_tree(worker.process.pid)
  worker.channel.close()
  with contextlib.suppress(subprocess.TimeoutExpired):
    worker.process.wait(timeout=5.0)


def _kill_all(workers: set[_Worker]) -> None:
  while workers:
    _kill(workers.pop())


class Failures:
  """The rows of a call that have failed, with reasons.

  Attributes:
    failed: True for each failed row.
    counts: Number of failed rows by kind: "raised", "timeout", "nan",
      "worker_died", "step_timeout" (there was no time to try the row).
    errors: Up to 3 messages, with their rows.
    messages: Message of each failed row, cut to a size that can be kept.
  """

  def __init__(self, num_rows: int):
    self.failed = np.zeros(num_rows, bool)
    self.counts = dict.fromkeys(FAILURE_KINDS, 0)
    self.errors: list[str] = []
    self.messages: dict[int, str] = {}

  def add(self, index: int, kind: str, message: str) -> None:
    """Counts a failed row once, with its first failure."""
    if self.failed[index]:
      return
    self.failed[index] = True
    self.counts[kind] += 1
    self.messages[index] = f"{kind}: {message}"[:_MAX_MESSAGE]
    if len(self.errors) < _MAX_ERRORS:
      self.errors.append(f"row {index}: {kind}: {message}")


class PoolCall:
  """Rows for the workers, each of which may take any row.

  Attributes:
    pending: Rows that no worker has.
    failures: Failures of rows so far.
    num_answered: Number of rows that workers have answered since `start`.
    start: Start of the call; time.monotonic().
    is_concurrent: True if workers work on several rows at the same time, and
      answer them in any order; False if on one row after another.
    pause_s: Seconds that answers may wait in the pipes while all workers have
      further rows. Without it, each of many short rows wakes this process.
  """

  is_concurrent = False
  pause_s = 0.0

  def __init__(self, rows: Iterable[int], failures: Failures):
    self.pending = collections.deque(rows)
    self.failures = failures
    self.num_answered = 0
    self.start = time.monotonic()

  @property
  def num_pending(self) -> int:
    return len(self.pending)

  def message(self, index: int) -> Any:
    """Returns the message to a worker about a row."""
    raise NotImplementedError

  def record(
    self, index: int, content: Any, failure: frames.Failure | None
  ) -> None:
    """Takes a worker's answer about a row.

    Raises:
      ValueError: The content has another form.
    """
    raise NotImplementedError

  def fail(self, index: int, kind: str, message: str) -> None:
    """Records that a row has failed."""
    self.failures.add(index, kind, message)

  def timeout_s(self, index: int) -> float:
    """Returns the seconds for this try of a row."""
    raise NotImplementedError

  def late(self, index: int) -> None:
    """Records that a row has missed its deadline."""
    message = f"no answer in {self.timeout_s(index):g} s"
    self.fail(index, "timeout", message)

  def take(self, slot: int, num_workers: int, num_open: int) -> list[int]:
    """Takes the next rows for the worker in this slot, which may have rows."""
    del slot
    # Smaller towards the end, so that the workers finish together.
    size = len(self.pending) // (2 * num_workers)
    size = min(max(size, 1), self._max_chunk(num_workers))
    # Rows are sent before the last one is done, so that no worker waits.
    if 2 * num_open > size:
      return []
    size = min(size - num_open, len(self.pending))
    return [self.pending.popleft() for _ in range(size)]

  def _max_chunk(self, num_workers: int) -> int:
    fewest, most = CHUNKS
    took_s = num_workers * max(time.monotonic() - self.start, 1e-6)
    return int(min(max(self.num_answered * _CHUNK_S / took_s, fewest), most))

  def put_back(self, slot: int, rows: Sequence[int]) -> None:
    """Puts rows that a worker did not begin back to the front.

    In a concurrent call these are the rows that a lost worker worked on.
    """
    del slot
    self.pending.extendleft(reversed(rows))

  def lost(self, slot: int) -> None:
    """Handles the loss of a worker; another one is in its place."""

  def out_of_time(self, rows: Sequence[int], message: str) -> None:
    """Fails these rows and all pending ones as "step_timeout"."""
    for index in (*self.pending, *rows):
      self.fail(index, "step_timeout", message)


class Pool:
  """Workers, and the loop that hands rows out to them. Not reentrant."""

  def __init__(
    self,
    caller: str,
    module: str,
    argument: Any,
    num_workers: int,
    row_timeout_s: float,
    step_timeout_s: float,
    variables: Sequence[str] = (),
    memory_gib: float = 0.0,
    meanwhile: Callable[[], None] = lambda: None,
  ):
    """Starts the workers and waits until they have imported everything.

    Args:
      caller: The owner's name in messages.
      module: Module of `grpo_jax.rewards.workers`, whose
        `main(fd, parent, argument)` is run.
      argument: Plain data that `repr` writes.
      num_workers: Number of processes.
      row_timeout_s: Seconds for a row. Like `step_timeout_s`, it is checked
        here and kept by the owner.
      step_timeout_s: Seconds for a call.
      variables: Names of environment variables that workers get besides
        `processes.VARIABLES`.
      memory_gib: GiB that a worker may hold beyond its memory when it was
        ready. A worker with more is replaced, and the row that it had at work
        is tried once more. 0: there is no limit.
      meanwhile: Called while the workers import.

    Raises:
      ValueError: A number is out of range.
      RuntimeError: A worker could not import what it needs.
    """
    positive = {
      "row_timeout_s": row_timeout_s,
      "step_timeout_s": step_timeout_s,
      "num_workers": num_workers,
    }
    for name, value in positive.items():
      if not value > 0:
        raise ValueError(
          f"{caller}: {name} is {value}; needs a number above 0."
        )
    self.caller = caller
    self._how = module, argument, tuple(variables)
    self._memory_gib = memory_gib
    self._next_look = 0.0  # time.monotonic().
    self._left_at = time.monotonic()  # End of the last look at the workers.
    self._num_questions = 0
    self._disturbed: set[int] = set()
    self._num_bad_starts = 0
    self._workers: list[_Worker] = []
    self._spare: _Worker | None = None
    # All workers, with the spare one.
    self._processes: set[_Worker] = set()
    # Also runs when the interpreter exits or the pool is collected.
    self._finalizer = weakref.finalize(self, _kill_all, self._processes)
    try:
      for _ in range(num_workers):
        self._workers.append(self._start())
      meanwhile()
      for worker in self._workers:
        try:
          self._welcome(worker, worker.channel.receive(worker.deadline))
        except (EOFError, TimeoutError, ValueError) as error:
          raise self._bad_start(error) from error
    except BaseException:
      self.close()
      raise

  @property
  def num_workers(self) -> int:
    return len(self._workers)

  def close(self) -> None:
    """Kills the workers. May be called again."""
    self._finalizer()

  def check_open(self) -> None:
    """Raises RuntimeError after `close`."""
    if not self._finalizer.alive:
      raise RuntimeError(f"{self.caller}: it is closed.")

  def run(self, call: PoolCall, timeout_s: float, used_s: float = 0.0) -> float:
    """Has workers answer all rows; after `timeout_s - used_s` the others fail.

    Args:
      timeout_s: Seconds for this call and earlier calls that belong to it.
      used_s: Seconds that the earlier calls have taken.

    Returns:
      The seconds that the call took.

    Raises:
      RuntimeError: The pool is closed, or a worker cannot be replaced.
    """
    start = time.monotonic()
    end = start + timeout_s - used_s
    self.open(call)
    try:
      while self.has_unfinished_rows(call) and time.monotonic() < end:
        self.advance(call, end)
      if self.has_unfinished_rows(call):
        self.give_up(call, timeout_s)
    finally:
      self.replace_busy_workers(call)
    return time.monotonic() - start

  # The parts of `run`, for a call that gets rows while it goes on.

  def open(self, call: PoolCall) -> None:
    """Begins a call.

    Raises:
      RuntimeError: The pool is closed.
    """
    self.check_open()
    self.replace_busy_workers(call)  # An earlier call was perhaps interrupted.
    self._disturbed.clear()
    self._left_at = time.monotonic()
    for worker in self._workers:
      worker.answered.clear()

  def has_unfinished_rows(self, call: PoolCall) -> bool:
    """Returns True if some rows have neither an answer nor failed."""
    return bool(call.num_pending) or any(w.rows for w in self._workers)

  def give_up(self, call: PoolCall, timeout_s: float) -> None:
    """Fails all unfinished rows after a number of seconds."""
    rows = [entry.row for worker in self._workers for entry in worker.rows]
    call.out_of_time(
      rows,
      f"the {timeout_s} s for all rows are over"
      " (config.rewards.step_timeout_s)",
    )
    self.replace_busy_workers(call)

  def replace_busy_workers(self, call: PoolCall) -> None:
    """Replaces workers that still have rows: they must not answer later."""
    for slot, worker in enumerate(self._workers):
      if worker.rows:
        self._replace(slot, call)

  def advance(self, call: PoolCall, end: float) -> None:
    """Sends rows to idle workers, waits for answers, and handles them.

    The wait ends at `end`, in time.monotonic().
    """
    self._excuse(time.monotonic() - self._left_at)
    try:
      self._advance(call, end)
    finally:
      self._left_at = time.monotonic()

  def _excuse(self, seconds: float) -> None:
    """Moves deadlines by a time in which nobody listened to the workers.

    While this process waits for a device, answers and questions stay in the
    pipes, which do not hold all of them.
    """
    if seconds < _LOOK_S:
      return
    for worker in self._processes:
      worker.deadline += seconds
      for place, sent in enumerate(worker.rows):
        worker.rows[place] = sent._replace(at=sent.at + seconds)

  def _advance(self, call: PoolCall, end: float) -> None:
    if self._memory_gib:
      self._look(call)
    for slot, worker in enumerate(self._workers):
      if worker.ready:
        self._send(slot, call)
    is_idle = all(x.ready and not x.rows for x in self._workers)
    if is_idle or not self.has_unfinished_rows(call):
      return  # If rows are pending, one could not be sent; the caller retries.
    if call.pause_s and all(len(w.rows) > 1 for w in self._workers):
      time.sleep(call.pause_s)
    workers = [*self._workers, *([self._spare] if self._spare else ())]
    wake = min(end, *(worker.deadline for worker in workers))
    if self._memory_gib:
      wake = min(wake, self._next_look)
    active = frames.wait(
      [worker.channel for worker in workers], wake - time.monotonic()
    )
    for worker in workers:
      error = None
      if worker.channel in active:
        error = self._hear(worker, call)
      if not error and time.monotonic() >= worker.deadline:
        error = _Late()
      if error:
        self._lose(worker, call, error)

  def _look(self, call: PoolCall) -> None:
    """Replaces workers that hold too much memory."""
    if time.monotonic() < self._next_look:
      return
    self._next_look = time.monotonic() + _LOOK_S
    for worker in [x for x in self._workers if x.ready]:
      growth = (processes.memory(worker.process.pid) - worker.memory) / _GIB
      if growth > self._memory_gib:
        text = (
          f"a worker holds {growth:.3g} GiB more than at its start"
          f" (config.rewards.worker_memory_gib={self._memory_gib:g})"
        )
        logging.warning("%s: %s; it is replaced", self.caller, text)
        self._lose(worker, call, _TooLargeError(text))

  def _send(self, slot: int, call: PoolCall) -> None:
    worker, messages = self._workers[slot], []
    rows = call.take(slot, self.num_workers, len(worker.rows))
    is_idle, num_bytes = not worker.rows, 0
    for place, index in enumerate(rows):
      if num_bytes > _MAX_CHUNK_BYTES and not call.is_concurrent:
        call.put_back(slot, rows[place:])
        break
      self._num_questions += 1
      question = _OpenQuestion(self._num_questions, index, time.monotonic())
      try:
        messages.append(frames.encode([question.number, call.message(index)]))
      except ValueError as error:
        call.fail(index, "raised", str(error))
        continue
      num_bytes += len(messages[-1])
      worker.rows.append(question)
    if messages:
      worker.channel.write(*messages)
    if messages and (is_idle or call.is_concurrent):
      worker.deadline = self._deadline(worker, call)

  def _deadline(self, worker: _Worker, call: PoolCall) -> float:
    if not worker.rows:
      return math.inf
    question = worker.rows[0]
    start = question.at if call.is_concurrent else time.monotonic()
    return start + call.timeout_s(question.row)

  def _hear(self, worker: _Worker, call: PoolCall) -> Exception | None:
    """Reads a worker's messages, as far as they have arrived.

    Returns:
      The reason why the worker cannot be used any more, or None.
    """
    worker.channel.flush()
    try:
      worker.channel.read()
      for message in worker.channel.messages():
        if worker.ready:
          self._record(worker, call, frames.answer(message))
        else:
          self._welcome(worker, message)
    except (EOFError, ValueError) as error:
      return error
    return None

  def _record(
    self, worker: _Worker, call: PoolCall, answer: frames.Answer
  ) -> None:
    rows = worker.rows
    candidates = rows if call.is_concurrent else itertools.islice(rows, 1)
    question = next((x for x in candidates if x.number == answer.number), None)
    if question is None:
      raise _Stranger(answer.number)
    index = question.row
    call.record(index, answer.content, answer.failure)
    rows.remove(question)
    call.num_answered += 1
    worker.answered[answer.number] = index
    worker.deadline = self._deadline(worker, call)

  def _lose(self, worker: _Worker, call: PoolCall, why: Exception) -> None:
    """Gives up a worker and the row for which it is lost.

    That is the row being worked on, or the row of an earlier question that was
    answered once more. The other rows wait again.
    """
    if worker is self._spare:
      self._drop(worker)
      self._spare = None
      return
    slot = self._workers.index(worker)
    if not worker.ready:
      self._num_bad_starts += 1
      if self._num_bad_starts >= _MAX_BAD_STARTS:
        raise self._bad_start(why)
    rows = [question.row for question in worker.rows]
    if isinstance(why, _Stranger) and why.number in worker.answered:
      call.fail(worker.answered[why.number], "worker_died", str(why))
    if not rows:
      pass
    elif call.is_concurrent:
      call.put_back(slot, rows)
    elif self._is_disturbed(worker, why):
      self._disturbed.add(rows[0])
      call.put_back(slot, rows)
    else:
      if isinstance(why, _Late):
        call.late(rows[0])
      else:
        reason = str(why) or "the process ended"
        call.fail(rows[0], "worker_died", reason)
      call.put_back(slot, rows[1:])
    self._replace(slot, call)

  def _is_disturbed(self, worker: _Worker, why: Exception) -> bool:
    """Returns True if a worker's first row is not to blame for its loss.

    This is so if an earlier question was answered again, or if the memory may
    be that of earlier rows, unless it happens to the row for the second time.
    """
    number, row, _ = worker.rows[0]
    earlier = isinstance(why, _Stranger) and why.number < number
    earlier |= isinstance(why, _TooLargeError)
    return earlier and row not in self._disturbed

  def _replace(self, slot: int, call: PoolCall) -> None:
    self._drop(self._workers[slot])
    self._workers[slot] = self._spare or self._start()
    self._spare = self._start()
    call.lost(slot)

  def _start(self) -> _Worker:
    worker = _start_process(*self._how)
    self._processes.add(worker)
    return worker

  def _drop(self, worker: _Worker) -> None:
    _kill(worker)
    self._processes.discard(worker)

  def _welcome(self, worker: _Worker, message: Any) -> None:
    status, text = frames.greeting(message)
    if status != "ready":
      raise ValueError(text)
    worker.ready = True
    if self._memory_gib:
      worker.memory = processes.memory(worker.process.pid)
    worker.deadline = math.inf
    self._num_bad_starts = 0

  def _bad_start(self, why: Exception) -> RuntimeError:
    reason = str(why)
    if isinstance(why, TimeoutError):
      reason = f"it took more than {_START_TIMEOUT_S:.0f} s"
    return RuntimeError(
      f"{self.caller}: a worker could not import its functions:"
      f" {reason or 'the process ended'}"
    )


class _TooLargeError(MemoryError):
  """The error of a worker that holds too much memory."""


class _Late(TimeoutError):
  """The error of a worker that has missed its deadline."""

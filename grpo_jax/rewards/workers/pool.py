"""Worker processes that may hang, crash or end, and are then replaced.

Rows are handed out to workers, and each row has a deadline. A worker that
misses it, or ends, or says what it was not asked (`frames.py`), is killed
together with whatever it started (`processes.py`); its row has failed, and
another worker takes its place. From the first time on that this happens a spare
one is held ready, because starting one and its imports take longer than most
rows. What a row is, and what becomes of the others of a lost worker, is the
business of a `PoolCall`.
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

# Rows that a worker has, at most: the second if they are short. Behind a slow
# one none should wait that another worker could begin.
CHUNKS = (8, 64)
_CHUNK_S = 0.02  # What those of a worker should take.
_MAX_CHUNK_BYTES = 1 << 20  # Of what it is sent at a time, but for one row.
_MAX_MESSAGE = 1000  # Characters.
_MAX_ERRORS = 3
_START_TIMEOUT_S = 300.0  # What a worker imports may be a large framework.
_LOOK_S = 0.5  # How often the memory of workers is looked at.
_GIB = 1 << 30
_MAX_BAD_STARTS = 3  # In a row, of workers that take the place of others.


class _Sent(NamedTuple):
  number: int  # Of the question; see `frames.py`.
  row: int  # Its index in the call.
  at: float  # time.monotonic().


@dataclasses.dataclass(eq=False)
class _Worker:
  process: subprocess.Popen
  channel: frames.Channel
  # Of its greeting, then of the first row; time.monotonic().
  deadline: float
  ready: bool = False
  held: int = 0  # Bytes of memory when it was ready.
  # Rows sent and not yet answered; the first is the one being worked on, or,
  # in a call that is concurrent, the one that was sent first.
  rows: collections.deque[_Sent] = dataclasses.field(
    default_factory=collections.deque
  )
  answered: dict[int, int] = dataclasses.field(default_factory=dict)


class _Stranger(ValueError):
  """An answer to another question than the first open one."""

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
  ours, theirs = socket.socketpair()
  with theirs:
    process = subprocess.Popen(
      [
        sys.executable,
        "-c",
        f"import sys; sys.path[:] = {sys.path!r};"
        " from grpo_jax import imports;"
        f" imports.look_in({imports.folder()!r});"
        f" from grpo_jax.rewards.workers import {module};"
        f" {module}.main({theirs.fileno()}, {os.getpid()}, {argument!r})",
      ],
      stdin=subprocess.DEVNULL,
      pass_fds=[theirs.fileno()],
      # A session of its own: Ctrl-C does not reach it.
      start_new_session=True,
      env=processes.environment(variables),
    )
  channel = frames.Channel(ours.detach())
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
  """Which of some rows have failed, and why.

  Attributes:
    failed: True where a row has.
    counts: Number of failed rows by kind: "raised", "timeout", "nan",
      "worker_died", "step_timeout" (there was no time to try the row).
    errors: Up to 3 messages, with their rows.
    messages: Of each failed row, cut to a size that can be kept.
  """

  def __init__(self, num_rows: int):
    self.failed = np.zeros(num_rows, bool)
    self.counts = dict.fromkeys(FAILURE_KINDS, 0)
    self.errors: list[str] = []
    self.messages: dict[int, str] = {}

  def add(self, index: int, kind: str, message: str) -> None:
    """Counts a row once, by what happened first."""
    if self.failed[index]:
      return
    self.failed[index] = True
    self.counts[kind] += 1
    self.messages[index] = f"{kind}: {message}"[:_MAX_MESSAGE]
    if len(self.errors) < _MAX_ERRORS:
      self.errors.append(f"row {index}: {kind}: {message}")


class PoolCall:
  """Rows to be handed out; any worker may take any of them.

  Attributes:
    pending: Rows that no worker has.
    failures: Of rows so far.
    num_answered: Rows that workers have answered, since
    begun: time.monotonic().
    is_concurrent: Workers have several rows at work, and answer them in any
      order. Else they work on one after another.
    pause_s: Seconds for which answers may lie in the pipes while all workers
      have further rows. Without it, each of many short rows wakes this process.
  """

  is_concurrent = False
  pause_s = 0.0

  def __init__(self, rows: Iterable[int], failures: Failures):
    self.pending = collections.deque(rows)
    self.failures = failures
    self.num_answered = 0
    self.begun = time.monotonic()

  @property
  def num_pending(self) -> int:
    return len(self.pending)

  def message(self, index: int) -> Any:
    """What a worker is told of a row."""
    raise NotImplementedError

  def record(
    self, index: int, content: Any, failure: frames.Failure | None
  ) -> None:
    """Takes what a worker says of a row.

    Raises:
      ValueError: The content is not what it should be.
    """
    raise NotImplementedError

  def fail(self, index: int, kind: str, message: str) -> None:
    """A row has failed."""
    self.failures.add(index, kind, message)

  def timeout_s(self, index: int) -> float:
    """Seconds for this try of a row."""
    raise NotImplementedError

  def late(self, index: int) -> None:
    """A row has missed its deadline."""
    message = f"no answer in {self.timeout_s(index):g} s"
    self.fail(index, "timeout", message)

  def take(self, slot: int, num_workers: int, num_open: int) -> list[int]:
    """The next rows for the worker in this slot, which has some already."""
    del slot
    # Smaller towards the end, so that the workers finish together.
    size = len(self.pending) // (2 * num_workers)
    size = min(max(size, 1), self._max_chunk(num_workers))
    # Before the last one is done, so that no worker waits for the next.
    if 2 * num_open > size:
      return []
    size = min(size - num_open, len(self.pending))
    return [self.pending.popleft() for _ in range(size)]

  def _max_chunk(self, num_workers: int) -> int:
    fewest, most = CHUNKS
    took_s = num_workers * max(time.monotonic() - self.begun, 1e-6)
    return int(min(max(self.num_answered * _CHUNK_S / took_s, fewest), most))

  def put_back(self, slot: int, rows: Sequence[int]) -> None:
    """Rows that a worker took and did not begin; they come first again.

    In a call that is concurrent: rows that a worker has had at work when it was
    lost.
    """
    del slot
    self.pending.extendleft(reversed(rows))

  def lost(self, slot: int) -> None:
    """A worker has ended, and another one is in its place."""

  def out_of_time(self, rows: Sequence[int], message: str) -> None:
    """The call is over, without these rows and those that are pending."""
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
      caller: Who complains in messages.
      module: Of `grpo_jax.rewards`, whose `main(fd, parent, argument)` is run.
      argument: Plain data that `repr` writes.
      num_workers: Processes.
      row_timeout_s: Seconds for a row, and
      step_timeout_s: for a call; both are checked here and kept by the owner.
      variables: Names of environment variables that workers get besides
        `processes.VARIABLES`.
      memory_gib: What a worker may hold beyond what it held when it was ready,
        GiB; one with more is replaced, and the row it had at work is tried once
        more. 0: there is no limit.
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
          f"{caller}: {name} is {value}; needed is a number above 0."
        )
    self.caller = caller
    self._how = module, argument, tuple(variables)
    self._memory_gib = memory_gib
    self._next_look = 0.0  # time.monotonic().
    self._num_questions = 0
    self._disturbed: set[int] = set()
    self._num_bad_starts = 0
    self._workers: list[_Worker] = []
    self._spare: _Worker | None = None
    # The spare one too.
    self._processes: set[_Worker] = set()
    # Also runs when the interpreter exits or the pool is collected.
    self._finalizer = weakref.finalize(self, _kill_all, self._processes)
    try:
      for _ in range(num_workers):
        self._workers.append(self._start())
      meanwhile()
      for worker in self._workers:
        self._greet(worker)
    except BaseException:
      self.close()
      raise

  @property
  def num_workers(self) -> int:
    return len(self._workers)

  @property
  def _is_idle(self) -> bool:
    """Whether all workers are ready, and none has a row."""
    return all(worker.ready and not worker.rows for worker in self._workers)

  def close(self) -> None:
    """Kills the workers. May be called again."""
    self._finalizer()

  def check_open(self) -> None:
    """Raises RuntimeError after `close`."""
    if not self._finalizer.alive:
      raise RuntimeError(f"{self.caller}: it is closed.")

  def run(self, call: PoolCall, timeout_s: float, used_s: float = 0.0) -> float:
    """Works through a call within about `timeout_s - used_s` seconds.

    Args:
      call: The rows.
      timeout_s: Seconds for this call and those before it that belong to it.
      used_s: Seconds of it that those have taken.

    Returns:
      Seconds that it took.

    Raises:
      RuntimeError: The pool is closed, or a worker cannot be replaced.
    """
    start = time.monotonic()
    end = start + timeout_s - used_s
    self.open(call)
    try:
      while self.goes_on(call) and time.monotonic() < end:
        self.advance(call, end)
      if self.goes_on(call):
        self.give_up(call, timeout_s)
    finally:
      self.settle(call)
    return time.monotonic() - start

  # The same in parts, for a call that gets rows while it goes on.

  def open(self, call: PoolCall) -> None:
    """Before a call.

    Raises:
      RuntimeError: The pool is closed.
    """
    self.check_open()
    self.settle(call)  # A call before was perhaps interrupted.
    self._disturbed.clear()
    for worker in self._workers:
      worker.answered.clear()

  def goes_on(self, call: PoolCall) -> bool:
    """Whether there are rows that have neither an answer nor failed."""
    return bool(call.num_pending) or any(w.rows for w in self._workers)

  def give_up(self, call: PoolCall, timeout_s: float) -> None:
    """All rows that are left have failed: so many seconds are over."""
    rows = [sent.row for worker in self._workers for sent in worker.rows]
    call.out_of_time(
      rows,
      f"the {timeout_s} s for all rows are over"
      " (config.rewards.step_timeout_s)",
    )
    self.settle(call)

  def settle(self, call: PoolCall) -> None:
    """Whoever still works on rows of a call must not answer in the next."""
    for slot, worker in enumerate(self._workers):
      if worker.rows:
        self._replace(slot, call)

  def advance(self, call: PoolCall, end: float) -> None:
    """Hands out rows, waits for one event, and handles what happened.

    Args:
      call: The rows.
      end: Waits until then at most; time.monotonic().
    """
    if self._memory_gib:
      self._look(call)
    for slot, worker in enumerate(self._workers):
      if worker.ready:
        self._send(slot, call)
    if not self.goes_on(call) or (call.num_pending and self._is_idle):
      return  # In the second case a row could not be sent, and is tried again.
    if call.pause_s and all(len(w.rows) > 1 for w in self._workers):
      time.sleep(call.pause_s)
    watched = [*self._workers, *([self._spare] if self._spare else ())]
    wake = min(end, *(worker.deadline for worker in watched))
    if self._memory_gib:
      wake = min(wake, self._next_look)
    active = frames.wait(
      [worker.channel for worker in watched], wake - time.monotonic()
    )
    for worker in watched:
      failed = None
      if worker.channel in active:
        failed = self._hear(worker, call)
      if not failed and time.monotonic() >= worker.deadline:
        failed = _Late()
      if failed:
        self._lose(worker, call, failed)

  def _look(self, call: PoolCall) -> None:
    """Replaces workers that hold too much memory."""
    if time.monotonic() < self._next_look:
      return
    self._next_look = time.monotonic() + _LOOK_S
    for worker in [x for x in self._workers if x.ready]:
      grown = (processes.held(worker.process.pid) - worker.held) / _GIB
      if grown > self._memory_gib:
        text = (
          f"a worker holds {grown:.3g} GiB more than at its start"
          f" (config.rewards.worker_memory_gib={self._memory_gib:g})"
        )
        logging.warning("%s: %s; it is replaced", self.caller, text)
        self._lose(worker, call, _TooLargeError(text))

  def _send(self, slot: int, call: PoolCall) -> None:
    worker, messages = self._workers[slot], []
    taken = call.take(slot, self.num_workers, len(worker.rows))
    is_idle, num_bytes = not worker.rows, 0
    for place, index in enumerate(taken):
      if num_bytes > _MAX_CHUNK_BYTES and not call.is_concurrent:
        call.put_back(slot, taken[place:])
        break
      self._num_questions += 1
      sent = _Sent(self._num_questions, index, time.monotonic())
      try:
        messages.append(frames.encode([sent.number, call.message(index)]))
      except ValueError as error:
        call.fail(index, "raised", str(error))
        continue
      num_bytes += len(messages[-1])
      worker.rows.append(sent)
    if messages:
      worker.channel.write(*messages)
    if messages and (is_idle or call.is_concurrent):
      worker.deadline = self._deadline(worker, call)

  def _deadline(self, worker: _Worker, call: PoolCall) -> float:
    if not worker.rows:
      return math.inf
    sent = worker.rows[0]
    begun = sent.at if call.is_concurrent else time.monotonic()
    return begun + call.timeout_s(sent.row)

  def _hear(self, worker: _Worker, call: PoolCall) -> Exception | None:
    """Reads what a worker says, as far as it has arrived.

    Returns:
      Why it cannot be used any more, if so.
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
    known = rows if call.is_concurrent else itertools.islice(rows, 1)
    sent = next((x for x in known if x.number == answer.number), None)
    if sent is None:
      raise _Stranger(answer.number)
    index = sent.row
    call.record(index, answer.content, answer.failure)
    rows.remove(sent)
    call.num_answered += 1
    worker.answered[answer.number] = index
    worker.deadline = self._deadline(worker, call)

  def _lose(self, worker: _Worker, call: PoolCall, why: Exception) -> None:
    """Gives up a worker and the row that it is lost for.

    That is the one being worked on, or that of an earlier question which was
    answered once more. The others wait again.
    """
    if worker is self._spare:
      self._drop(worker)
      self._spare = None
      return
    slot = self._workers.index(worker)
    if not worker.ready:
      self._count_bad_start(why)
    rows = [sent.row for sent in worker.rows]
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
        said = str(why) or "the process ended"
        call.fail(rows[0], "worker_died", said)
      call.put_back(slot, rows[1:])
    self._replace(slot, call)

  def _is_disturbed(self, worker: _Worker, why: Exception) -> bool:
    """Whether the first row of a worker has no part in its loss.

    So it is if an earlier question was answered again, or if the memory may be
    that of earlier rows, unless this happens to the row for the second time.
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

  def _greet(self, worker: _Worker) -> None:
    """Waits until a worker is ready."""
    try:
      self._welcome(worker, worker.channel.receive(worker.deadline))
    except (EOFError, TimeoutError, ValueError) as error:
      raise self._bad_start(error) from error

  def _welcome(self, worker: _Worker, message: Any) -> None:
    status, text = frames.greeting(message)
    if status != "ready":
      raise ValueError(text)
    worker.ready = True
    if self._memory_gib:
      worker.held = processes.held(worker.process.pid)
    worker.deadline = math.inf
    self._num_bad_starts = 0

  def _count_bad_start(self, why: Exception) -> None:
    self._num_bad_starts += 1
    if self._num_bad_starts >= _MAX_BAD_STARTS:
      raise self._bad_start(why)

  def _bad_start(self, why: Exception) -> RuntimeError:
    said = str(why)
    if isinstance(why, TimeoutError):
      said = f"it took more than {_START_TIMEOUT_S:.0f} s"
    return RuntimeError(
      f"{self.caller}: a worker could not import its functions:"
      f" {said or 'the process ended'}"
    )


class _TooLargeError(MemoryError):
  """A worker holds too much memory."""


class _Late(TimeoutError):
  """A worker has missed its deadline."""

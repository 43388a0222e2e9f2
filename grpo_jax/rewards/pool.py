"""Worker processes that may hang, crash or end, and are then replaced.

Rows are handed out to workers, and each row has a deadline. A worker that
misses it, or ends, is killed together with whatever it started; its row has
failed, and a new worker takes its place. What a row is, and what becomes of the
others of a lost worker, is the business of a `Call`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Sequence
from multiprocessing import connection
from typing import Any

import numpy as np

FAILURE_KINDS = ("raised", "timeout", "nan", "worker_died", "step_timeout")

MAX_CHUNK = 8  # Rows in one message to a worker.
_MAX_ERRORS = 3
_START_TIMEOUT_S = 300.0  # What a worker imports may be a large framework.


@dataclasses.dataclass
class _Worker:
  process: subprocess.Popen
  channel: connection.Connection
  ready: bool = False
  # Rows sent and not yet answered; the first is the one being worked on.
  rows: collections.deque[int] = dataclasses.field(
    default_factory=collections.deque
  )
  deadline: float = math.inf  # Of the first row; time.monotonic().


def _start(module: str, argument: Any) -> _Worker:
  """Starts a worker without waiting until it is ready.

  A plain subprocess rather than `multiprocessing.Process`: that would import
  the main program again, and with it jax, in each worker and each respawn.
  """
  ours, theirs = multiprocessing.Pipe()
  process = subprocess.Popen(
    [
      sys.executable,
      "-c",
      f"import sys; sys.path[:] = {sys.path!r};"
      f" from grpo_jax.rewards import {module};"
      f" {module}.main({theirs.fileno()}, {os.getpid()}, {argument!r})",
    ],
    stdin=subprocess.DEVNULL,
    pass_fds=[theirs.fileno()],
    # A session of its own: Ctrl-C does not reach it, and one signal kills
    # it together with whatever a verifier started.
    start_new_session=True,
    # A verifier whose module imports jax must not claim the accelerator.
    env={**os.environ, "JAX_PLATFORMS": "cpu"},
  )
  theirs.close()
  return _Worker(process, ours)


def _kill(worker: _Worker) -> None:
  # The group still exists: its leader is not waited for before this line.
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(worker.process.pid, signal.SIGKILL)
  worker.channel.close()
  with contextlib.suppress(subprocess.TimeoutExpired):
    worker.process.wait(timeout=5.0)


def _kill_all(workers: list[_Worker]) -> None:
  while workers:
    _kill(workers.pop())


class Failures:
  """Which of some rows have failed, and why.

  Attributes:
    failed: True where a row has.
    counts: Number of failed rows by kind: "raised", "timeout", "nan",
      "worker_died", "step_timeout".
    errors: Up to 3 messages.
  """

  def __init__(self, num_rows: int):
    self.failed = np.zeros(num_rows, bool)
    self.counts = dict.fromkeys(FAILURE_KINDS, 0)
    self.errors: list[str] = []

  def add(self, index: int, kind: str, message: str) -> None:
    """Counts a row once, by what happened first."""
    if self.failed[index]:
      return
    self.failed[index] = True
    self.counts[kind] += 1
    if len(self.errors) < _MAX_ERRORS:
      self.errors.append(f"row {index}: {kind}: {message}")


class Call:
  """Rows to be handed out; any worker may take any of them.

  Attributes:
    pending: Rows that no worker has.
    failures: Of rows so far.
  """

  def __init__(self, rows: Iterable[int], failures: Failures):
    self.pending = collections.deque(rows)
    self.failures = failures

  @property
  def num_pending(self) -> int:
    return len(self.pending)

  def message(self, index: int) -> Any:
    """What a worker is told of a row."""
    raise NotImplementedError

  def record(self, index: int, *answer: Any) -> None:
    """Takes what a worker says of a row, without the row's number."""
    raise NotImplementedError

  def take(self, slot: int, num_workers: int) -> list[int]:
    """The next rows for the worker in this slot."""
    del slot
    # Smaller towards the end, so that the workers finish together.
    size = len(self.pending) // (2 * num_workers)
    size = min(max(size, 1), MAX_CHUNK, len(self.pending))
    return [self.pending.popleft() for _ in range(size)]

  def put_back(self, slot: int, rows: Sequence[int]) -> None:
    """Rows that a worker took and did not begin; they come first again."""
    del slot
    self.pending.extendleft(reversed(rows))

  def lost(self, slot: int) -> None:
    """A worker has ended, and another one is in its place."""

  def out_of_time(self, rows: Sequence[int], message: str) -> None:
    """The call is over, without these rows and those that are pending."""
    for index in (*self.pending, *rows):
      self.failures.add(index, "step_timeout", message)


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
    slack_s: float = 0.0,
  ):
    """Starts the workers and waits until they have imported everything.

    Args:
      caller: Who complains in messages.
      module: Of `grpo_jax.rewards`, whose `main(fd, parent, argument)` is run.
      argument: Plain data that `repr` writes.
      num_workers: Processes.
      row_timeout_s: Seconds for a row.
      step_timeout_s: Seconds for a call; kept for the owner.
      slack_s: Seconds more that a worker gets which watches the time itself.

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
    self._start = lambda: _start(module, argument)
    self._row_timeout_s = row_timeout_s
    self._slack_s = slack_s
    self._workers: list[_Worker] = []
    # Also runs when the interpreter exits or the pool is collected.
    self._finalizer = weakref.finalize(self, _kill_all, self._workers)
    try:
      for _ in range(num_workers):
        self._workers.append(self._start())
      for worker in self._workers:
        if not worker.channel.poll(_START_TIMEOUT_S):
          raise RuntimeError(
            f"{caller}: a worker did not import its functions in"
            f" {_START_TIMEOUT_S:.0f} s."
          )
        self._greet(worker)
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

  def run(self, call: Call, timeout_s: float, used_s: float = 0.0) -> float:
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
    self.check_open()
    start = time.monotonic()
    end = start + timeout_s - used_s
    try:
      while self._goes_on(call) and time.monotonic() < end:
        self._advance(call, end)
      if self._goes_on(call):
        rows = [index for worker in self._workers for index in worker.rows]
        call.out_of_time(
          rows,
          f"the {timeout_s} s for all rows are over"
          " (config.rewards.step_timeout_s)",
        )
    finally:
      # Whoever still works on rows of this call must not answer in the next.
      for slot, worker in enumerate(self._workers):
        if worker.rows:
          self._replace(slot, call)
    return time.monotonic() - start

  def _goes_on(self, call: Call) -> bool:
    return bool(call.num_pending) or any(w.rows for w in self._workers)

  def _advance(self, call: Call, end: float) -> None:
    """Hands out rows, waits for one event, and handles what happened."""
    for slot in range(len(self._workers)):
      if self._workers[slot].ready and not self._workers[slot].rows:
        self._send(slot, call)
    if not self._goes_on(call):
      return
    wake = min(end, *(worker.deadline for worker in self._workers))
    answered = connection.wait(
      [worker.channel for worker in self._workers],
      max(wake - time.monotonic(), 0.0),
    )
    for slot, worker in enumerate(self._workers):
      if worker.channel in answered:
        self._receive(slot, call)
      elif time.monotonic() >= worker.deadline and not worker.channel.poll():
        self._fail_first_row(
          slot, call, "timeout", f"no answer in {self._row_timeout_s} s"
        )

  def _send(self, slot: int, call: Call) -> None:
    worker, rows = self._workers[slot], call.take(slot, self.num_workers)
    if not rows:
      return
    try:
      worker.channel.send([(index, call.message(index)) for index in rows])
    except (BrokenPipeError, ConnectionResetError):  # Died while idle.
      call.put_back(slot, rows)
      self._replace(slot, call)
      return
    worker.rows.extend(rows)
    worker.deadline = self._deadline()

  def _deadline(self) -> float:
    return time.monotonic() + self._row_timeout_s + self._slack_s

  def _receive(self, slot: int, call: Call) -> None:
    worker = self._workers[slot]
    try:
      if not worker.ready:
        self._greet(worker)
        return
      index, *answer = worker.channel.recv()
    except (EOFError, ConnectionResetError):
      if worker.rows:
        self._fail_first_row(slot, call, "worker_died", "the process ended")
      else:
        self._replace(slot, call)
      return
    worker.rows.popleft()
    worker.deadline = self._deadline() if worker.rows else math.inf
    call.record(index, *answer)

  def _fail_first_row(
    self, slot: int, call: Call, kind: str, message: str
  ) -> None:
    """Gives up the row being worked on; the rest of its chunk waits again."""
    first, *rest = self._workers[slot].rows
    call.failures.add(first, kind, message)
    call.put_back(slot, rest)
    self._replace(slot, call)

  def _replace(self, slot: int, call: Call) -> None:
    _kill(self._workers[slot])
    self._workers[slot] = self._start()
    call.lost(slot)

  def _greet(self, worker: _Worker) -> None:
    try:
      status, message = worker.channel.recv()
    except (EOFError, ConnectionResetError):
      status, message = "failed", "the process ended"
    if status != "ready":
      raise RuntimeError(
        f"{self.caller}: a worker could not import its functions: {message}"
      )
    worker.ready = True

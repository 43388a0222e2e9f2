"""Host reward functions, scored in processes that can be killed.

One idea: a verifier may hang, crash or end its process, and none of that may
stop the run or be taken for a reward. Each row has a deadline; what exceeds it
is killed, its row is marked unscored, and a new worker takes over.
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
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.rewards import worker as worker_lib

FAILURE_KINDS = ("raised", "timeout", "nan", "worker_died", "step_timeout")

_MAX_CHUNK = 8  # Rows in one message to a worker.
_MAX_ERRORS = 3
_START_TIMEOUT_S = 300.0  # A verifier may import a large framework.


class HostScores(NamedTuple):
  """What the reward functions said about B rows.

  Attributes:
    components: Each reward by name, before weights; NaN where it does not
      apply or the row failed.
    failed: True where any component failed; such a row is unscored.
    failures: Number of failed rows by kind: "raised" (also a wrong number of
      results or no number), "timeout", "nan", "worker_died", "step_timeout".
    errors: Up to 3 messages of failures.
  """

  components: dict[str, np.ndarray]  # each [B] float32
  failed: np.ndarray  # [B] bool
  failures: dict[str, int]
  errors: list[str]


@dataclasses.dataclass
class _Worker:
  process: subprocess.Popen
  channel: connection.Connection
  ready: bool = False
  # Rows sent and not yet answered; the first is the one being scored.
  rows: collections.deque[int] = dataclasses.field(
    default_factory=collections.deque
  )
  deadline: float = math.inf  # Of the first row; time.monotonic().


def _start(functions: dict[str, str]) -> _Worker:
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
      " from grpo_jax.rewards import worker;"
      f" worker.main({theirs.fileno()}, {os.getpid()}, {functions!r})",
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


class _Call:
  """The rows of one call of `HostScorer.score`, and their results so far."""

  def __init__(self, names: Sequence[str], rows: list[worker_lib.Row]):
    self.rows = rows
    self.pending = collections.deque(range(len(rows)))
    self.num_done = 0
    self.values = np.full((len(rows), len(names)), np.nan, np.float32)
    self.failed = np.zeros(len(rows), bool)
    self.failures = dict.fromkeys(FAILURE_KINDS, 0)
    self.errors: list[str] = []

  def record(self, index: int, values: Sequence[float]) -> None:
    with np.errstate(over="ignore"):  # Beyond float32: inf, seen by `combine`.
      self.values[index] = values
    self.num_done += 1

  def fail(self, index: int, kind: str, message: str) -> None:
    self.failed[index] = True
    self.failures[kind] += 1
    if len(self.errors) < _MAX_ERRORS:
      self.errors.append(f"row {index}: {kind}: {message}")


class HostScorer:
  """Scores completions by Python functions, in a pool of worker processes.

  A function takes (prompts, completions, ids, extras) and returns one number,
  or None for "not applicable", per row; it is given one row at a time. See
  `worker.py` for the whole contract. Not reentrant.

  ```
  with HostScorer({"accuracy": "math_accuracy"}, {"accuracy": 1.0}) as scorer:
    scores = scorer.score(prompts, completions, ids, extras)
  ```
  """

  def __init__(
    self,
    functions: Mapping[str, str],
    weights: Mapping[str, float],
    row_timeout_s: float = 10.0,
    step_timeout_s: float = 120.0,
    num_workers: int = 2,
  ):
    """Starts the workers and waits until they have imported everything.

    Args:
      functions: Name of each component -> "package.module:function", or
        "math_accuracy" or "think_answer_format".
      weights: Name -> finite weight in the total reward; for `combine`.
      row_timeout_s: Seconds for all functions on one row.
      step_timeout_s: Seconds for one call of `score`.
      num_workers: Processes.

    Raises:
      ValueError: A function cannot be imported, or a number is out of range.
      KeyError: `functions` and `weights` do not have the same names.
      RuntimeError: A worker could not import what the parent could.
    """
    if not functions:
      raise ValueError("HostScorer: received no functions; pass at least one.")
    if set(functions) != set(weights):
      raise KeyError(
        f"HostScorer: functions {sorted(functions)} and weights"
        f" {sorted(weights)} need the same names."
      )
    for name, weight in weights.items():
      if not math.isfinite(weight):
        raise ValueError(
          f"HostScorer: weight of '{name}' is {weight}; needed is a finite"
          " number."
        )
    positive = {
      "row_timeout_s": row_timeout_s,
      "step_timeout_s": step_timeout_s,
      "num_workers": num_workers,
    }
    for name, value in positive.items():
      if not value > 0:
        raise ValueError(
          f"HostScorer: {name} is {value}; needed is a number above 0."
        )
    for path in functions.values():
      worker_lib.load_function(path)  # Raises here, where it is read.
    self.functions = dict(functions)
    self.weights = dict(weights)
    self.row_timeout_s = row_timeout_s
    self.step_timeout_s = step_timeout_s
    self._workers: list[_Worker] = []
    # Also runs when the interpreter exits or the scorer is collected.
    self._finalizer = weakref.finalize(self, _kill_all, self._workers)
    try:
      for _ in range(num_workers):
        self._workers.append(_start(self.functions))
      for worker in self._workers:
        if not worker.channel.poll(_START_TIMEOUT_S):
          raise RuntimeError(
            "HostScorer: a worker did not import its reward functions in"
            f" {_START_TIMEOUT_S:.0f} s."
          )
        self._greet(worker)
    except BaseException:
      self.close()
      raise

  def __enter__(self) -> HostScorer:
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def close(self) -> None:
    """Kills the workers. May be called again."""
    self._finalizer()

  def score(
    self,
    prompts: Sequence[str],
    completions: Sequence[str],
    ids: Sequence[int],
    extras: Sequence[dict[str, Any]],
  ) -> HostScores:
    """Scores B rows, in order, within about `step_timeout_s`.

    Args:
      prompts: Decoded prompt of each row.
      completions: Decoded completion of each row.
      ids: Occurrence of each row's prompt in the data stream.
      extras: What the functions need of each row; plain data, which a worker
        can unpickle.

    Raises:
      ValueError: The arguments have unequal lengths.
      RuntimeError: The scorer is closed, or a worker cannot be replaced.
    """
    lengths = [len(x) for x in (prompts, completions, ids, extras)]
    if len(set(lengths)) != 1:
      raise ValueError(
        "HostScorer.score: received prompts, completions, ids and extras of"
        f" lengths {lengths}; needed is one of each per row."
      )
    if not self._finalizer.alive:
      raise RuntimeError("HostScorer.score: the scorer is closed.")
    rows = list(zip(prompts, completions, map(int, ids), extras, strict=True))
    call = _Call(tuple(self.functions), rows)
    end = time.monotonic() + self.step_timeout_s
    try:
      while call.num_done < len(rows) and time.monotonic() < end:
        self._advance(call, end)
      unscored = list(call.pending)
      for worker in self._workers:
        unscored.extend(worker.rows)
      for index in unscored:
        call.fail(
          index, "step_timeout", f"not scored in {self.step_timeout_s} s"
        )
    finally:
      # Whoever still works on rows of this call must not answer in the next.
      for slot, worker in enumerate(self._workers):
        if worker.rows:
          self._replace(slot)
    components = {
      name: call.values[:, k].copy() for k, name in enumerate(self.functions)
    }
    return HostScores(components, call.failed, call.failures, call.errors)

  def _advance(self, call: _Call, end: float) -> None:
    """Hands out rows, waits for one event, and handles what happened."""
    for slot in range(len(self._workers)):
      if self._workers[slot].ready and not self._workers[slot].rows:
        self._send_chunk(slot, call)
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
          slot, call, "timeout", f"not scored in {self.row_timeout_s} s"
        )

  def _send_chunk(self, slot: int, call: _Call) -> None:
    if not call.pending:
      return
    worker = self._workers[slot]
    # Smaller towards the end, so that the workers finish together.
    size = len(call.pending) // (2 * len(self._workers))
    size = min(max(size, 1), _MAX_CHUNK, len(call.pending))
    chunk = [call.pending.popleft() for _ in range(size)]
    try:
      worker.channel.send([(index, call.rows[index]) for index in chunk])
    except (BrokenPipeError, ConnectionResetError):  # Died while idle.
      call.pending.extendleft(reversed(chunk))
      self._replace(slot)
      return
    worker.rows.extend(chunk)
    worker.deadline = time.monotonic() + self.row_timeout_s

  def _receive(self, slot: int, call: _Call) -> None:
    worker = self._workers[slot]
    try:
      if not worker.ready:
        self._greet(worker)
        return
      index, values, failure = worker.channel.recv()
    except (EOFError, ConnectionResetError):
      if worker.rows:
        self._fail_first_row(slot, call, "worker_died", "the process ended")
      else:
        self._replace(slot)
      return
    worker.rows.popleft()
    worker.deadline = (
      time.monotonic() + self.row_timeout_s if worker.rows else math.inf
    )
    call.record(index, values)
    if failure is not None:
      call.fail(index, *failure)

  def _fail_first_row(
    self, slot: int, call: _Call, kind: str, message: str
  ) -> None:
    """Gives up the row being scored; the rest of its chunk waits again."""
    first, *rest = self._workers[slot].rows
    call.fail(first, kind, message)
    call.num_done += 1
    call.pending.extendleft(reversed(rest))
    self._replace(slot)

  def _replace(self, slot: int) -> None:
    _kill(self._workers[slot])
    self._workers[slot] = _start(self.functions)

  def _greet(self, worker: _Worker) -> None:
    try:
      status, message = worker.channel.recv()
    except (EOFError, ConnectionResetError):
      status, message = "failed", "the process ended"
    if status != "ready":
      raise RuntimeError(
        f"HostScorer: a worker could not import its reward functions: {message}"
      )
    worker.ready = True

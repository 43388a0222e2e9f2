"""The queue between the threads of HTTP and the thread of the device.

Threads of HTTP put a request in under its name, and the client fetches the
result by that name when it likes. The thread of the device takes requests out,
the oldest first. With it go those of its kind that wait too, if none of them
overtakes another request of its owner.

Requests and results are held in memory alone. If too much waits, a new request
is refused, and of too many results the oldest are dropped.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import json
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from grpo_jax.serving.requests import BadRequest

_JSON = "application/json"
_MAX_WAITING, _MAX_WAITING_BYTES = 1024, 64 * 2**20
_MAX_RESULTS, _MAX_RESULT_BYTES = 4096, 128 * 2**20
# Requests that come within a pause of each other are worked on together. The
# pause is a share of what the last program took, because a request that comes
# too late costs one more, and at least so many seconds.
_PAUSE_S, _PAUSE_SHARE = 0.01, 0.02
_MOST_PAUSES = 10


class Outcome(NamedTuple):
  """The body of an answer, and its type."""

  body: bytes
  content_type: str = _JSON


def outcome(**fields: Any) -> Outcome:
  """An answer with these fields."""
  return Outcome(json.dumps(fields).encode())


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceJob:
  """A request that waits.

  Attributes:
    owner: Requests of one owner are worked on in their order.
    run: Function that gets the requests that are worked on together, and yields
      the place of each and its outcome. If it raises, requests without an
      outcome have changed nothing, and may be run again.
    request: The request, as `run` gets it.
    kind: Requests of equal kinds may be worked on together; None: of no others.
    size: Its bytes.
    future: Future of its outcome.
  """

  owner: str
  run: Callable[[Sequence[Any]], Iterator[tuple[int, Outcome]]]
  request: Any = None
  kind: Hashable = None
  size: int = 0
  future: concurrent.futures.Future[Outcome] = dataclasses.field(
    default_factory=concurrent.futures.Future
  )


def alone(
  owner: str, function: Callable[[], Outcome], size: int = 0
) -> DeviceJob:
  """A request that is worked on by itself."""
  return DeviceJob(owner, lambda requests: iter([(0, function())]), size=size)


class JobQueue:
  """Requests by name, from their arrival until their results are dropped.

  A failure is the result of its request: a text, and the category "user" if the
  request was wrong, else "server". If requests that are worked on together
  fail, those without a result are worked on one after another, so that each
  fails for itself. Nothing that `run` raises ends the thread of the device.

  Attributes:
    waiting: Requests that are not worked on yet, in the order of arrival.
  """

  def __init__(self):
    """Begins with none."""
    self.waiting: list[DeviceJob] = []
    self._changed = threading.Condition()
    self._result_bytes = 0
    self._results: collections.OrderedDict[
      str, concurrent.futures.Future[Outcome]
    ] = collections.OrderedDict()
    self._closed = False
    self._program_s = 0.0  # Of the last program.

  def __contains__(self, name: str) -> bool:
    """True if a request waits or has a result."""
    return name in self._results

  def submit(self, name: str, job: DeviceJob) -> None:
    """Queues a request under its number, unless it is there already.

    Raises:
      BadRequest: Too much waits.
    """
    with self._changed:
      if self._closed:
        raise BadRequest("the server ends.", status=503)
      if name in self._results:
        return
      size = sum(x.size for x in (job, *self.waiting))
      if len(self.waiting) >= _MAX_WAITING or size > _MAX_WAITING_BYTES:
        raise BadRequest(
          f"{len(self.waiting)} requests wait; ask again later.", status=429
        )
      self._results[name] = job.future
      self.waiting.append(job)
      self._changed.notify_all()

  def result(self, name: str) -> concurrent.futures.Future[Outcome]:
    """The future of a request.

    Raises:
      BadRequest: There is none, or its result was dropped.
    """
    with self._changed:
      future = self._results.get(name)
    if future is None:
      raise BadRequest(
        f"there is no request {name!r:.80}, or its result was dropped because"
        " nobody fetched it.",
        "request_id",
        status=404,
      )
    return future

  def drop(self, prefix: str, why: str) -> None:
    """Fails the requests that wait, of owners that begin with a prefix."""
    with self._changed:
      waiting, self.waiting = self.waiting, []
      matches: list[DeviceJob] = []
      for job in waiting:
        is_match = job.owner.startswith(prefix)
        (matches if is_match else self.waiting).append(job)
    for job in matches:
      self._settle(job, outcome(error=why, category="server"))

  def close(self) -> None:
    """Refuses requests from now on, and fails those that wait."""
    with self._changed:
      self._closed = True
      self._changed.notify_all()
    self.drop("", "the server ends.")

  def work(self, timeout_s: float) -> bool:
    """Works on the next request, and on those that go together with it.

    It is called by the thread of the device.

    Args:
      timeout_s: The longest wait for a request, in seconds.

    Returns:
      False if none has come in time.
    """
    with self._changed:
      self._changed.wait_for(lambda: self.waiting or self._closed, timeout_s)
      if self.waiting and self.waiting[0].kind is not None:
        pause_s = max(_PAUSE_S, _PAUSE_SHARE * self._program_s)
        end, count = time.monotonic() + _MOST_PAUSES * pause_s, 0
        while count < len(self.waiting) and time.monotonic() < end:
          count = len(self.waiting)
          self._changed.wait(pause_s)
      jobs = self._next()
    start_s = time.monotonic()
    self._run(jobs)
    if jobs and jobs[0].kind is not None:
      self._program_s = time.monotonic() - start_s
    self._drop_old()
    return bool(jobs)

  def _next(self) -> list[DeviceJob]:
    """Takes the requests to work on now."""
    waiting, self.waiting = self.waiting, []
    jobs: list[DeviceJob] = []
    owners: set[str] = set()
    for job in waiting:
      is_alike = job.kind is not None and job.kind == waiting[0].kind
      fits = not jobs or (is_alike and job.owner not in owners)
      (jobs if fits else self.waiting).append(job)
      owners.add(job.owner)
    return jobs

  def _run(self, jobs: Sequence[DeviceJob]) -> None:
    """Works on requests; whatever goes wrong is an outcome too."""
    if not jobs:
      return
    try:
      for i, result in jobs[0].run([job.request for job in jobs]):
        self._settle(jobs[i], result)
    except Exception as error:
      is_refusal = isinstance(error, BadRequest)
      if len(jobs) > 1:  # The error is of one, or of all of them together.
        if not is_refusal:
          warnings.warn(
            f"{len(jobs)} requests together have failed, and are worked on one"
            f" after another: {error}",
            stacklevel=1,
          )
        for job in jobs:
          if not job.future.done():
            self._run([job])
        return
      text = str(error) if is_refusal else f"{type(error).__name__}: {error}"
      category = "user" if is_refusal else "server"
      self._settle(jobs[0], outcome(error=text[:2000], category=category))

  def _settle(self, job: DeviceJob, result: Outcome) -> None:
    with self._changed:
      self._result_bytes += len(result.body)
    job.future.set_result(result)

  def _drop_old(self) -> None:
    """Drops the oldest results, if there are too many."""
    with self._changed:
      for name, future in list(self._results.items()):
        if (
          len(self._results) <= _MAX_RESULTS
          and self._result_bytes <= _MAX_RESULT_BYTES
        ):
          break
        if future.done():
          self._result_bytes -= len(future.result().body)
          del self._results[name]

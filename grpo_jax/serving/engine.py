"""Completions that are asked for while a policy is in memory.

Whoever asks, in whatever thread, puts rows into a queue and gets a future. The
thread that owns the device calls `work`, which collects what is there, draws it
with one compiled program of fixed shape, and fulfils the futures:

    sampler = serving.Sampler(policy, mesh, config, num_rows=16, context_len=64)
    future = sampler.submit([serving.Ask(ids, key, limit=8)])
    sampler.work(params, timeout_s=1.0)
    (drawn,) = future.result()

What is drawn of a row depends on its own fields alone. So the same request gets
the same tokens, whatever else is in the queue.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax.rollout import drawing, resumed, sampling
from grpo_jax.training.runtime import jit, sharding
from grpo_jax.types import Policy, PyTree

MAX_ALTERNATIVES = 20  # Of a token.
# How much longer than one pause rows are waited for, at most.
_MOST_PAUSES = 10


@dataclasses.dataclass(frozen=True)
class Ask:
  """A context, and how to go on after it.

  Attributes:
    ids: Its tokens, at least one.
    key: Data of its key, as `key_of` gives it.
    limit: Most tokens to draw.
    first: Tokens of its completion that are in the context already.
    temperature, top_p: As in `sampling.SamplerConfig`; not read where the
      config of the sampler decides.
    with_alternatives: Whether likely tokens are named at each place, of the
      context too.
  """

  ids: Sequence[int]
  key: np.ndarray
  limit: int
  first: int = 0
  temperature: float = 1.0
  top_p: float = 1.0
  with_alternatives: bool = False


class Generated(NamedTuple):
  """What was drawn after a context; position t of each is about token t.

  Attributes:
    ids: Tokens, with the end token if there is one.
    behavior_logp, sampler_logp, entropy: As in `Rollout`. Nats.
    ended: Whether an end token was drawn.
    alternatives: Of all tokens of context and completion but the first; None
      unless they were asked for.
  """

  ids: list[int]
  behavior_logp: np.ndarray  # [n] float32
  sampler_logp: np.ndarray  # [n] float32
  entropy: np.ndarray  # [n] float32
  ended: bool
  alternatives: resumed.Alternatives | None = None  # [c - 1 + n(, k)]

  def cut(self, size: int) -> Generated:
    """The first so many tokens."""
    if size >= len(self.ids):
      return self
    return Generated(
      self.ids[:size],
      self.behavior_logp[:size],
      self.sampler_logp[:size],
      self.entropy[:size],
      False,
      self.alternatives,
    )


class Full(Exception):
  """More rows wait already than may."""


class Closed(Exception):
  """Nobody will draw what is asked for."""


@dataclasses.dataclass
class _Job:
  """Rows that were asked for together."""

  future: concurrent.futures.Future
  drawn: list[Generated | None]

  def take(self, place: int, drawn: Generated) -> None:
    self.drawn[place] = drawn
    if None not in self.drawn:
      _settle(self.future.set_result, self.drawn)


class Drawer:
  """A queue of contexts, and the program that continues them.

  Attributes:
    calls: Of the program, so far.
    steps: Decode steps of all calls.
  """

  def __init__(
    self,
    policy: Policy,
    mesh: Mesh,
    config: sampling.SamplerConfig,
    num_rows: int,
    context_len: int,
    *,
    is_own: bool = True,
    pause_s: float = 0.005,
    max_waiting: int = 1024,
  ):
    """Compiles nothing yet.

    Args:
      policy: The model.
      mesh: On which its parameters are, all of it of this process.
      config: Length of completions, end tokens, and, unless `is_own`, how
        tokens are drawn.
      num_rows: Most rows at a time; rounded up to a number that splits over
        the devices.
      context_len: Most tokens of a context.
      is_own: Whether rows have temperatures and a top_p of their own.
      pause_s: Rows that come within so many seconds of each other are drawn
        together.
      max_waiting: Most rows in the queue.

    Raises:
      ValueError: The run is one of several processes.
    """
    if jax.process_count() > 1:
      raise ValueError(
        f"serving: this is one of {jax.process_count()} processes, and requests"
        " reach one of them alone; start a single process."
      )
    self.config = config
    self.num_rows = num_rows + -num_rows % sharding.num_row_shards(mesh)
    self.context_len, self.max_waiting = context_len, max_waiting
    self._pause_s = pause_s
    self._rows = sharding.by_rows(mesh)
    self._program = jit.Program(
      functools.partial(resumed.draw, policy, config=config, is_own=is_own),
      sharding.replicated(mesh),
      out_shardings=self._rows,
    )
    self._alternatives = jit.Program(
      functools.partial(resumed.alternatives, policy, k=MAX_ALTERNATIVES),
      sharding.replicated(mesh),
      out_shardings=self._rows,
    )
    self._changed = threading.Condition()
    self._waiting: collections.deque[tuple[_Job, int, Ask]] = (
      collections.deque()
    )
    self._closed = ""
    self.calls = 0

  def submit(self, asks: Sequence[Ask]) -> concurrent.futures.Future:
    """Puts rows into the queue; the future gets a `Generated` for each.

    A future that is cancelled while its rows wait costs nothing.

    Raises:
      Full: There is no room for them.
      Closed: After `close`.
    """
    job = _Job(concurrent.futures.Future(), [None] * len(asks))
    with self._changed:
      if self._closed:
        raise Closed(self._closed)
      if len(self._waiting) + len(asks) > self.max_waiting:
        raise Full(
          f"{len(self._waiting)} rows wait, and {self.max_waiting} may; ask"
          " again later."
        )
      self._waiting += [(job, place, ask) for place, ask in enumerate(asks)]
      self._changed.notify_all()
    return job.future

  def drop(self, why: str) -> None:
    """Fails the futures of rows that wait."""
    with self._changed:
      waiting, self._waiting = self._waiting, collections.deque()
    for job, *_ in waiting:
      _fail(job, Closed(why))

  def close(self, why: str) -> None:
    """Fails the futures of rows that wait, and refuses rows from now on."""
    with self._changed:
      self._closed = why
      self._changed.notify_all()
    self.drop(why)

  def work(self, params: PyTree, timeout_s: float) -> int:
    """Draws what is in the queue, up to `num_rows`.

    Called under `jax.set_mesh`, by one thread.

    Args:
      params: Of the policy, on the devices.
      timeout_s: How long to wait for a first row.

    Returns:
      How many rows were drawn; 0 if none has come in time.
    """
    taken = self._collect(timeout_s)
    if not taken:
      return 0
    try:
      found = self._draw(params, [ask for *_, ask in taken])
    except BaseException as error:
      for job, *_ in taken:
        _fail(job, Closed(f"the sampler has failed: {error}"))
      raise
    for (job, place, _), drawn in zip(taken, found, strict=True):
      job.take(place, drawn)
    return len(taken)

  def _collect(self, timeout_s: float) -> list[tuple[_Job, int, Ask]]:
    """Waits for rows, and for those that come right after them."""
    with self._changed:
      self._changed.wait_for(
        lambda: bool(self._waiting or self._closed), timeout=timeout_s
      )
      end = time.monotonic() + _MOST_PAUSES * self._pause_s
      count = 0
      while count < len(self._waiting) < self.num_rows:
        count = len(self._waiting)
        self._changed.wait(self._pause_s)
        if time.monotonic() > end:
          break
      taken: list[tuple[_Job, int, Ask]] = []
      while self._waiting and len(taken) < self.num_rows:
        row = self._waiting.popleft()
        if not row[0].future.cancelled():
          taken.append(row)
    return taken

  def _draw(self, params: PyTree, asks: Sequence[Ask]) -> list[Generated]:
    """Runs the program; rows that nobody has asked for are not drawn."""
    contexts = sharding.from_local(self._arrays(asks), self._rows)
    completions = self._program(params, contexts)
    others = None
    if any(ask.with_alternatives for ask in asks):
      others = sharding.to_local(
        self._alternatives(params, contexts, completions)
      )
    written = sharding.to_local(completions)
    self.calls += 1
    ends = set(self.config.end_ids)
    found = []
    for row, ask in enumerate(asks):
      size = int(written["completion_mask"][row].sum())
      ids = written["tokens"][row, :size].tolist()
      records = {name: written[name][row, :size] for name in drawing.RECORDS}
      drawn = Generated(ids, **records, ended=bool(ids) and ids[-1] in ends)
      if others is not None and ask.with_alternatives:
        whole = len(ask.ids) - 1 + size
        drawn = drawn._replace(
          alternatives=jax.tree.map(
            lambda x, row=row, whole=whole: x[row, :whole], others
          )
        )
      found.append(drawn)
    return found

  def _arrays(self, asks: Sequence[Ask]) -> resumed.ResumedContexts:
    """NumPy arrays of contexts; the last rows do not exist."""
    shape = self.num_rows, self.context_len
    tokens: Any = np.full(shape, self.config.pad_id, np.int32)
    mask: Any = np.zeros(shape, bool)
    mask[:, -1] = True  # A row without a token has no last one.
    key = asks[0].key
    fields: dict[str, Any] = {
      "keys": np.tile(key, (self.num_rows, *[1] * key.ndim)),
      "first": np.zeros(self.num_rows, np.int32),
      "limits": np.ones(self.num_rows, np.int32),
      "exists": np.arange(self.num_rows) < len(asks),
      "temperature": np.ones(self.num_rows, np.float32),
      "top_p": np.ones(self.num_rows, np.float32),
    }
    for row, ask in enumerate(asks):
      size = len(ask.ids)
      tokens[row, -size:] = ask.ids
      mask[row, -size:] = True
      fields["keys"][row] = ask.key
      fields["first"][row] = ask.first
      fields["limits"][row] = ask.limit
      fields["temperature"][row] = ask.temperature
      fields["top_p"][row] = ask.top_p
    return resumed.ResumedContexts(tokens=tokens, mask=mask, **fields)


@jax.jit
def _key_data(seed: jax.Array, folded: Sequence[jax.Array]) -> jax.Array:
  key = functools.reduce(jax.random.fold_in, folded, jax.random.key(seed))
  return jax.random.key_data(key)


def key_of(seed: int, *folded: int) -> np.ndarray:
  """Data of a key of draws, as arrays of the host.

  `key_of(seed, 0, i, 0)` is that of the i-th completion of the first prompt of
  `run.sample(…, seed=seed)`.
  """
  with jax.transfer_guard("allow"):
    return np.asarray(_key_data(np.int32(seed), list(map(np.int32, folded))))


def _fail(job: _Job, error: Exception) -> None:
  _settle(job.future.set_exception, error)


def _settle(put: Callable[[Any], None], value: Any) -> None:
  """Puts an outcome into a future, unless it has one, or was cancelled.

  Whoever asked may cancel it at any time, from another thread.
  """
  with contextlib.suppress(concurrent.futures.InvalidStateError):
    put(value)

"""Completions on request, while a policy is in memory.

Any thread puts rows into a queue and gets a future. The thread that owns the
device calls `work`, which collects the waiting rows, draws their completions
with one compiled program of fixed shape, and fulfils the futures:

    sampler = engine.Drawer(policy, mesh, config, num_rows=16, context_len=64)
    future = sampler.submit([engine.Ask(ids, key, limit=8)])
    sampler.work(params, timeout_s=1.0)
    (drawn,) = future.result()

A row's completion depends on the row's own fields alone. So the same request
gets the same tokens, whatever else is in the queue.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax.rollout import drawing, resumed, sampling, together
from grpo_jax.training.runtime import jit, sharding
from grpo_jax.types import Policy, PyTree

MAX_ALTERNATIVES = 20  # At one place.
# The longest wait for more rows, in pauses.
_MOST_PAUSES = 10


@dataclasses.dataclass(frozen=True)
class Ask:
  """A context, and the settings of its completion.

  Attributes:
    ids: Tokens of the context, at least one.
    key: Data of the random key, as `key_of` gives it.
    limit: Most tokens to draw.
    first: Tokens of the completion that are in the context already.
    temperature, top_p: As in `sampling.SamplerConfig`; ignored if the config of
      the sampler decides.
    with_alternatives: Asks for the likely tokens at each place, of the context
      too.
  """

  ids: Sequence[int]
  key: np.ndarray
  limit: int
  first: int = 0
  temperature: float = 1.0
  top_p: float = 1.0
  with_alternatives: bool = False


class Generated(NamedTuple):
  """The completion of a context; position t of each array is about token t.

  Attributes:
    ids: Tokens, with the end token if there is one.
    behavior_logp, sampler_logp, entropy: As in `Rollout`. Nats.
    ended: True if an end token was drawn.
    alternatives: Likely tokens in the place of each token of context and
      completion but the first; None unless they were asked for.
  """

  ids: list[int]
  behavior_logp: np.ndarray  # [n] float32
  sampler_logp: np.ndarray  # [n] float32
  entropy: np.ndarray  # [n] float32
  ended: bool
  alternatives: resumed.Alternatives | None = None  # [c - 1 + n(, k)]

  def cut(self, size: int) -> Generated:
    """Returns the first `size` tokens of the completion."""
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
  """The error of a queue that has no room for more rows."""


class Closed(Exception):
  """The error of rows that will never be drawn."""


@dataclasses.dataclass
class _Job:
  """Rows that were submitted together."""

  future: concurrent.futures.Future
  completions: list[Generated | None]

  def take(self, place: int, completion: Generated) -> None:
    self.completions[place] = completion
    if None not in self.completions:
      _settle(self.future.set_result, self.completions)


class ContextProgram:
  """The program that continues contexts of one policy.

  It also continues those of several policies that differ in trained parameters
  alone; see `together.py`.

  Equal contexts can be read once for 2, 4, … rows. That takes less time, and
  another program for each of these numbers. Then log-probs depend, to
  round-off, on the rows that are drawn together.

  Attributes:
    num_rows: Rows of a policy.
  """

  def __init__(
    self,
    policy: Policy,
    mesh: Mesh,
    config: sampling.SamplerConfig,
    num_rows: int,
    context_len: int,
    is_own: bool = True,
    shares: bool = False,
  ):
    """Compiles nothing yet; for other arguments and errors see `Drawer`.

    Args:
      shares: True if equal contexts are read once.
    """
    if jax.process_count() > 1:
      raise ValueError(
        f"serving: this is one of {jax.process_count()} processes, and requests"
        " reach one of them alone; start a single process."
      )
    num_shards = sharding.num_row_shards(mesh)
    self.num_rows = num_rows + -num_rows % num_shards
    most = self.num_rows // num_shards if shares else 1
    # Numbers of rows that read a context, each of which divides `most`.
    self._shares = [
      1 << n for n in range(most.bit_length()) if not most % (1 << n)
    ]
    self._config, self._context_len = config, context_len
    self._rows = sharding.by_rows(mesh)

    def draw(frozen, own):
      trained, contexts = own
      params = {"trained": trained, "frozen": frozen}
      return resumed.draw(policy, params, contexts, config, is_own)

    def alternatives(frozen, own):
      trained, contexts, draws = own
      params = {"trained": trained, "frozen": frozen}
      return resumed.alternatives(
        policy, params, contexts, draws, MAX_ALTERNATIVES
      )

    self._draws, self._alternatives = (
      jit.Program(
        together.program(function),
        sharding.replicated(mesh),
        out_shardings=self._rows,
      )
      for function in (draw, alternatives)
    )

  def draw(
    self, frozen: PyTree, contexts: Sequence[tuple[PyTree, Sequence[Ask]]]
  ) -> list[list[Generated]]:
    """Runs the program, under `jax.set_mesh`.

    Args:
      frozen: Frozen parameters.
      contexts: Trained parameters of each policy, and its contexts, at most as
        many as there are rows; the rows beyond them are not drawn.
    """
    share = max(
      n
      for n in self._shares
      if all(max(_rows(asks, n)) < self.num_rows for _, asks in contexts)
    )
    own: list[Any] = [
      (trained, sharding.from_local(self._arrays(asks, share), self._rows))
      for trained, asks in contexts
    ]
    draws = self._draws(frozen, *own)
    others: Any = [None] * len(contexts)
    if any(ask.with_alternatives for _, asks in contexts for ask in asks):
      own = [(*x, y) for x, y in zip(own, draws, strict=True)]
      others = sharding.to_local(self._alternatives(frozen, *own))
    draws = sharding.to_local(draws)
    return [
      self._completions(asks, share, x, y)
      for (_, asks), x, y in zip(contexts, draws, others, strict=True)
    ]

  def _completions(
    self,
    asks: Sequence[Ask],
    share: int,
    arrays: Mapping[str, Any],  # each [B, T]
    others: resumed.Alternatives | None,
  ) -> list[Generated]:
    """The completions of contexts, from the arrays of all rows."""
    ends = set(self._config.end_ids)
    results = []
    for ask, row in zip(asks, _rows(asks, share), strict=True):
      size = int(arrays["completion_mask"][row].sum())
      ids = arrays["tokens"][row, :size].tolist()
      records = {name: arrays[name][row, :size] for name in drawing.RECORDS}
      result = Generated(ids, **records, ended=bool(ids) and ids[-1] in ends)
      if others is not None and ask.with_alternatives:
        length = len(ask.ids) - 1 + size
        result = result._replace(
          alternatives=jax.tree.map(
            lambda x, row=row, length=length: x[row, :length], others
          )
        )
      results.append(result)
    return results

  def _arrays(self, asks: Sequence[Ask], share: int) -> resumed.ResumedContexts:
    """Returns NumPy arrays of contexts; rows without one do not exist."""
    shape = self.num_rows // share, self._context_len
    tokens: Any = np.full(shape, self._config.pad_id, np.int32)
    mask: Any = np.zeros(shape, bool)
    mask[:, -1] = True  # A row without a token would have no last token.
    key = asks[0].key
    fields: dict[str, Any] = {
      "keys": np.tile(key, (self.num_rows, *[1] * key.ndim)),
      "first": np.zeros(self.num_rows, np.int32),
      "limits": np.ones(self.num_rows, np.int32),
      "exists": np.zeros(self.num_rows, bool),
      "temperature": np.ones(self.num_rows, np.float32),
      "top_p": np.ones(self.num_rows, np.float32),
    }
    for ask, row in zip(asks, _rows(asks, share), strict=True):
      size = len(ask.ids)
      tokens[row // share, -size:] = ask.ids
      mask[row // share, -size:] = True
      fields["exists"][row] = True
      fields["keys"][row] = ask.key
      fields["first"][row] = ask.first
      fields["limits"][row] = ask.limit
      fields["temperature"][row] = ask.temperature
      fields["top_p"][row] = ask.top_p
    return resumed.ResumedContexts(tokens=tokens, mask=mask, **fields)


def _rows(asks: Sequence[Ask], share: int) -> list[int]:
  """The row of each context; every `share` rows have equal contexts."""
  rows: list[int] = []
  last: dict[tuple[int, ...], int] = {}  # The last row of a context.
  free = 0
  for ask in asks:
    row = last.get(tuple(ask.ids), -1) + 1
    if row % share == 0:  # There are none of that context, or no more.
      row, free = free, free + share
    last[tuple(ask.ids)] = row
    rows.append(row)
  return rows


class Drawer:
  """A queue of contexts, and the program that continues them.

  Attributes:
    calls: Number of the program's calls so far.
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
      mesh: The mesh of the parameters; all its devices belong to this process.
      config: Length of completions, end tokens, and, unless `is_own`, how
        tokens are drawn.
      num_rows: Most rows at a time; rounded up to a number that splits over
        the devices.
      context_len: Most tokens of a context.
      is_own: True if each row has a temperature and a top_p of its own.
      pause_s: Rows that come within so many seconds of each other are drawn
        together.
      max_waiting: Most rows in the queue.

    Raises:
      ValueError: The run is one of several processes.
    """
    self.config = config
    self.context_len, self.max_waiting = context_len, max_waiting
    self._pause_s = pause_s
    self._program = ContextProgram(
      policy, mesh, config, num_rows, context_len, is_own
    )
    self.num_rows = self._program.num_rows
    self._changed = threading.Condition()
    self._waiting: collections.deque[tuple[_Job, int, Ask]] = (
      collections.deque()
    )
    self._closed = ""
    self.calls = 0

  def submit(self, asks: Sequence[Ask]) -> concurrent.futures.Future:
    """Puts rows into the queue; the future gets a `Generated` for each row.

    A future that is cancelled while its rows wait costs nothing.

    Raises:
      Full: The queue has no room for the rows.
      Closed: `close` was called before.
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
    """Fails the futures of the rows that wait."""
    with self._changed:
      waiting, self._waiting = self._waiting, collections.deque()
    for job, *_ in waiting:
      _fail(job, Closed(why))

  def close(self, why: str) -> None:
    """Fails the futures of the rows that wait, and refuses rows from now on."""
    with self._changed:
      self._closed = why
      self._changed.notify_all()
    self.drop(why)

  def work(self, params: PyTree, timeout_s: float) -> int:
    """Draws completions of the rows in the queue, up to `num_rows`.

    It is called under `jax.set_mesh`, by one thread.

    Args:
      params: Parameters of the policy, on the devices.
      timeout_s: The longest wait for a first row, in seconds.

    Returns:
      The number of rows drawn; 0 if no row has come in time.
    """
    rows = self._collect(timeout_s)
    if not rows:
      return 0
    try:
      asks = [ask for *_, ask in rows]
      (completions,) = self._program.draw(
        params["frozen"], [(params["trained"], asks)]
      )
    except BaseException as error:
      for job, *_ in rows:
        _fail(job, Closed(f"the sampler has failed: {error}"))
      raise
    self.calls += 1
    for (job, place, _), completion in zip(rows, completions, strict=True):
      job.take(place, completion)
    return len(rows)

  def _collect(self, timeout_s: float) -> list[tuple[_Job, int, Ask]]:
    """Waits for a row, and for the rows that come right after it."""
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
      rows: list[tuple[_Job, int, Ask]] = []
      while self._waiting and len(rows) < self.num_rows:
        row = self._waiting.popleft()
        if not row[0].future.done():  # Cancelled, or failed by other rows.
          rows.append(row)
    return rows


@jax.jit
def _key_data(seed: jax.Array, folded: Sequence[jax.Array]) -> jax.Array:
  key = functools.reduce(jax.random.fold_in, folded, jax.random.key(seed))
  return jax.random.key_data(key)


def key_of(seed: int, *folded: int) -> np.ndarray:
  """Returns the data of a random key for draws, as arrays of the host.

  For example, `key_of(seed, 0, i, 0)` is the key of the i-th completion of the
  first prompt of `run.sample(…, seed=seed)`.
  """
  with jax.transfer_guard("allow"):
    return np.asarray(_key_data(np.int32(seed), list(map(np.int32, folded))))


def _fail(job: _Job, error: Exception) -> None:
  _settle(job.future.set_exception, error)


def _settle(setter: Callable[[Any], None], value: Any) -> None:
  """Puts a result into a future, unless it has one or was cancelled.

  Another thread may cancel the future at any time.
  """
  with contextlib.suppress(concurrent.futures.InvalidStateError):
    setter(value)

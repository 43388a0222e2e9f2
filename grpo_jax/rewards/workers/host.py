"""Host reward functions, scored in processes that can be killed.

A verifier may hang, crash or end its process, and none of that may stop the run
or be taken for a reward. Each row has a deadline. A worker that exceeds it is
killed, its row is marked unscored, and a new worker takes over (`pool.py`).

Short rows travel together, and so do rows that wait (`async`). If a worker is
lost with several rows, each is tried once more, alone: one row fails, and the
others have their scores.

Slow rows come last. Suppose that all rows of a call would take more than half
of its time if each took its whole deadline. Then each is first given an equal
share of that half. A row that takes longer is tried again after all others have
their scores, each time for four times as long, up to the whole deadline. So
slow rows take time from each other, and not from good rows.

An evaluation (`score`) tries rows that timed out once more. In training such a
row is unscored: the time says as much about the load as about the row. But a
policy that is evaluated must not be able to choose that by its completions. So
each such row is scored once more, alone, and if it times out again, it is
wrong.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.rewards import registry
from grpo_jax.rewards.workers import frames, pool, reward_worker

FAILURE_KINDS = pool.FAILURE_KINDS


class WorkerScores(NamedTuple):
  """The scores that the reward functions gave to B rows.

  Attributes:
    components: Each reward by name, before weights; NaN if it does not apply or
      the row failed.
    failed: True where any component failed; such a row is unscored.
    failures: Number of failed rows by kind: "raised" (also a wrong number of
      results, or a result that is not a number), "timeout" (also a slow row for
      whose second try no time was left), "nan" (also a number that is infinite
      or beyond `ranges.MAX_REWARD`), "worker_died" (also a worker that answers
      twice, or nonsense), "step_timeout" (no time was left for a first try: a
      row that may have been good).
    errors: Up to 3 messages of failures.
    messages: Kind and message of each failed row.
    steps: The scored steps of each row, (characters up to the end of the step,
      score); None if no function scores steps.
  """

  components: dict[str, np.ndarray]  # each [B] float32
  failed: np.ndarray  # [B] bool
  failures: dict[str, int]
  errors: list[str]
  messages: dict[int, str]
  steps: list[list[tuple[int, float]]] | None = None


def together(parts: Sequence[WorkerScores]) -> WorkerScores:
  """Joins the scores of several scorers; a row failed if one of them failed."""
  messages: dict[int, str] = {}
  failures: dict[str, int] = {}
  for part in parts:
    messages = part.messages | messages
    failures |= part.failures
  return WorkerScores(
    {name: x for part in parts for name, x in part.components.items()},
    np.any([part.failed for part in parts], axis=0),
    failures,
    [message for part in parts for message in part.errors][:3],
    messages,
    next((x.steps for x in parts if x.steps is not None), None),
  )


# Least seconds for a first try. To replace a worker costs about as much.
_MIN_FIRST_S = 0.25


_LONGER = 4  # Each try is longer than the one before by this factor.


# Units that wait at the same time in one worker.
_MAX_WAITING = 64

# Rows travel together if at least so many have been scored, and each took a
# worker less than this on average: messages would take most of the time.
_FEWEST_KNOWN = 32
_CHEAP_S = 0.002
_BATCH_S = 0.02  # For rows that travel together.
_MAX_BATCH = 256
_MAX_BATCH_CHARS = 1 << 20  # Characters of their completions.


class _Item(NamedTuple):
  """One question to a worker.

  Attributes:
    kind: Index of `registry.KINDS`.
    units: Each unit is one row, or the rows of one prompt, by their index.
  """

  kind: int
  units: tuple[tuple[int, ...], ...]

  @property
  def rows(self) -> list[int]:
    return [row for unit in self.units for row in unit]

  @property
  def is_async(self) -> bool:
    return registry.KINDS[self.kind].is_async


class _Call(pool.PoolCall):
  """The items of one call of `HostScorer.score`, and their results so far."""

  pause_s = 0.001

  def __init__(
    self,
    items: list[_Item],
    names: Sequence[Sequence[int]],
    num_functions: int,
    rows: list[reward_worker.Row],
    first_s: float,
    last_s: float,
  ):
    super().__init__(range(len(items)), pool.Failures(len(rows)))
    self.items = items
    self.rows = rows
    self.values = np.full((len(rows), num_functions), np.nan)
    self.steps: list[list[tuple[int, float]]] = [[] for _ in rows]
    # For the functions of each kind, their columns of `values`; -1: steps.
    self._columns = names
    self._first_s = first_s
    self._last_s = last_s
    # Seconds for the next try of rows that were slow.
    self._slow_s: dict[int, float] = {}
    self._later: collections.deque[int] = collections.deque()
    self._alone: set[int] = set()  # Workers with a row that may take long.

  @property
  def num_pending(self) -> int:
    return len(self.pending) + len(self._later)

  def message(self, index: int) -> Any:
    kind, units = self.items[index]
    return [kind, [[self.rows[row] for row in unit] for unit in units]]

  def record(
    self, index: int, content: Any, failure: frames.Failure | None
  ) -> None:
    del failure  # Units have failures, and items do not.
    kind, units = self.items[index]
    self.num_answered += len(units) - 1  # The pool counts one.
    columns = self._columns[kind]
    answers = content if isinstance(content, list) else []
    if len(answers) != len(units):
      raise ValueError(f"it said {content!r:.80} of {len(units)} units")
    parsed = [
      _unit_rewards(answer, len(columns), len(unit))
      for answer, unit in zip(answers, units, strict=True)
    ]
    for unit, (rewards, why) in zip(units, parsed, strict=True):
      for column, of_rows in zip(columns, rewards, strict=True):
        for row, reward in zip(unit, of_rows, strict=True):
          if column < 0:
            self.steps[row] = [
              (int(frames.reward(end)), frames.reward(score))
              for end, score in reward or ()
            ]
          elif reward is not None:  # Else it stays NaN.
            self.values[row, column] = frames.reward(reward)
      if why is not None:
        for row in unit:
          self.failures.add(row, *why)

  def fail(self, index: int, kind: str, message: str) -> None:
    item = self.items[index]
    if len(item.units) == 1:
      self._fail_rows(index, kind, message)
      return
    # One of several units is to blame: each is tried once more, alone.
    for unit in item.units:
      self._later.append(len(self.items))
      self.items.append(_Item(item.kind, (unit,)))

  def _fail_rows(self, index: int, kind: str, message: str) -> None:
    for row in self.items[index].rows:
      self.failures.add(row, kind, message)

  def take(self, slot: int, num_workers: int, num_open: int) -> list[int]:
    if num_open and slot in self._alone:
      return []
    self._alone.discard(slot)
    if self.pending and not self.items[self.pending[0]].is_async:
      row_s = num_workers * (time.monotonic() - self.start)
      row_s /= max(self.num_answered, 1)
      if self.num_answered < _FEWEST_KNOWN or row_s > _CHEAP_S:
        return super().take(slot, num_workers, num_open)
      if num_open > 1:
        return []
      most = min(int(_BATCH_S / row_s), _MAX_BATCH)
      # Smaller towards the end, so that the workers finish together.
      return [self._together(min(most, len(self.pending) // num_workers // 2))]
    # An item that may take long: no other item waits behind it.
    queue = self.pending or self._later
    if num_open or not queue:
      return []
    self._alone.add(slot)
    return [queue.popleft()]

  def _together(self, most: int) -> int:
    """Joins up to `most` pending units of a kind into one item."""
    first = self.pending.popleft()
    kind, units = self.items[first]
    num_chars = 0
    while self.pending and len(units) < most:
      following = self.items[self.pending[0]]
      num_chars += sum(len(self.rows[row][1]) for row in following.rows)
      if following.kind != kind or num_chars > _MAX_BATCH_CHARS:
        break
      self.pending.popleft()
      units += following.units
    if len(units) == len(self.items[first].units):
      return first
    self.items.append(_Item(kind, units))
    return len(self.items) - 1

  def timeout_s(self, index: int) -> float:
    if self.items[index].is_async:  # Each row has its deadline in the worker.
      return 2 * self._last_s
    return self._slow_s.get(index, self._first_s)

  def late(self, index: int) -> None:
    seconds, item = self.timeout_s(index), self.items[index]
    if seconds < self._last_s and not item.is_async and len(item.units) == 1:
      self._slow_s[index] = min(_LONGER * seconds, self._last_s)
      self._later.append(index)
    else:
      super().late(index)

  def out_of_time(self, rows: Sequence[int], message: str) -> None:
    items = (*self.pending, *self._later, *rows)
    untried = [index for index in items if index not in self._slow_s]
    number = sum(len(self.items[index].rows) for index in untried)
    for index in untried:
      text = f"one of {number} that were not tried; {message}"
      self._fail_rows(index, "step_timeout", text)
    for index in set(items).difference(untried):
      self._fail_rows(index, "timeout", f"it is slow; {message}")


def _unit_rewards(
  answer: Any, num_functions: int, num_rows: int
) -> tuple[list[list[Any]], frames.Failure | None]:
  """Returns a worker's answer about a unit, if it has the right form.

  Raises:
    ValueError: The answer has another form.
  """
  match answer:
    case [list(values), failure] if len(values) == num_functions and all(
      isinstance(column, list) and len(column) == num_rows for column in values
    ):
      if failure is None:
        return values, None
      return values, frames.answer([0, None, failure]).failure
  raise ValueError(f"it said {answer!r:.80} of {num_functions} functions")


class HostScorer:
  """Scores completions by Python functions, in a pool of worker processes.

  A function takes (prompts, completions, ids, extras) and returns one number,
  or None for "not applicable", per row. See `registry.py` and
  `reward_worker.py` for the whole contract. Not reentrant.

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
    variables: Sequence[str] = (),
    worker_memory_gib: float = 4.0,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    steps: str = "",
    context: registry.Context | None = None,
    domains: Mapping[str, Sequence[int]] | None = None,
  ):
    """Starts the workers and waits until they have imported everything.

    Args:
      functions: Name of each component -> "package.module:function", or a name
        of `registry.BUILTIN`.
      weights: Name -> finite weight in the total reward; for `combine`.
      row_timeout_s: Seconds for all functions on one row.
      step_timeout_s: Seconds for one call of `score`.
      num_workers: Number of processes.
      variables: Names of environment variables that the functions get besides
        those of `processes.VARIABLES`.
      worker_memory_gib: GiB that a worker may hold beyond its memory when it
        was ready; see `pool.Pool`. 0: there is no limit.
      options: Name -> keyword arguments of the function.
      steps: Import path of a function that scores steps, or a name of
        `registry.STEPS`; empty for none. For each row it returns a list of
        (characters of the completion up to the end of a step, its score).
      context: Values for functions that ask for them; its deadline is
        `row_timeout_s`.
      domains: Name -> domains of prompts, by number, for which the function is
        called; it applies to no other row. A function that is not named is
        called for all rows.

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
          f"HostScorer: weight of '{name}' is {weight}; needs a finite number."
        )
    self.functions = dict(functions)
    self.weights = dict(weights)
    self.step_timeout_s = step_timeout_s
    self._row_timeout_s = row_timeout_s
    paths = self.functions | ({reward_worker.STEPS: steps} if steps else {})
    self.options = options = options or {}
    self.has_steps = bool(steps)
    context = dataclasses.replace(
      context or registry.Context(), timeout_s=row_timeout_s
    )
    self._pool = pool.Pool(
      "HostScorer",
      "reward_worker",
      {
        "functions": paths,
        "options": {name: dict(x) for name, x in options.items()},
        "context": dataclasses.asdict(context),
        "domains": {name: [*x] for name, x in (domains or {}).items()},
      },
      num_workers,
      row_timeout_s,
      step_timeout_s,
      variables=variables,
      memory_gib=worker_memory_gib,
      # A slow import takes its time once, here and in the workers.
      meanwhile=lambda: self._load(paths),
    )

  def _load(self, paths: Mapping[str, str]) -> None:
    """Imports the functions, and determines the kinds of their calls."""
    functions = {}
    for name, path in paths.items():  # Errors are raised in this process.
      functions[name] = registry.load_function(path)
      registry.check_options(path, self.options.get(name, {}))
    kinds = [registry.kind(f) for f in functions.values()]
    # For the functions of each kind, the columns of their values.
    self._columns = [
      [
        -1 if name == reward_worker.STEPS else k
        for k, name in enumerate(paths)
        if kinds[k] == kind
      ]
      for kind in registry.KINDS
    ]
    arguments = set().union(*map(registry.asks_for, functions.values()))
    self.reads_tokens = "tokens" in arguments

  def __enter__(self) -> HostScorer:
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def close(self) -> None:
    """Kills the workers. May be called again."""
    self._pool.close()

  @property
  def sees_groups(self) -> bool:
    """True if a function compares the completions of a prompt."""
    return any(
      kind.sees_group and columns
      for kind, columns in zip(registry.KINDS, self._columns, strict=True)
    )

  def score(
    self,
    prompts: Sequence[str],
    completions: Sequence[str],
    ids: Sequence[int],
    extras: Sequence[Mapping[str, Any]],
    tokens: Sequence[Sequence[int]] | None = None,
  ) -> WorkerScores:
    """Scores B rows, in order; after `step_timeout_s` the others fail.

    Args:
      prompts: Decoded prompt of each row.
      completions: Decoded completion of each row.
      ids: Occurrence of each row's prompt in the data stream. Rows with the
        same id are a group.
      extras: Data of each row for the functions: plain data, as in JSON.
        NumPy's values become numbers and lists.
      tokens: Token ids of each completion, for functions that ask for them.

    Raises:
      ValueError: The arguments have unequal lengths.
      RuntimeError: The scorer is closed, or a worker cannot be replaced.
    """
    columns: list[Sequence[Any]] = [prompts, completions, ids, extras]
    if self.reads_tokens and tokens is not None:
      columns.append(tokens)
    lengths = [len(column) for column in columns]
    if len(set(lengths)) != 1:
      raise ValueError(
        "HostScorer.score: received prompts, completions, ids and extras of"
        f" lengths {lengths}; needs one of each per row."
      )
    tokens_of_rows: list[Any] = [None] * len(prompts)
    if len(columns) > 4:
      tokens_of_rows = [list(map(int, row)) for row in columns[4]]
    rows: list[Any] = list(
      zip(
        prompts,
        completions,
        map(int, ids),
        map(dict, extras),
        tokens_of_rows,
        strict=True,
      )
    )
    items = self._items([row[2] for row in rows])
    call = _Call(
      items,
      self._columns,
      len(self.functions),
      rows,
      self._first_s(len(items)),
      self._row_timeout_s,
    )
    self._pool.run(call, self.step_timeout_s)
    values = call.values.T.astype(np.float32)
    components = dict(zip(self.functions, values.copy(), strict=True))
    failures = call.failures
    return WorkerScores(
      components,
      failures.failed,
      failures.counts,
      failures.errors,
      failures.messages,
      call.steps if self.has_steps else None,
    )

  def _items(self, ids: Sequence[int]) -> list[_Item]:
    """Returns the questions about rows, those of `async` functions first."""
    groups: dict[int, list[int]] = {}
    for row, id_ in enumerate(ids):
      groups.setdefault(id_, []).append(row)
    items = []
    for k, kind in enumerate(registry.KINDS):
      if not self._columns[k]:
        continue
      units: list[tuple[int, ...]] = [(row,) for row in range(len(ids))]
      if kind.sees_group:
        units = [tuple(rows) for rows in groups.values()]
      size = _MAX_WAITING if kind.is_async else 1
      items += [
        _Item(k, tuple(units[i : i + size])) for i in range(0, len(units), size)
      ]
    return items

  def _first_s(self, num_items: int) -> float:
    """Returns the seconds for the first try of an item."""
    half = self.step_timeout_s * self._pool.num_workers / 2
    seconds = max(half / max(num_items, 1), _MIN_FIRST_S)
    return min(seconds, self._row_timeout_s)


_TIMEOUTS = ("timeout", "step_timeout")


def score(
  scorer: HostScorer,
  prompts: Sequence[str],
  completions: Sequence[str],
  ids: Sequence[int],
  extras: Sequence[Mapping[str, Any]],
  tokens: Sequence[Sequence[int]] | None = None,
  *,
  correct: str,
) -> WorkerScores:
  """Scores B rows like `HostScorer.score`, and rows that timed out once more.

  The second tries are made one after another, so that no other row takes their
  time, and have `step_timeout_s` together: rows for which no time is left stay
  unscored. If a function compares the completions of a prompt, they are tried
  again together.

  Args:
    correct: The component that is 0 if a row times out again.

  Returns:
    Components and failed rows after the second try; counts and messages of the
    first.
  """
  columns: list[Sequence[Any]] = [prompts, completions, ids, extras]
  if tokens is not None:
    columns.append(tokens)
  first = scorer.score(*columns)
  if not _timed_out(first):
    return first
  components = {name: x.copy() for name, x in first.components.items()}
  failed = first.failed.copy()
  steps = None if first.steps is None else list(first.steps)
  end = time.monotonic() + scorer.step_timeout_s
  # The kind of a row's failure is not known, so all failed rows are tried.
  for rows in _units(scorer, ids, np.flatnonzero(first.failed).tolist()):
    if time.monotonic() >= end:
      break
    part: list[Any] = [[column[b] for b in rows] for column in columns]
    second = scorer.score(*part)
    for name, values in second.components.items():
      components[name][rows] = values
    failed[rows] = second.failed
    for b, of_row in zip(rows, second.steps or (), strict=False):
      assert steps is not None
      steps[b] = of_row
    if _timed_out(second):
      late = [b for b, bad in zip(rows, second.failed, strict=True) if bad]
      failed[late] = False
      components[correct][late] = np.nan_to_num(components[correct][late])
  return first._replace(components=components, failed=failed, steps=steps)


def _units(
  scorer: HostScorer, ids: Sequence[int], failed: Sequence[int]
) -> list[list[int]]:
  """Returns the rows that are tried again together."""
  if not scorer.sees_groups:
    return [[b] for b in failed]
  again = dict.fromkeys(ids[b] for b in failed)
  return [[b for b, id_ in enumerate(ids) if id_ == group] for group in again]


def _timed_out(scores: WorkerScores) -> int:
  return sum(scores.failures[kind] for kind in _TIMEOUTS)

"""Host reward functions, scored in processes that can be killed.

One idea: a verifier may hang, crash or end its process, and none of that may
stop the run or be taken for a reward. Each row has a deadline; what exceeds it
is killed, its row is marked unscored, and a new worker takes over (`pool.py`).

Slow rows come last. Where all rows of a call would take more than half of its
time if each took its whole deadline, each is first given an equal share of that
half, and what takes longer is tried again after all others have their scores,
each time for four times as long, up to the whole deadline. So slow rows take
time from each other, and not from those that are good.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.rewards import frames, pool
from grpo_jax.rewards import worker as worker_lib

FAILURE_KINDS = pool.FAILURE_KINDS


class HostScores(NamedTuple):
  """What the reward functions said about B rows.

  Attributes:
    components: Each reward by name, before weights; NaN where it does not
      apply or the row failed.
    failed: True where any component failed; such a row is unscored.
    failures: Number of failed rows by kind: "raised" (also a wrong number of
      results or no number), "timeout" (also of a row that was slow, and for
      whose second try no time was left), "nan", "worker_died" (also of what
      answers twice, or nonsense), "step_timeout" (no time was left for a first
      try: a row that may have been good).
    errors: Up to 3 messages of failures.
  """

  components: dict[str, np.ndarray]  # each [B] float32
  failed: np.ndarray  # [B] bool
  failures: dict[str, int]
  errors: list[str]


# Seconds for a first try, at least. A worker that takes the place of another
# one costs about as much.
_MIN_FIRST_S = 0.25


_LONGER = 4  # By this factor is each try longer than the one before.


class _Call(pool.Call):
  """The rows of one call of `HostScorer.score`, and their results so far."""

  def __init__(
    self,
    names: Sequence[str],
    rows: list[worker_lib.Row],
    first_s: float,
    last_s: float,
  ):
    super().__init__(range(len(rows)), pool.Failures(len(rows)))
    self.rows = rows
    self.values = np.full((len(rows), len(names)), np.nan, np.float32)
    self._first_s = first_s
    self._last_s = last_s
    # Seconds for the next try of rows that were slow.
    self._slow_s: dict[int, float] = {}
    self._later: collections.deque[int] = collections.deque()

  @property
  def num_pending(self) -> int:
    return len(self.pending) + len(self._later)

  def message(self, index: int) -> worker_lib.Row:
    return self.rows[index]

  def record(
    self, index: int, content: Any, failure: frames.Failure | None
  ) -> None:
    size = self.values.shape[1]
    if not isinstance(content, list) or len(content) != size:
      raise ValueError(f"it said {content!r:.80} of {size} rewards")
    values = [np.nan if x is None else frames.number(x) for x in content]
    with np.errstate(over="ignore"):  # Beyond float32: inf, seen by `combine`.
      self.values[index] = values
    if failure is not None:
      self.failures.add(index, *failure)

  def take(self, slot: int, num_workers: int) -> list[int]:
    if self.pending or not self._later:
      return super().take(slot, num_workers)
    return [self._later.popleft()]  # None waits behind another one.

  def timeout_s(self, index: int) -> float:
    return self._slow_s.get(index, self._first_s)

  def late(self, index: int) -> None:
    seconds = self.timeout_s(index)
    if seconds < self._last_s:
      self._slow_s[index] = min(_LONGER * seconds, self._last_s)
      self._later.append(index)
    else:
      super().late(index)

  def out_of_time(self, rows: Sequence[int], message: str) -> None:
    rows = (*self.pending, *self._later, *rows)
    untried = [index for index in rows if index not in self._slow_s]
    for index in untried:
      text = f"one of {len(untried)} that were not tried; {message}"
      self.failures.add(index, "step_timeout", text)
    for index in set(rows).difference(untried):
      self.failures.add(index, "timeout", f"it is slow; {message}")


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
    variables: Sequence[str] = (),
  ):
    """Starts the workers and waits until they have imported everything.

    Args:
      functions: Name of each component -> "package.module:function", or
        "math_accuracy" or "think_answer_format".
      weights: Name -> finite weight in the total reward; for `combine`.
      row_timeout_s: Seconds for all functions on one row.
      step_timeout_s: Seconds for one call of `score`.
      num_workers: Processes.
      variables: Names of environment variables that the functions get besides
        those of `processes.VARIABLES`.

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
    for path in functions.values():
      worker_lib.load_function(path)  # Raises here, where it is read.
    self.functions = dict(functions)
    self.weights = dict(weights)
    self.step_timeout_s = step_timeout_s
    self._row_timeout_s = row_timeout_s
    self._pool = pool.Pool(
      "HostScorer",
      "worker",
      self.functions,
      num_workers,
      row_timeout_s,
      step_timeout_s,
      variables=variables,
    )

  def __enter__(self) -> HostScorer:
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def close(self) -> None:
    """Kills the workers. May be called again."""
    self._pool.close()

  def score(
    self,
    prompts: Sequence[str],
    completions: Sequence[str],
    ids: Sequence[int],
    extras: Sequence[Mapping[str, Any]],
  ) -> HostScores:
    """Scores B rows, in order, within about `step_timeout_s`.

    Args:
      prompts: Decoded prompt of each row.
      completions: Decoded completion of each row.
      ids: Occurrence of each row's prompt in the data stream.
      extras: What the functions need of each row: plain data, as in JSON. They
        get NumPy's values as numbers and lists.

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
    rows: list[Any] = list(
      zip(prompts, completions, map(int, ids), map(dict, extras), strict=True)
    )
    call = _Call(
      tuple(self.functions),
      rows,
      self._first_s(len(rows)),
      self._row_timeout_s,
    )
    self._pool.run(call, self.step_timeout_s)
    components = {
      name: call.values[:, k].copy() for k, name in enumerate(self.functions)
    }
    failures = call.failures
    return HostScores(
      components, failures.failed, failures.counts, failures.errors
    )

  def _first_s(self, num_rows: int) -> float:
    """Seconds for the first try of a row."""
    half = self.step_timeout_s * self._pool.num_workers / 2
    seconds = max(half / max(num_rows, 1), _MIN_FIRST_S)
    return min(seconds, self._row_timeout_s)

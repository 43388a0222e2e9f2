"""Host reward functions, scored in processes that can be killed.

One idea: a verifier may hang, crash or end its process, and none of that may
stop the run or be taken for a reward. Each row has a deadline; what exceeds it
is killed, its row is marked unscored, and a new worker takes over (`pool.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.rewards import pool
from grpo_jax.rewards import worker as worker_lib

FAILURE_KINDS = pool.FAILURE_KINDS


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


class _Call(pool.Call):
  """The rows of one call of `HostScorer.score`, and their results so far."""

  def __init__(self, names: Sequence[str], rows: list[worker_lib.Row]):
    super().__init__(range(len(rows)), pool.Failures(len(rows)))
    self.rows = rows
    self.values = np.full((len(rows), len(names)), np.nan, np.float32)

  def message(self, index: int) -> worker_lib.Row:
    return self.rows[index]

  def record(self, index: int, *answer: Any) -> None:
    values, failure = answer
    with np.errstate(over="ignore"):  # Beyond float32: inf, seen by `combine`.
      self.values[index] = values
    if failure is not None:
      self.failures.add(index, *failure)


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
    for path in functions.values():
      worker_lib.load_function(path)  # Raises here, where it is read.
    self.functions = dict(functions)
    self.weights = dict(weights)
    self.step_timeout_s = step_timeout_s
    self._pool = pool.Pool(
      "HostScorer",
      "worker",
      self.functions,
      num_workers,
      row_timeout_s,
      step_timeout_s,
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
    rows: list[Any] = list(
      zip(prompts, completions, map(int, ids), extras, strict=True)
    )
    call = _Call(tuple(self.functions), rows)
    self._pool.run(call, self.step_timeout_s)
    components = {
      name: call.values[:, k].copy() for k, name in enumerate(self.functions)
    }
    failures = call.failures
    return HostScores(
      components, failures.failed, failures.counts, failures.errors
    )

"""Scores of a comparison, and the estimates from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.comparison import aggregates
from experiments.comparison.runs import Run
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Contrast, Estimate

AGGREGATES = {
  "IQM": aggregates.interquartile_mean,
  "mean": aggregates.mean,
  "median": aggregates.median,
  "optimality gap": aggregates.optimality_gap,
}


@dataclasses.dataclass(frozen=True)
class Difference:
  """Difference of an algorithm to the baseline on a task, seed by seed."""

  algorithm: str
  task: str
  n: int  # Number of seeds that both have.
  contrast: Contrast | None  # Mean difference; None with less than two seeds.
  # Its p-value, corrected for all differences of the comparison.
  p_holm: float = float("nan")


class Comparison:
  """Scores of algorithms by tasks by seeds.

  Args:
    runs: Runs in the order in which algorithms and tasks are shown.
    metric: Name of the score.
    baseline: Algorithm to compare the others with; empty: the first.
    names: Printed names of algorithms, tasks and the metric.
    ranges: (low, high) of a task's scores that become 0 and 1 when tasks are
      pooled.

  Raises:
    ValueError: No run has a score, or a name does not exist here.
  """

  def __init__(
    self,
    runs: Sequence[Run],
    metric: str,
    baseline: str = "",
    names: Mapping[str, str] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
  ):
    self.runs, self.metric = list(runs), metric
    self.algorithms = list(dict.fromkeys(run.algorithm for run in runs))
    self.tasks = list(dict.fromkeys(run.task for run in runs))
    self._names, self._ranges = dict(names or {}), dict(ranges or {})
    self._values = {
      (run.algorithm, run.task, run.seed): run.value
      for run in runs
      if run.value is not None
    }
    if not self._values:
      raise ValueError(
        f"compare: none of {len(runs)} runs has a value of {metric}; wait until"
        " one has ended, or pass another --metric."
      )
    self._estimates: dict[tuple[str, str], Estimate] = {}
    self.baseline = baseline or self.algorithms[0]
    for flag, wanted, known in (
      ("baseline", [self.baseline], self.algorithms),
      ("ranges", self._ranges, self.tasks),
      ("names", self._names, [*self.algorithms, *self.tasks, metric]),
    ):
      if unknown := [name for name in wanted if name not in known]:
        raise ValueError(
          f"--{flag}: {unknown[0]!r} is none of {', '.join(known)}; name one of"
          " them."
        )

  def name(self, internal: str) -> str:
    """Returns the name that is printed for an internal one."""
    return self._names.get(internal, internal)

  @property
  def scale(self) -> str:
    """Describes how the scores of different tasks are brought to one scale."""
    return "; ".join(
      f"On {self.name(task)}, {low:g} counts as 0 and {high:g} as 1"
      for task, (low, high) in self._ranges.items()
    ) + ("." if self._ranges else "")

  @property
  def missing(self) -> list[Run]:
    """Runs without a score."""
    return [run for run in self.runs if run.value is None]

  def seeds(self, algorithm: str, task: str) -> dict[int, float]:
    """Scores by seed, of the seeds that have one."""
    return {
      seed: value
      for (x, y, seed), value in sorted(self._values.items())
      if (x, y) == (algorithm, task)
    }

  def of_task(
    self,
    algorithm: str,
    task: str,
    statistic: aggregates.Statistic = aggregates.interquartile_mean,
  ) -> Estimate | None:
    """A statistic over seeds; None without any."""
    values = np.array(list(self.seeds(algorithm, task).values()))[:, None]
    if not len(values):
      return None
    return _estimate([values], statistic)

  def matrix(self, algorithm: str) -> np.ndarray | None:  # [S, M]
    """Scores of the seeds that all tasks have, on one scale; else None."""
    by_task = [self.seeds(algorithm, task) for task in self.tasks]
    seeds = sorted(set.intersection(*(set(x) for x in by_task)))
    if not seeds:
      return None
    columns = []
    for task, scores in zip(self.tasks, by_task, strict=True):
      low, high = self._ranges.get(task, (0.0, 1.0))
      columns.append([(scores[seed] - low) / (high - low) for seed in seeds])
    return np.array(columns, float).T

  def aggregate(self, algorithm: str, kind: str) -> Estimate | None:
    """Estimate of one of `AGGREGATES` over all tasks."""
    scores = self.matrix(algorithm)
    if scores is None:
      return None
    return self._once(algorithm, kind, [scores], AGGREGATES[kind])

  def improvement(self, algorithm: str) -> Estimate | None:
    """Probability of improvement over the baseline."""
    one, other = self.matrix(algorithm), self.matrix(self.baseline)
    if one is None or other is None:
      return None
    statistic = aggregates.probability_of_improvement
    return self._once(algorithm, "improvement", [one, other], statistic)

  def _once(
    self,
    algorithm: str,
    kind: str,
    samples: Sequence[np.ndarray],
    statistic: aggregates.Statistic,
  ) -> Estimate:
    """An estimate, which tables and figures share."""
    if (algorithm, kind) not in self._estimates:
      self._estimates[algorithm, kind] = _estimate(samples, statistic)
    return self._estimates[algorithm, kind]

  def differences(self) -> list[Difference]:
    """Differences of all algorithms to the baseline, on each task."""
    found = []
    for algorithm in self.algorithms:
      for task in self.tasks:
        if algorithm == self.baseline:
          continue
        one = self.seeds(algorithm, task)
        other = self.seeds(self.baseline, task)
        pairs = [one[seed] - other[seed] for seed in one if seed in other]
        contrast = None
        if len(pairs) > 1:
          contrast = statistics.contrast([(1, np.array(pairs))])
        found.append(Difference(algorithm, task, len(pairs), contrast))
    made = [x for x in found if x.contrast is not None]
    adjusted = iter(
      aggregates.holm([x.contrast.p for x in made if x.contrast is not None])
    )
    return [
      dataclasses.replace(x, p_holm=float(next(adjusted)))
      if x.contrast is not None
      else x
      for x in found
    ]


def _estimate(
  samples: Sequence[np.ndarray], statistic: aggregates.Statistic
) -> Estimate:
  value = float(statistic(*samples))
  if all(len(scores) < 2 for scores in samples):
    return Estimate(value)
  low, high = aggregates.interval(samples, statistic)
  return Estimate(value, float(low), float(high))

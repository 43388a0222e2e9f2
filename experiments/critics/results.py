"""What a trained cell leaves behind, and the statistics of several."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np
from scipy import stats

from experiments.critics import training

_TAIL = training.NUM_BINS // 10  # The last tenth of the budget.


@dataclasses.dataclass(frozen=True)
class Record:
  """What a trained cell left behind; the fields are those of its JSON file.

  Attributes:
    key: Of the cell.
    name: Of the cell.
    means: Mean return of the episodes that ended in each part of the budget,
      for each seed [S][NUM_BINS]; 0 where there were none.
    counts: Number of these episodes [S][NUM_BINS].
    steps: Environment steps of each seed [S].
    seconds: Of training, all seeds together.
    compile_seconds: Before it; about 0 where a program was shared.
    date: When it was trained, YYYY-MM-DD.
    cores: CPU cores of the machine.
  """

  key: str
  name: str
  means: list[list[float]]
  counts: list[list[int]]
  steps: list[int]
  seconds: float
  compile_seconds: float
  date: str
  cores: int

  def final_scores(self) -> np.ndarray:  # [S]
    """Mean return of the episodes that ended in the last tenth of the budget.

    Where none ended there, of those in the last part in which some did.
    """
    found = []
    for means, counts in zip(
      np.array(self.means), np.array(self.counts), strict=True
    ):
      if counts[-_TAIL:].any():
        found.append(np.average(means[-_TAIL:], weights=counts[-_TAIL:]))
      else:
        found.append(means[np.flatnonzero(counts)[-1]])
    return np.array(found)

  def curves(self) -> np.ndarray:  # [S, NUM_BINS]
    """Mean returns; parts without episodes are interpolated."""
    places = np.arange(training.NUM_BINS)
    return np.array(
      [
        np.interp(places, places[np.array(n) > 0], np.array(x)[np.array(n) > 0])
        for x, n in zip(self.means, self.counts, strict=True)
      ]
    )

  def areas(self) -> np.ndarray:  # [S]
    """Area under the learning curve over the budget, in units of return."""
    return self.curves().mean(axis=1)


def interquartile_mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
  """Mean of the middle half; of 5 seeds, of the middle three."""
  return stats.trim_mean(values, 0.25, axis=axis)


def interval(
  values: np.ndarray,  # [S]
  statistic: Callable[..., np.ndarray] = interquartile_mean,
) -> tuple[float, float]:
  """95 % percentile-bootstrap interval of a statistic over seeds.

  Of a few seeds it is little more than their range, and covers less often than
  95 times in a hundred.
  """
  rng = np.random.default_rng(0)
  draws = rng.choice(values, (10_000, len(values)))
  low, high = np.percentile(statistic(draws, axis=1), [2.5, 97.5])
  return float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Contrast:
  """A weighted sum of means with its 95 % interval and two-sided p-value."""

  estimate: float
  low: float
  high: float
  p: float

  @property
  def is_below(self) -> bool:
    return self.high < 0

  @property
  def is_above(self) -> bool:
    return self.low > 0


def contrast(terms: Iterable[tuple[float, np.ndarray]]) -> Contrast:
  """Σ_i w_i mean(x_i), with Welch's and Satterthwaite's approximation.

      s² = Σ_i s_i²,   s_i² = w_i² Var(x_i) / n_i
      ν  = s⁴ / Σ_i ( s_i⁴ / (n_i − 1) )

  Args:
    terms: Weights and samples of at least two numbers; (1, a), (−1, b) is
      Welch's t test.

  Returns:
    An interval of no width where no sample varies.
  """
  terms = list(terms)
  estimate = float(sum(w * np.mean(x) for w, x in terms))
  parts = [(w**2 * np.var(x, ddof=1) / len(x), len(x) - 1) for w, x in terms]
  variance = sum(part for part, _ in parts)
  if variance == 0:
    return Contrast(estimate, estimate, estimate, float(estimate == 0))
  freedom = variance**2 / sum(part**2 / n for part, n in parts)
  error = math.sqrt(variance)
  half = float(stats.t.ppf(0.975, freedom)) * error
  p = 2 * float(stats.t.sf(abs(estimate) / error, freedom))
  return Contrast(estimate, estimate - half, estimate + half, p)

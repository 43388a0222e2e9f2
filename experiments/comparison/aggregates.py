"""Aggregate scores of several runs on several tasks, with their uncertainty.

Source: Agarwal, Schwarzer, Castro, Courville, Bellemare, "Deep Reinforcement
Learning at the Edge of the Statistical Precipice", arXiv:2108.13264. The
functions are those of the paper's library rliable, written from the text of the
paper. They were compared once with rliable 1.2.0 (`docs/guides/compare.md` has
the figures): all point estimates are equal, and the ends of the intervals are
equal up to the draws of the bootstrap.

Scores are [S, M]: seeds and tasks. Scores of different tasks are pooled, so
they need one scale, as the share of right answers has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from experiments.sweeps import statistics

RESAMPLES = 50_000  # As in rliable.
PROFILE_RESAMPLES = 2_000  # The same, for a statistic at many thresholds.
LEVEL = 0.95
_CHUNK = 2_000_000  # Numbers that are resampled at once, about.

Statistic = Callable[..., np.ndarray]  # (*[..., S, M]) -> [...] or [..., T].


def interquartile_mean(
  scores: np.ndarray,
) -> np.ndarray:  # [..., S, M] -> [...]
  """Mean of the middle half of all runs, whatever their tasks are.

  IQM = mean of the sorted S · M scores without ⌊S · M / 4⌋ at each end
  """
  flat = scores.reshape(*scores.shape[:-2], -1)
  return statistics.interquartile_mean(flat)


def mean(scores: np.ndarray) -> np.ndarray:  # [..., S, M] -> [...]
  """Mean over tasks of the means over seeds."""
  return scores.mean(axis=(-2, -1))


def median(scores: np.ndarray) -> np.ndarray:  # [..., S, M] -> [...]
  """Median over tasks of the means over seeds."""
  return np.median(scores.mean(axis=-2), axis=-1)


def optimality_gap(scores: np.ndarray, best: float = 1.0) -> np.ndarray:
  """Mean shortfall of scores [..., S, M] from γ: γ − mean min(score, γ)."""
  return best - np.minimum(scores, best).mean(axis=(-2, -1))


def performance_profile(
  scores: np.ndarray,  # [..., S, M]
  thresholds: np.ndarray,  # [T]
) -> np.ndarray:  # [..., T]
  """Share of the runs whose score is above τ, for each τ.

  F(τ) = (1 / M) Σ_m (1 / S) Σ_s 1[score_sm > τ]
  """
  above = [(scores > x).mean(axis=(-2, -1)) for x in thresholds]
  return np.stack(above, axis=-1)


def probability_of_improvement(
  one: np.ndarray,  # [..., S, M]
  other: np.ndarray,  # [..., K, M]
) -> np.ndarray:  # [...]
  """Probability that a run of `one` is better than a run of `other` on a task.

      P = (1 / M) Σ_m (1 / (S · K)) Σ_i Σ_j (1[x_im > y_jm] + ½ 1[x_im = y_jm])

  0.5 means no difference. Runs are compared with any seeds, not in pairs.
  """
  x, y = one[..., :, None, :], other[..., None, :, :]
  return ((x > y) + 0.5 * (x == y)).mean(axis=(-3, -2, -1))


def interval(
  samples: Sequence[np.ndarray],  # Of [S, M], each with an S of its own.
  statistic: Statistic,
  resamples: int = RESAMPLES,
) -> tuple[np.ndarray, np.ndarray]:  # [] or [T], twice
  """The 95 % interval of a statistic, by stratified percentile bootstrap.

  The seeds of each task are drawn again, with replacement and apart from those
  of other tasks; tasks stay. Several samples are drawn independently.

  Args:
    samples: The scores of one algorithm, or of each that is compared.
    statistic: (*samples [R, S, M]) -> [R] or [R, T].
    resamples: Number of resamples; the draws are the same at every call.

  Returns:
    The percentiles 2.5 and 97.5. For one seed, the estimate twice: the spread
    is unknown, and the caller should say so.

  Raises:
    ValueError: A sample has no score, or one that is not finite.
  """
  for scores in samples:
    if scores.ndim != 2 or not scores.size or not np.isfinite(scores).all():
      raise ValueError(
        f"interval: scores of shape {scores.shape}, all finite:"
        f" {bool(np.isfinite(scores).all())}; needs seeds by tasks, at"
        " least one of each, and finite numbers."
      )
  rng = np.random.default_rng(0)
  size = sum(scores.size for scores in samples)
  at_once = max(1, min(resamples, _CHUNK // size))
  found = []
  for start in range(0, resamples, at_once):
    count = min(at_once, resamples - start)
    found.append(statistic(*(_drawn(x, count, rng) for x in samples)))
  tail = 100 * (1 - LEVEL) / 2
  low, high = np.percentile(np.concatenate(found), [tail, 100 - tail], axis=0)
  return low, high


def _drawn(
  scores: np.ndarray,  # [S, M]
  count: int,
  rng: np.random.Generator,
) -> np.ndarray:  # [R, S, M]
  places = rng.integers(len(scores), size=(count, *scores.shape))
  return scores[places, np.arange(scores.shape[1])]


def holm(p_values: Sequence[float]) -> np.ndarray:  # [N]
  """p-values of N tests that may be compared with one level, as if alone.

      p̃_(k) = max_{j ≤ k} min(1, (N − j + 1) p_(j)),   p_(1) ≤ … ≤ p_(N)

  Source: Holm, "A Simple Sequentially Rejective Multiple Test Procedure",
  Scandinavian Journal of Statistics 6, 1979. Tests may depend on each other.
  """
  values = np.asarray(p_values, float)
  order = np.argsort(values, kind="stable")
  factors = len(values) - np.arange(len(values))
  adjusted = np.empty_like(values)
  steps = np.minimum(values[order] * factors, 1.0)
  adjusted[order] = np.maximum.accumulate(steps) if len(values) else steps
  return adjusted

"""Whether a metric rises or falls over a window: Mann and Kendall's test.

    S = Σ_{i<j} sign(x_j − x_i),    z = (S − sign(S)) / √Var(S)

    Var(S) = [n(n−1)(2n+5) − Σ_t t(t−1)(2t+5)] / 18

with t the sizes of groups of equal values. The test asks for the order of the
values alone, so one step that is far off decides nothing, and it assumes no
distribution. It does assume that values are independent, and metrics of
neighbouring steps are not. Therefore steps are averaged in blocks first: noise
that lasts a few steps is inside a block then.

Sources: Mann, "Nonparametric tests against trend", Econometrica 13, 1945;
Kendall, "Rank correlation methods", 1948, for ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

BLOCKS = 10  # Means that a window is reduced to.
# One-sided, a chance of 1.3e-3 for independent blocks without a trend.
SIGNIFICANT = 3.0


def block_means(
  values: Sequence[float | None], num_blocks: int = BLOCKS
) -> np.ndarray | None:
  """Means of equal parts of a window, [num_blocks].

  Args:
    values: One for each step; None and NaN are means over nothing, and are
      left out.
    num_blocks: Parts.

  Returns:
    None where a part has no value, so that nothing is known of the window.
  """
  array = np.array([math.nan if x is None else x for x in values], float)
  parts = np.array_split(array, num_blocks)
  kept = [part[np.isfinite(part)] for part in parts]
  if not all(len(part) for part in kept):
    return None
  return np.array([part.mean() for part in kept])


def mann_kendall(values: np.ndarray | Sequence[float]) -> float:
  """z of the trend of some values: above 0 where they rise.

  Args:
    values: [n], in the order of time.

  Returns:
    0 where all are equal, or where there are fewer than three.
  """
  x = np.asarray(values, float)
  n = len(x)
  if n < 3:
    return 0.0
  later, earlier = np.tril_indices(n, -1)
  total = float(np.sign(x[later] - x[earlier]).sum())
  _, ties = np.unique(x, return_counts=True)
  variance = (
    n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()
  ) / 18
  if variance <= 0:
    return 0.0
  return (total - float(np.sign(total))) / math.sqrt(variance)


def trend(values: Sequence[float | None]) -> float:
  """z of the trend of a window of steps; 0 where nothing is known."""
  means = block_means(values)
  return 0.0 if means is None else mann_kendall(means)


def ends(values: Sequence[float | None]) -> tuple[float, float]:
  """Mean of the first and of the last fifth of a window; NaN if unknown."""
  means = block_means(values)
  if means is None:
    return math.nan, math.nan
  size = len(means) // 5
  return float(means[:size].mean()), float(means[-size:].mean())

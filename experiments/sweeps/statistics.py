"""Means over seeds, and tests of claims by their differences."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import scipy  # It imports its parts when they are read: stats takes 2 s.

from experiments.sweeps import pages

# For a page with tables of checks.
WHAT_DECIDES = (
  "The first interval decides, by Student's t or Welch's approximation. The"
  " percentile bootstrap over seeds is narrower: of few"
  " seeds it covers less often than 95 times in a hundred."
)


def interquartile_mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
  """Mean of the middle half; of 5 seeds, of the middle three."""
  return scipy.stats.trim_mean(values, 0.25, axis=axis)


def interval(
  values: np.ndarray,  # [S] or [S, steps]
  statistic: Callable[..., np.ndarray] = np.mean,
) -> tuple[np.ndarray, np.ndarray]:  # [] or [steps], twice
  """95 % percentile-bootstrap interval of a statistic over the first axis.

  With few seeds it is little more than their range, and covers less often than
  95 times in a hundred.
  """
  return _percentiles([values], statistic)


def _percentiles(
  samples: Sequence[np.ndarray], statistic: Callable[..., np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
  found = scipy.stats.bootstrap(
    tuple(samples),
    statistic,
    axis=0,
    confidence_level=0.95,
    method="percentile",  # Defined for equal values too, unlike BCa.
    rng=np.random.default_rng(0),
  ).confidence_interval
  return found.low, found.high


@dataclasses.dataclass(frozen=True)
class Estimate:
  """Number with its 95 % interval; with less than two seeds, without one."""

  value: float
  low: float | None = None
  high: float | None = None


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
    An interval of no width if no sample varies.
  """
  terms = list(terms)
  estimate = float(sum(w * np.mean(x) for w, x in terms))
  parts = [(w**2 * np.var(x, ddof=1) / len(x), len(x) - 1) for w, x in terms]
  variance = sum(part for part, _ in parts)
  if variance == 0:
    return Contrast(estimate, estimate, estimate, float(estimate == 0))
  freedom = variance**2 / sum(part**2 / n for part, n in parts)
  error = math.sqrt(variance)
  half = float(scipy.stats.t.ppf(0.975, freedom)) * error
  p = 2 * float(scipy.stats.t.sf(abs(estimate) / error, freedom))
  return Contrast(estimate, estimate - half, estimate + half, p)


@dataclasses.dataclass(frozen=True)
class Check:
  """Comparison that a conclusion needs."""

  text: str  # Description of the comparison.
  needed: str  # Condition on the interval.
  # Contrast with its interval; None while a cell is missing.
  contrast: Contrast | None
  # Whether the condition holds; None while a cell is missing.
  holds: bool | None
  # Its percentile-bootstrap interval over seeds, which does not decide: with
  # five seeds it is too narrow.
  bootstrap: tuple[float, float] | None = None

  @property
  def is_open(self) -> bool:
    """True if neither the check nor its opposite holds."""
    found = self.contrast
    return self.holds is False and not (found.is_below or found.is_above)


@dataclasses.dataclass(frozen=True)
class Conclusion:
  """A claim, which holds if all of its checks do.

  This is an intersection, so a correction for their number is not needed.
  """

  name: str
  claim: str
  checks: tuple[Check, ...]

  @property
  def verdict(self) -> str:
    holds = [check.holds for check in self.checks]
    if False in holds:
      return "not confirmed"
    return "undecided" if None in holds else "confirmed"


_NEEDED = {
  "below": lambda c: c.is_below,
  "above": lambda c: c.is_above,
  "not below": lambda c: not c.is_below,
  "not above": lambda c: not c.is_above,
}


def check(
  text: str,
  needed: str,
  *terms: tuple[float, np.ndarray | None],
) -> Check:
  """Makes a check of a contrast of terms; None stands for a missing sample.

  Needed is "below" or "above" 0, the whole interval; "not below" or "not above"
  are their opposites.
  """
  if any(values is None for _, values in terms):
    return Check(text, needed, None, None)
  found = contrast(terms)
  weights, samples = zip(*terms, strict=True)

  def weighted(*resampled, axis):
    means = [np.mean(x, axis=axis) for x in resampled]
    return sum(w * mean for w, mean in zip(weights, means, strict=True))

  low, high = _percentiles(samples, weighted)
  holds = _NEEDED[needed](found)
  return Check(text, needed, found, holds, (float(low), float(high)))


def minus(
  one: np.ndarray | None,  # [S]
  other: np.ndarray | float | None,  # [S]
) -> np.ndarray | None:  # [S]
  """Difference seed by seed, or to a number; None while one is missing."""
  return None if one is None or other is None else one - other


def text(contrast: Contrast, digits: int) -> str:
  """A contrast with its interval."""
  numbers = (contrast.estimate, contrast.low, contrast.high)
  estimate, low, high = (f"{x:.{digits}f}" for x in numbers)
  return f"{estimate} [{low}, {high}]"


def p_text(value: float) -> str:
  return "< 0.001" if value < 0.001 else f"{value:.3f}"


def table(checks: Iterable[Check], digits: int) -> Iterator[str]:
  """The lines of a Markdown table, of the checks that could be made."""

  def row(one: Check) -> list[str]:
    again = ", ".join(f"{x:.{digits}f}" for x in one.bootstrap)
    holds = "yes" if one.holds else "open" if one.is_open else "**no**"
    shown = text(one.contrast, digits)
    return [one.text, shown, f"[{again}]", one.needed, holds]

  head = ("comparison", "95 % interval", "95 % bootstrap", "needed", "holds")
  return pages.table(head, (row(x) for x in checks if x.contrast is not None))

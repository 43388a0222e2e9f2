"""Record of a trained cell."""

from __future__ import annotations

import dataclasses

import numpy as np

from experiments.critics import training

_TAIL = training.NUM_BINS // 10  # The last tenth of the budget.


@dataclasses.dataclass(frozen=True)
class Record:
  """Record of a trained cell; the fields are those of its JSON file."""

  key: str
  name: str
  # Mean return of the episodes that ended in each part of the budget, for each
  # seed [S][NUM_BINS]; 0 where there were none.
  means: list[list[float]]
  counts: list[list[int]]  # Number of these episodes [S][NUM_BINS].
  steps: list[int]  # Environment steps of each seed [S].
  seconds: float  # Seconds of training, all seeds together.
  # Seconds of compilation; about 0 for a shared program.
  compile_seconds: float
  date: str  # Day of the training, YYYY-MM-DD.
  cores: int  # CPU cores of the machine.

  def final_scores(self) -> np.ndarray:  # [S]
    """Mean return of the episodes that ended in the last tenth of the budget.

    If none ended there, the mean of the last part in which some did.
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

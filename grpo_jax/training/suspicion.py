"""Rewards that are too good to be believed.

A verifier with a bug that accepts anything looks, in every number that it
makes, like a task that has been solved. Only a look at the completions tells.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from grpo_jax.training import hosts

# Steps in a row: a small batch may be right by luck.
PATIENCE = 3
PERFECT = 0.99  # Share of right completions; suspicious above it.


class PerfectScores:
  """Counts steps in which nearly all completions were right; warns once."""

  def __init__(self, correct: str, samples: str):
    """Begins to count.

    Args:
      correct: The component of the reward that marks right completions.
      samples: Where completions are to be looked at.
    """
    self._correct, self._samples = correct, samples
    self._num_steps = 0

  def step(self, step: int, metrics: Mapping[str, float]) -> None:
    """Looks at the metrics of a step, which may have none of completions."""
    if self._num_steps >= PATIENCE:
      return
    # NaN where no row was scored, too.
    if metrics.get("accuracy", math.nan) > PERFECT:
      self._num_steps += 1
    else:
      self._num_steps = 0
    if self._num_steps == PATIENCE and hosts.is_main():
      logging.warning(
        "step %d: %r marks more than %g of the completions as right, for %d"
        " steps in a row. Suspicious by default: either the task is solved, and"
        " there is nothing left to learn, or the verifier accepts what it"
        " should not. Look for empty, constant or copied answers in %s"
        " (config.log.samples_every), and give the verifier wrong ones.",
        step,
        self._correct,
        PERFECT,
        PATIENCE,
        self._samples,
      )

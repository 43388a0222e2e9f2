"""Sessions that sleep before they answer, for `turns.py`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np


class Session:
  """Tool that sleeps before it answers."""

  def __init__(self, seed: int, latency_s: float, size: int):
    self._random = np.random.default_rng(seed)
    self._latency_s, self._size = latency_s, size

  def step(self, action: str) -> tuple[str, float, bool]:
    del action
    time.sleep(self._latency_s * self._random.uniform(0.5, 1.5))
    return "a" * self._size, 0.0, False

  def scores(self) -> dict[str, float]:
    return {"accuracy": 0.0}


def make(
  prompt: str,
  extras: dict[str, Any],
  seed: int,
  *,
  latency_s: float,
  size: int,
) -> Session:
  """The factory of sessions."""
  del prompt, extras
  return Session(seed, latency_s, size)

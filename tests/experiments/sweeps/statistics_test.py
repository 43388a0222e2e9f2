"""Tests of the conclusions from differences over seeds."""

import numpy as np

from experiments.sweeps import statistics


def test_a_difference_is_seed_by_seed_and_none_while_one_is_missing():
  one, other = np.array([1.0, 2.0]), np.array([0.5, 4.0])
  assert statistics.minus(one, other).tolist() == [0.5, -2.0]
  assert statistics.minus(one, 0.5).tolist() == [0.5, 1.5]
  assert statistics.minus(one, 0.0).tolist() == [1.0, 2.0]
  assert statistics.minus(None, other) is None
  assert statistics.minus(one, None) is None
  assert statistics.minus(None, 0.5) is None

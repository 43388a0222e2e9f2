"""Mann and Kendall's test against loops, a worked example and chance."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from grpo_jax.training.rules import rules

_SMALL = st.lists(st.integers(-3, 3), min_size=3, max_size=12)


def reference(values):
  """z by pairs in a loop, and ties by counting."""
  n, total = len(values), 0
  for i in range(n):
    for j in range(i):
      total += (values[i] > values[j]) - (values[i] < values[j])
  variance = n * (n - 1) * (2 * n + 5)
  for value in set(values):
    t = values.count(value)
    variance -= t * (t - 1) * (2 * t + 5)
  if variance == 0:
    return 0.0
  corrected = total - (total > 0) + (total < 0)
  return corrected / math.sqrt(variance / 18)


@hypothesis.given(_SMALL)
def test_it_is_what_loops_give(values):
  assert rules.mann_kendall(values) == pytest.approx(reference(values))
  backwards = rules.mann_kendall(values[::-1])
  assert backwards == pytest.approx(-rules.mann_kendall(values))


def test_known_answers_by_hand():
  # S = 10 of 10 pairs; Var = 5 · 4 · 15 / 18 = 50 / 3.
  assert rules.mann_kendall([1, 2, 3, 4, 5]) == pytest.approx(
    9 / math.sqrt(50 / 3)
  )
  # S = 5; the tie of two takes 2 · 1 · 9 from 4 · 3 · 13.
  assert rules.mann_kendall([1, 2, 2, 3]) == pytest.approx(
    4 / math.sqrt((156 - 18) / 18)
  )
  assert rules.mann_kendall([7] * 20) == 0
  assert rules.mann_kendall([1, 2]) == 0


def test_blocks_leave_out_what_has_no_value():
  values = [1, None, 3, math.nan, 5, 7]
  np.testing.assert_array_equal(rules.block_means(values, 3), [1, 3, 6])
  assert rules.block_means([1, None, None, 4], 2) is not None
  assert rules.block_means([1, 2, None, None], 2) is None
  assert rules.trend([1, 2, None, None]) == 0


def test_ends_are_means_of_a_fifth():
  assert rules.ends([*range(50)]) == (4.5, 44.5)
  assert all(math.isnan(x) for x in rules.ends([None] * 50))


@pytest.mark.slow
def test_noise_without_a_trend_is_rarely_significant():
  rng = np.random.default_rng(0)
  noise = rng.normal(size=(3000, 50))
  share = np.mean([rules.trend(row) > rules.SIGNIFICANT for row in noise])
  assert share < 3e-3
  rising = noise + np.linspace(0, 6, 50)
  found = [rules.trend(row) > rules.SIGNIFICANT for row in rising]
  assert np.mean(found) > 0.95

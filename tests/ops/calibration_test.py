"""Tests of calibration: the frequency of events with a stated probability."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grpo_jax.ops import values
from grpo_jax.types import Weighted

_gaps, mean = jax.jit(values.gaps), jax.jit(values.mean)


def of(probability, right, mask):
  return jax.device_get(_gaps(probability, right, np.array(mask)))


def by_hand(probability, right, mask):
  """The published formula, with means of bins."""
  error, count = 0.0, sum(mask)
  for k in range(10):
    inside = [
      i
      for i, p in enumerate(probability)
      if mask[i] and min(int(p * 10), 9) == k
    ]
    if inside:
      said = np.mean([probability[i] for i in inside])
      found = np.mean([right[i] for i in inside])
      error += len(inside) / count * abs(said - found)
  return error if count else np.nan


@pytest.mark.slow
@given(
  hnp.arrays(np.float32, 12, elements=st.floats(0, 1, width=32)),
  hnp.arrays(np.bool_, 12),
  hnp.arrays(np.bool_, 12),
)
@settings(max_examples=30, deadline=None)
def test_the_error_is_the_published_one(probability, right, mask):
  found = mean(of(probability, right.astype(np.float32), mask))
  np.testing.assert_allclose(
    found, by_hand(probability, right, mask), atol=1e-5
  )


def test_batches_add_up_before_sizes_are_taken():
  """0.75 said four times and right three times is right on average."""
  said = np.float32([0.75] * 4)
  right = np.float32([1, 1, 1, 0])
  whole = of(said, right, np.ones(4, bool))
  parts = [of(said[i : i + 2], right[i : i + 2], [True] * 2) for i in (0, 2)]
  added = Weighted(*map(sum, zip(*parts, strict=True)))
  assert float(mean(added)) == float(mean(whole)) == 0
  assert float(mean(parts[1])) == 0.25


def test_what_was_not_counted_has_no_mean():
  nothing = Weighted(np.float32(0), np.float32(0))
  assert np.isnan(mean(nothing))
  assert float(mean(Weighted(np.float32(3), np.float32(4)))) == 0.75

"""Residual streams: mixtures whose sums are 1, and what a layer adds."""

import numpy as np
import pytest

from grpo_jax.models import hyper


def test_rows_and_columns_of_a_mixture_add_up_to_one():
  x = np.exp(np.random.default_rng(0).normal(size=(5, 3, 3)))
  found = np.asarray(hyper.doubly_stochastic(x, 30, 0.0))
  for axis in (-1, -2):
    np.testing.assert_allclose(found.sum(axis), 1, rtol=1e-5)


@pytest.mark.parametrize(
  ("steps", "expected"),
  [
    # Columns have the sums 4 and 4, so 1/4, 3/4; 3/4, 1/4: a fixed point.
    (1, [[0.25, 0.75], [0.75, 0.25]]),
    (3, [[0.25, 0.75], [0.75, 0.25]]),
  ],
)
def test_a_mixture_worked_out_by_hand(steps, expected):
  x = np.float32([[1, 3], [3, 1]])
  found = hyper.doubly_stochastic(x, steps, 0.0)
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_columns_are_divided_first_and_last():
  x = np.float32([[1, 1], [1, 3]])
  # Columns 2 and 4: 1/2, 1/4; 1/2, 3/4. Rows 3/4 and 5/4: 2/3, 1/3; 2/5, 3/5.
  # Columns 16/15 and 14/15.
  np.testing.assert_allclose(
    hyper.doubly_stochastic(x, 2, 0.0),
    [[10 / 16, 5 / 14], [6 / 16, 9 / 14]],
    rtol=1e-6,
  )


def test_a_part_reads_a_sum_and_is_added_to_all_streams():
  streams = np.float32([[1, 2], [3, 4], [5, 6]])  # [n, D]
  a = np.float32([1, 0, 2])
  np.testing.assert_array_equal(hyper.summed(a, streams), [11, 14])
  y, c = np.float32([1, -1]), np.float32([1, 2, 0])
  b = np.float32([[0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]])
  # Stream k receives Σ_j b_jk of stream j.
  expected = [[2.5 + 1, 3 - 1], [1 + 2.5 + 2, 2 + 3 - 2], [3, 4]]
  np.testing.assert_array_equal(hyper.added(streams, y, c, b), expected)

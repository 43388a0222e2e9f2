"""Orders without an array: every record once, keys differ, parts in order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.data import orders


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**40))
def test_every_index_occurs_once(size, key):
  found = [orders.permuted(i, size, (key,)) for i in range(size)]
  assert sorted(found) == list(range(size))


def test_neighbours_are_far_apart_and_every_place_is_as_likely():
  size = 1000
  order = np.array([orders.permuted(i, size, (3, 1)) for i in range(size)])
  # Of a random permutation: a third of the size, and the place of the first.
  assert abs(np.abs(np.diff(order)).mean() / size - 1 / 3) < 0.05
  firsts = np.array([orders.permuted(0, 8, (key,)) for key in range(4000)])
  shares = np.bincount(firsts, minlength=8) / len(firsts)
  np.testing.assert_allclose(shares, 1 / 8, atol=0.03)


def test_an_index_outside_is_refused():
  with pytest.raises(IndexError, match=r"index 5 is outside \[0, 5\)"):
    orders.permuted(5, 5, (0,))


def test_parts_are_read_one_after_another_in_every_epoch():
  order = orders.PartedOrder(10, (0, 4, 6), seed=1)
  epochs = [[order(10 * e + i) for i in range(10)] for e in range(3)]
  for epoch in epochs:
    assert sorted(epoch[:4]) == [0, 1, 2, 3]
    assert sorted(epoch[4:6]) == [4, 5]
    assert sorted(epoch[6:]) == [6, 7, 8, 9]
  assert len({tuple(epoch) for epoch in epochs}) == 3
  other = orders.PartedOrder(10, (0, 4, 6), seed=2)
  assert [other(i) for i in range(10)] != epochs[0]


def test_stand_ins_are_of_the_same_part():
  order = orders.PartedOrder(1000, (0, 500), seed=1)
  found = {order(700, attempt) for attempt in range(50)}
  assert len(found) > 40
  assert min(found) >= 500


@pytest.mark.parametrize("starts", [(1,), (0, 3, 3), (0, 10)])
def test_parts_must_ascend(starts):
  with pytest.raises(ValueError, match="needs 0 and then ascending"):
    orders.PartedOrder(10, starts, seed=0)

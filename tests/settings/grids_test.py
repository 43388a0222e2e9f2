"""Cells of sweeps, against lists that are written out."""

import pytest

from grpo_jax.settings import grids


def test_products_of_axes_pairs_and_seeds():
  pairs = grids.zipped({"a": (1, 2), "b": ("x", "y")})
  assert pairs == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
  assert grids.seeds(2, first=5) == [{"seed": 5}, {"seed": 6}]
  assert grids.product({"c": (0.1, 0.2), "d": (True,)}) == [
    {"c": 0.1, "d": True},
    {"c": 0.2, "d": True},
  ]
  assert grids.product(pairs, grids.seeds(2)) == [
    {"a": 1, "b": "x", "seed": 0},
    {"a": 1, "b": "x", "seed": 1},
    {"a": 2, "b": "y", "seed": 0},
    {"a": 2, "b": "y", "seed": 1},
  ]
  assert grids.product() == [{}]


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: grids.zipped({"a": (1, 2), "b": (1,)}), "a has 2, b has 1"),
    (lambda: grids.zipped({}), "no name"),
    (lambda: grids.seeds(0), "at least 1"),
    (lambda: grids.product({"a": (1,)}, [{"a": 2}]), "a is in two grids"),
    (lambda: grids.product({"a": 3}), r"as \(3,\)"),
    (lambda: grids.product({"a": "text"}), "several values"),
    (lambda: grids.product({"a": ()}), "has no cell"),
  ],
)
def test_mistakes_are_explained(call, message):
  with pytest.raises(ValueError, match=message):
    call()

"""The table of other libraries, with functions in the place of theirs."""

import importlib.util
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks import libraries


def _row(theirs):
  def inputs(key):
    del key
    return jnp.arange(1.0, 5.0), jnp.float32(2)

  return "double", lambda x, two: x * two, theirs, inputs, 1


def test_a_difference_is_relative_to_the_largest_number_of_its_leaf():
  ours = {"a": jnp.array([1.0, -8.0]), "b": jnp.array([100.0])}
  theirs = {"a": jnp.array([3.0, -8.0]), "b": jnp.array([101.0])}
  assert libraries.difference(ours, theirs) == 0.25
  assert libraries.difference(ours, ours) == 0


def test_values_and_gradients_are_compared():
  # y = 2 x and 2 x + 1: the gradients of Σ y² / 2 are 4 x and 4 x + 2.
  cells = libraries.measured(_row(lambda x, two: x * two + 1), 0.0)
  assert cells[:2] == ["1e-01", "1e-01"]
  assert all(float(cell) > 0 for cell in cells[2:])


def test_inputs_without_a_gradient_get_none():
  # As a function of the second input, this one cannot be differentiated.
  def theirs(x, two):
    return x * jax.pure_callback(lambda y: y, two, two)

  assert libraries.measured(_row(theirs), 0.0)[:2] == ["0e+00", "0e+00"]


def test_a_row_that_fails_says_why_and_the_next_one_follows():
  def theirs(x, two):
    raise NotImplementedError("No windows.\nNor anything else.")

  rows = [_row(theirs), _row(lambda x, two: x * two)]
  failed, kept = libraries.lines(rows, lambda row: libraries.measured(row, 0.0))
  assert failed == "| double | fails: NotImplementedError: No windows. |"
  assert kept.startswith("| double | 0e+00 | 0e+00 | ")


def test_what_has_to_be_installed_is_said():
  with (
    mock.patch.object(importlib.util, "find_spec", return_value=None),
    pytest.raises(ImportError, match=r"qwix is not installed; run `pip"),
  ):
    libraries.main([])

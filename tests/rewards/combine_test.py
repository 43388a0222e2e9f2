"""combine: the weighted sum over what applies, against a NumPy loop."""

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from grpo_jax.rewards import derived

NAN, INF = np.nan, np.inf
ONES = np.ones(6, np.float32)


def rows(*values):
  return np.array(values, np.float32)


@pytest.mark.slow
def test_rows_sum_what_applies_and_the_rest_is_not_valid():
  scored = derived.combine(
    {
      "accuracy": rows(1, 1, NAN, NAN, 1, INF),
      "format": rows(1, NAN, 1, NAN, 1, 1),
    },
    {"accuracy": 1.0, "format": 0.5},
    failed=np.array([0, 0, 0, 0, 1, 0], bool),
    correct=None,
  )
  np.testing.assert_array_equal(scored.rewards, [1.5, 1.0, 0.5, 0, 0, 0])
  np.testing.assert_array_equal(scored.valid, [1, 1, 1, 0, 0, 0])
  np.testing.assert_array_equal(scored.correct, [1, 1, 0, 0, 0, 0])
  np.testing.assert_array_equal(
    scored.components["format"], rows(1, NAN, 1, NAN, 1, 1)
  )
  assert scored.weights == {"accuracy": 1.0, "format": 0.5}


@pytest.mark.slow
def test_correct_is_the_named_component_or_the_first_in_sorted_order():
  components = {"b": rows(1, 0), "a": rows(0.5, 2)}
  weights = {"a": 0.0, "b": 1.0}
  first = derived.combine(components, weights, None, None)
  np.testing.assert_array_equal(first.correct, [False, True])
  named = derived.combine(components, weights, None, "b")
  np.testing.assert_array_equal(named.correct, [True, False])


def test_a_row_with_only_an_observed_component_is_not_valid():
  components = {"a": rows(NAN, 1), "seen": rows(3, NAN)}
  scored = derived.combine(components, {"a": 1.0, "seen": 0.0}, None, None)
  np.testing.assert_array_equal(scored.valid, [False, True])


def test_a_reward_whose_squares_overflow_is_not_valid():
  components = {"a": rows(1e15, 3e38, 1e30, -1e16, INF, 1), "b": 1e15 * ONES}
  scored = derived.combine(components, {"a": 1.0, "b": 0.0}, None, "a")
  np.testing.assert_array_equal(scored.valid, [1, 0, 0, 0, 0, 1])
  np.testing.assert_array_equal(scored.rewards, rows(1e15, 0, 0, 0, 0, 1))
  scored = derived.combine({"a": rows(1e15, 1)}, {"a": 10.0}, None, None)
  np.testing.assert_array_equal(scored.valid, [0, 1])


@pytest.mark.parametrize(
  ("weights", "correct", "named"),
  [
    ({"a": 1.0}, None, "'b'"),
    ({"a": 1.0, "b": 1.0, "c": 1.0}, None, "'c'"),
    ({"a": 1.0, "b": 1.0}, "z", "'z'"),
  ],
)
def test_names_that_do_not_match_raise(weights, correct, named):
  with pytest.raises(KeyError, match=named):
    derived.combine({"a": rows(0), "b": rows(0)}, weights, None, correct)


def test_no_components_raise():
  with pytest.raises(KeyError, match="at least one"):
    derived.combine({}, {}, None, None)


def reference(components, weights, failed):
  rewards, valid = [], []
  for b in range(len(failed)):
    total, applies = 0.0, False
    ok = not failed[b]
    for name, value in components.items():
      if np.isnan(value[b]):
        continue
      ok = ok and np.isfinite(value[b])
      applies = applies or weights[name] != 0
      total += weights[name] * float(value[b])
    valid.append(ok and applies)
    rewards.append(total if valid[-1] else 0.0)
  return rewards, valid


SIZE = 5
value = st.floats(-8, 8, width=32) | st.sampled_from([NAN, INF, -INF])
column = st.lists(value, min_size=SIZE, max_size=SIZE)
combined = jax.jit(
  lambda x, failed: derived.combine(x, WEIGHTS, failed, "a"),
)
WEIGHTS = {"a": 1.0, "b": -0.5, "c": 0.0}


@pytest.mark.slow
@hypothesis.given(
  st.tuples(column, column, column),
  st.lists(st.booleans(), min_size=SIZE, max_size=SIZE),
)
@hypothesis.settings(deadline=None, max_examples=100)
def test_agrees_with_a_loop_under_jit(columns, failed):
  components = {name: rows(*x) for name, x in zip("abc", columns, strict=True)}
  scored = combined(components, np.array(failed))
  rewards, valid = reference(components, WEIGHTS, failed)
  np.testing.assert_array_equal(scored.valid, valid)
  np.testing.assert_allclose(scored.rewards, rewards, atol=1e-5)
  np.testing.assert_array_equal(
    scored.correct, np.array(valid) & (components["a"] >= 1)
  )

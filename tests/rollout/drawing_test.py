"""Filters against their definitions, one token at a time."""

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grpo_jax.rollout import drawing

V = 7
# Eighths, so that ties are exact and common.
LOGITS = hnp.arrays(np.int8, (2, V), elements=st.integers(-24, 24)).map(
  lambda x: np.float32(x) / 8
)
examples = hypothesis.settings(max_examples=60, deadline=None)


def softmax(row):
  weights = np.exp(np.float64(row) - row.max())
  return weights / weights.sum()


def check(filtered, logits, keep):
  """`keep(row, v)` says whether token v of a row belongs to the kept set."""
  for row, result in zip(logits, np.asarray(filtered), strict=True):
    expected = [z if keep(row, v) else -np.inf for v, z in enumerate(row)]
    np.testing.assert_array_equal(result, expected)
    assert result.max() == row.max()  # The most likely token is kept.


@pytest.mark.slow
@examples
@hypothesis.given(LOGITS, st.integers(1, V + 2))
def test_top_k_keeps_tokens_with_fewer_than_k_likelier_ones(logits, k):
  check(
    drawing.top_k(jnp.asarray(logits), k),
    logits,
    lambda row, v: (row > row[v]).sum() < k,
  )


@pytest.mark.slow
@examples
@hypothesis.given(LOGITS, st.floats(0.01, 1))
def test_top_p_keeps_tokens_with_less_than_p_before_them(logits, p):
  def mass_before(row, v):
    return softmax(row)[row > row[v]].sum()

  distances = [abs(mass_before(row, v) - p) for row in logits for v in range(V)]
  hypothesis.assume(min(distances) > 1e-5)  # Beyond rounding.
  check(
    drawing.top_p(jnp.asarray(logits), p),
    logits,
    lambda row, v: mass_before(row, v) < p,
  )


@pytest.mark.slow
@examples
@hypothesis.given(LOGITS, st.floats(0.01, 1))
def test_min_p_keeps_tokens_near_the_most_likely(logits, p):
  ratios = [softmax(row) / softmax(row).max() for row in logits]
  hypothesis.assume(all(abs(r - p).min() > 1e-5 for r in ratios))
  check(
    drawing.min_p(jnp.asarray(logits), p),
    logits,
    lambda row, v: softmax(row)[v] >= p * softmax(row).max(),
  )


@pytest.mark.parametrize(
  ("function", "value"),
  [(drawing.top_k, 1), (drawing.top_p, 1e-9), (drawing.min_p, 1.0)],
)
def test_the_strictest_setting_keeps_exactly_the_most_likely(function, value):
  logits = jnp.array([[0.0, 3.0, -jnp.inf, 2.0]])
  kept = np.isfinite(function(logits, value))
  np.testing.assert_array_equal(kept, [[False, True, False, False]])


@pytest.mark.parametrize(
  ("function", "value"), [(drawing.top_k, 4), (drawing.top_p, 1.0)]
)
def test_the_loosest_setting_keeps_everything(function, value):
  logits = jnp.array([[0.0, 3.0, -jnp.inf, -40.0]])
  np.testing.assert_array_equal(function(logits, value), logits)


def test_rows_have_a_top_p_of_their_own():
  logits = jnp.tile(-jnp.arange(200.0), (3, 1))
  kept = np.isfinite(drawing.top_p(logits, jnp.array([[0.5], [1.0], [0.9]])))
  assert kept.sum(axis=1).tolist() == [1, 200, 3]


def test_a_token_that_alone_has_the_mass_is_kept_alone():
  # The probability of the other one is 0 in float32, and the mass before it 1.
  kept = np.isfinite(drawing.top_p(jnp.array([[-200.0, 0.0]]), 0.99))
  np.testing.assert_array_equal(kept, [[False, True]])


def test_temperature_divides():
  np.testing.assert_array_equal(
    drawing.temperature(jnp.array([[1.0, 3.0]]), 0.5), [[2.0, 6.0]]
  )

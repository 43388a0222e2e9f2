"""Tests of the ends of segments, and of their credits."""

import jax
import numpy as np
import pytest

from grpo_jax.ops import segments

SHAPE = 40, 24

# One program for all tests of the same shapes.
ends_of = jax.jit(segments.ends, static_argnums=(3, 4))
uncertain_of = jax.jit(segments.uncertain)


@jax.jit
def _credits_and_spread(utility, segment_end, rewards, mask):
  found = segments.credits(utility, segment_end, rewards, mask)
  return found, segments.spread(found, segment_end)


def credits_and_spread(*arrays):
  return jax.device_get(_credits_and_spread(*arrays))


def _ends(delimiter, begins, length, min_gap, most):
  """Slot by slot, as the rule is told."""
  found = np.zeros(len(delimiter), bool)
  size = count = 0
  for t in range(length):
    size += 1
    if t == length - 1:
      found[t] = True
    elif count < most - 1 and (
      delimiter[t] or (begins[t + 1] and size >= min_gap)
    ):
      found[t] = True
      size, count = 0, count + 1
  return found


@pytest.mark.parametrize(
  ("min_gap", "most"), [(1, 30), (4, 30), (3, 4), (1, 1)]
)
def test_ends_follow_the_rule(min_gap, most):
  rng = np.random.default_rng(0)
  lengths = np.append(rng.integers(1, SHAPE[1] + 1, SHAPE[0] - 1), 0)
  mask = np.arange(SHAPE[1]) < lengths[:, None]
  delimiter, begins = rng.random(SHAPE) < 0.2, rng.random(SHAPE) < 0.3
  got = np.asarray(ends_of(delimiter, begins, mask, min_gap, most))
  wanted = [
    _ends(*row, min_gap, most)
    for row in zip(delimiter, begins, lengths, strict=True)
  ]
  np.testing.assert_array_equal(got, wanted)
  assert got.sum(axis=1).max() <= most
  assert not got[-1].any()


def test_uncertain_tokens_are_above_the_quantile_of_their_row():
  entropy = np.array([[0.0, 3.0, 1.0, 2.0, 9.0], [5.0, 5.0, 5.0, 5.0, 9.0]])
  mask = np.array([[True] * 4 + [False]] * 2)
  got = uncertain_of(entropy, mask, 0.5)  # Above 1.5, and above 5.
  assert np.flatnonzero(np.asarray(got)[0]).tolist() == [1, 3]
  assert not np.asarray(got)[1].any()
  assert not np.asarray(uncertain_of(entropy, mask, 1.0)).any()
  empty = uncertain_of(entropy, np.zeros_like(mask), 0.5)
  assert not np.asarray(empty).any()


def _golden():
  """V̂ = 0.3, 0.6, 0.2 before segments of 2, 3 and 1 tokens; R = 1."""
  utility = np.array([[0.3, 0.3, 0.6, 0.6, 0.6, 0.2, 7.0]])
  segment_end = np.array([[0, 1, 0, 0, 1, 1, 0]], bool)
  return utility, segment_end, np.array([1.0]), np.arange(7)[None] < 6


def test_credits_by_hand():
  got, spread = credits_and_spread(*_golden())
  # 0.6 − 0.3, 0.2 − 0.6, 1 − 0.2.
  np.testing.assert_allclose(got, [[0, 0.3, 0, 0, -0.4, 0.8, 0]], atol=1e-6)
  np.testing.assert_allclose(
    spread, [[0.3, 0.3, -0.4, -0.4, -0.4, 0.8, 0]], atol=1e-6
  )


def test_what_does_not_exist_has_no_credit():
  utility, segment_end, rewards, mask = _golden()
  nothing, _ = credits_and_spread(utility, segment_end, rewards, mask & False)
  assert not nothing.any()
  other = np.where(mask, utility, np.nan)
  np.testing.assert_array_equal(
    credits_and_spread(other, segment_end, rewards, mask)[0],
    credits_and_spread(utility, segment_end, rewards, mask)[0],
  )

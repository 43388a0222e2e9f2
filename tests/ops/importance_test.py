"""Weights and masks against mismatch: by hand, bounded, and constant."""

import jax
import numpy as np
import pytest

from grpo_jax.ops import importance

# Ratios 2, 4, 1/8 | 1, 1/4 | nothing.
RATIO = np.array([[2.0, 4.0, 0.125], [1.0, 0.25, 9.0], [9.0, 9.0, 9.0]])
LOG_RATIO = np.log(RATIO).astype(np.float32)
ZEROS = np.zeros_like(LOG_RATIO)
MASK = np.array([[True] * 3, [True, True, False], [False] * 3])
LEVELS = ("token", "sequence")
MODES = ("truncate", "mask")

# One program for all tests of the same shapes and options.
weights_of = jax.jit(
  importance.importance_weights, static_argnames=("level", "mode")
)
normalized_of = jax.jit(importance.batch_normalized, static_argnums=2)
rejection_of = jax.jit(importance.rejection_mask, static_argnums=(2, 3, 4, 5))
sequence_mask_of = jax.jit(importance.off_policy_sequence_mask)
top_entropy_of = jax.jit(importance.top_entropy_mask, static_argnums=2)


@pytest.mark.parametrize(
  ("level", "mode", "bounds", "expected"),
  [
    # The products are 1 and 1/4.
    ("token", "truncate", (3.0,), [[2, 3, 0.125], [1, 0.25, 0]]),
    ("token", "truncate", (3.0, 0.5), [[2, 3, 0.5], [1, 0.5, 0]]),
    ("token", "mask", (3.0, 0.2), [[2, 0, 0], [1, 0.25, 0]]),
    ("token", "mask", (4.5,), [[2, 4, 0.125], [1, 0.25, 0]]),
    ("sequence", "truncate", (0.5,), [[0.5] * 3, [0.25, 0.25, 0]]),
    ("sequence", "mask", (3.0, 0.5), [[1, 1, 1], [0, 0, 0]]),
    # What is at both bounds is within them.
    ("token", "mask", (1.0, 1.0), [[0, 0, 0], [1, 0, 0]]),
  ],
)
def test_weights_by_hand(level, mode, bounds, expected):
  found = weights_of(LOG_RATIO, MASK, level, mode, *bounds)
  np.testing.assert_allclose(found, [*expected, [0] * 3], rtol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", MODES)
def test_equal_policies_weigh_one(level, mode):
  found = weights_of(ZEROS, MASK, level, mode, 2.0, 0.5)
  np.testing.assert_array_equal(found, MASK.astype(np.float32))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e9])
def test_masked_garbage_reaches_no_weight(level, mode, garbage):
  def weights(x):
    return weights_of(x, MASK, level, mode, 5.0)

  dirty = np.where(MASK, LOG_RATIO, np.float32(garbage))
  np.testing.assert_array_equal(weights(dirty), weights(LOG_RATIO))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", MODES)
def test_weights_are_constants_and_finite(level, mode):
  def total(x):
    return importance.importance_weights(x, MASK, level, mode, 1e9).sum()

  slope = jax.jit(jax.grad(total))(LOG_RATIO)
  np.testing.assert_array_equal(slope, 0)
  for gap in (100.0, -100.0):
    assert np.isfinite(
      weights_of(ZEROS + np.float32(gap), MASK, level, mode, 1e9)
    ).all()


def test_unknown_log_probs_of_the_sampler_weigh_one():
  unknown = LOG_RATIO.copy()
  unknown[0, 1] = np.nan
  token = np.asarray(weights_of(unknown, MASK, "token", "mask", 3.0))
  np.testing.assert_allclose(token[0], [2, 1, 0.125], rtol=1e-5)
  row = np.asarray(weights_of(unknown, MASK, "sequence", "mask", 3.0))
  np.testing.assert_allclose(row[0], [0.25] * 3, rtol=1e-5)


def test_unknown_choices_raise():
  with pytest.raises(ValueError, match="level is 'row'; choose 'token'"):
    weights_of(LOG_RATIO, MASK, "row", "mask", 2.0)
  with pytest.raises(ValueError, match="mode is 'clip'; choose 'truncate'"):
    weights_of(LOG_RATIO, MASK, "token", "clip", 2.0)
  with pytest.raises(ValueError, match="batch_normalized: level is 'row'"):
    normalized_of(LOG_RATIO, MASK, "row")
  with pytest.raises(ValueError, match="statistic is 'mean'; choose one of"):
    rejection_of(LOG_RATIO, MASK, "mean", "k1", 0.5, 2.0)
  with pytest.raises(ValueError, match="kind is 'abs'; choose one of k1"):
    rejection_of(LOG_RATIO, MASK, "token", "abs", 0.5, 2.0)


def test_normalised_weights_have_mean_one():
  weights = np.float32([[4.0, 4.0, 4.0], [1.0, 1.0, 0.0], [0.0] * 3])
  # Over 5 tokens the mean is 14/5, over 2 completions 5/2.
  np.testing.assert_allclose(
    normalized_of(weights, MASK, "token"), weights * 5 / 14, rtol=1e-6
  )
  np.testing.assert_allclose(
    normalized_of(weights, MASK, "sequence"), weights * 2 / 5, rtol=1e-6
  )
  for level in LEVELS:
    np.testing.assert_array_equal(normalized_of(ZEROS, MASK, level), ZEROS)


@pytest.mark.parametrize(
  ("statistic", "kind", "low", "high", "kept"),
  [
    # k1 is −x: the inverse ratios are ½, ¼, 8 | 1, 4.
    ("token", "k1", 0.3, 5.0, [[1, 0, 0], [1, 1]]),
    ("token", "k1", 0.0, 5.0, [[1, 1, 0], [1, 1]]),
    ("seq_sum", "k1", 0.9, 3.9, [[1, 1, 1], [0, 0]]),  # 1 | 4
    ("seq_mean", "k1", 0.9, 1.9, [[1, 1, 1], [0, 0]]),  # 1 | 2
    ("seq_max", "k1", 0.3, 5.0, [[0, 0, 0], [1, 1]]),
    # What is at a bound is kept.
    ("token", "k1", 1.0, 1.0, [[0, 0, 0], [1, 0]]),
    ("token", "k2", 0.0, 0.0, [[0, 0, 0], [1, 0]]),
    ("token", "k3", 0.0, 0.0, [[0, 0, 0], [1, 0]]),
    # k2 = x²/2: 0.24, 0.96, 2.16 | 0, 0.96
    ("token", "k2", 0.0, 1.0, [[1, 1, 0], [1, 1]]),
    ("seq_sum", "k2", 0.0, 1.0, [[0, 0, 0], [1, 1]]),
    ("seq_mean", "k2", 0.0, 0.4, [[0, 0, 0], [0, 0]]),
    ("seq_max", "k2", 0.0, 1.0, [[0, 0, 0], [1, 1]]),
    # k3 = e^x − 1 − x: 0.31, 1.61, 1.20 | 0, 0.64
    ("token", "k3", 0.0, 1.3, [[1, 0, 1], [1, 1]]),
    ("seq_mean", "k3", 0.0, 0.9, [[0, 0, 0], [1, 1]]),
    ("seq_max", "k3", 0.0, 1.3, [[0, 0, 0], [1, 1]]),
  ],
)
def test_rejection_by_hand(statistic, kind, low, high, kept):
  found = rejection_of(LOG_RATIO, MASK, statistic, kind, low, high)
  expected = np.array([kept[0], [*kept[1], 0], [0, 0, 0]], bool)
  np.testing.assert_array_equal(found, expected)
  dirty = np.where(MASK, LOG_RATIO, np.float32(np.nan))
  np.testing.assert_array_equal(
    rejection_of(dirty, MASK, statistic, kind, low, high), found
  )


def test_padding_rejects_no_sequence():
  """Its ratio of 1 is outside of bounds that all tokens pass."""
  mask = np.array([[True, True, False], [True, True, True]])
  inverse = np.array([[2.0, 3.0, 1.0], [2.0, 3.0, 1.0]])
  found = rejection_of(-np.log(inverse), mask, "seq_max", "k1", 1.5, 4.0)
  np.testing.assert_array_equal(found, [[True, True, False], [False] * 3])


def test_sequences_left_behind_are_left_out_if_they_were_bad():
  behavior = np.full((3, 2), -1.0)
  # Mean falls: 0.3 with A > 0, 0.3 with A < 0, 0.1 with A < 0.
  logp = behavior - np.array([[0.6, 0.0], [0.6, 0.0], [0.2, 0.0]])
  mask = np.ones((3, 2), bool)

  def keep(advantages):
    return np.asarray(
      sequence_mask_of(logp, behavior, np.array(advantages), mask, 0.2)
    )

  np.testing.assert_array_equal(
    keep([1.0, -1.0, -1.0]), [[True], [False], [True]]
  )
  assert keep([0.0, 0.0, 1.0]).all()
  np.testing.assert_array_equal(
    keep([[1.0, -1.0], [1.0, -1.0], [-1.0, -1.0]]),
    [[True, False], [True, False], [True, True]],
  )


def test_off_policy_drift_ignores_garbage_and_the_unknown():
  mask = np.array([[True, True, False]])
  logp = np.array([[-1.5, -1.0, np.nan]])

  def keep(unknown, threshold):
    behavior = np.array([[-1.0, unknown, np.inf]])
    return sequence_mask_of(logp, behavior, -np.ones(1), mask, threshold).item()

  # (0.5 + 0) / 2, whether the second token did not move or is not known.
  for unknown in (-1.0, np.nan):
    assert keep(unknown, 0.26)
    assert not keep(unknown, 0.24)


@pytest.mark.parametrize(
  ("fraction", "kept"),
  [
    (1.0, [[1, 1, 1], [1, 1, 0]]),
    (0.75, [[1, 1, 0], [1, 1, 0]]),  # Rank 1 of 0..4 is a token: kept.
    (0.7, [[1, 1, 0], [1, 0, 0]]),  # Rank 1.2 lies above it: lost.
    (0.5, [[1, 1, 0], [1, 0, 0]]),
    (0.2, [[0, 1, 0], [0, 0, 0]]),
  ],
)
def test_high_entropy_tokens_by_hand(fraction, kept):
  entropy = np.array([[0.5, 0.9, 0.1], [0.7, 0.3, np.nan]])
  mask = np.array([[True] * 3, [True, True, False]])
  found = top_entropy_of(entropy, mask, fraction)
  np.testing.assert_array_equal(found, np.array(kept, bool))


@pytest.mark.slow
def test_high_entropy_tokens_are_those_above_numpys_quantile():
  rng = np.random.default_rng(0)
  for size in (1, 11, 101):
    entropy = rng.random(size).astype(np.float32)
    for fraction in (0.1, 0.2, 0.8):
      found = np.asarray(
        top_entropy_of(entropy[None], np.ones((1, size), bool), fraction)
      )
      threshold = np.quantile(entropy.astype(np.float64), 1 - fraction)
      # 1 − 0.8 is below 0.2: a token on the quantile must not be lost to it.
      np.testing.assert_array_equal(found[0], entropy >= threshold - 1e-9)


def test_no_tokens_no_high_entropy():
  found = top_entropy_of(np.ones((2, 3)), np.zeros((2, 3), bool), 0.5)
  np.testing.assert_array_equal(found, False)


def test_a_drift_at_the_threshold_and_an_advantage_of_0_are_kept():
  advantages = np.float32([-1.0, 0.0, -1.0])
  for drift, kept in ((0.5, [True, True]), (0.75, [False, True])):
    found = sequence_mask_of(
      ZEROS - np.float32(drift), ZEROS, advantages, MASK, 0.5
    )
    assert found[:2, 0].tolist() == kept

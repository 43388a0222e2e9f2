"""Losses of pairs: by hand, mirrored, and at large margins."""

import functools

import jax
import numpy as np
import pytest

from grpo_jax.ops import preferences
from tests.ops import slopes

MARGIN = np.array([-1.5, 0.0, 0.4, 3.0])

# One program for all tests of the same options.
dpo_of = jax.jit(preferences.dpo, static_argnames=("kind", "label_smoothing"))
bradley_terry_of = jax.jit(preferences.bradley_terry)


def _log_sigmoid(x):
  return -np.log1p(np.exp(-x))


@pytest.mark.parametrize(
  ("kind", "smoothing", "expected"),
  [
    ("sigmoid", 0.0, -_log_sigmoid(0.5 * MARGIN)),
    (
      "sigmoid",
      0.1,
      -0.9 * _log_sigmoid(0.5 * MARGIN) - 0.1 * _log_sigmoid(-0.5 * MARGIN),
    ),
    (
      "robust",
      0.1,
      (-0.9 * _log_sigmoid(0.5 * MARGIN) + 0.1 * _log_sigmoid(-0.5 * MARGIN))
      / 0.8,
    ),
    ("hinge", 0.0, [1.75, 1.0, 0.8, 0.0]),
    ("ipo", 0.0, [2.5**2, 1.0, 0.6**2, 2.0**2]),
  ],
)
def test_losses_by_hand(kind, smoothing, expected):
  found = dpo_of(MARGIN, 0.5, kind, smoothing)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_no_margin_costs_log_two_and_swaps_mirror():
  np.testing.assert_array_equal(dpo_of(0 * MARGIN, 0.1), np.float32(np.log(2)))
  slope = jax.jit(jax.grad(lambda d: preferences.dpo(d, 0.5).sum()))
  # σ(−βd) + σ(βd) = 1.
  there, back = (np.asarray(slope(np.float32(d))) for d in (MARGIN, -MARGIN))
  np.testing.assert_allclose(there + back, -0.5, rtol=1e-6)


@functools.partial(jax.jit, static_argnums=0)
def _every_kind(divergence, x):
  """Value and slope of each kind for a pair with these log-ratios."""

  def total(x, kind):
    score = preferences.dpo_score(x, divergence)
    return preferences.dpo(score[:1] - score[1:], 0.1, kind).sum()

  return {
    kind: jax.value_and_grad(total)(x, kind) for kind in preferences.DPO_KINDS
  }


@pytest.mark.parametrize("kind", preferences.DPO_KINDS)
@pytest.mark.parametrize("divergence", preferences.F_DIVERGENCES)
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_a_gap_of_100_nats_is_finite_in_float32(kind, divergence, gap):
  value, slope = _every_kind(divergence, np.float32([gap, -gap]))[kind]
  assert np.isfinite(value)
  assert np.isfinite(slope).all()


@pytest.mark.parametrize(
  ("divergence", "score", "slope"),
  [
    ("reverse_kl", np.log(3.0), 1.0),
    ("forward_kl", -1 / 3, 1 / 3),
    ("js_divergence", np.log(0.75), 0.25),
  ],
)
def test_scores_by_hand(divergence, score, slope):
  found = jax.jit(
    jax.value_and_grad(lambda x: preferences.dpo_score(x[None], divergence)[0])
  )(np.float32(np.log(3.0)))
  np.testing.assert_allclose(found, (score, slope), rtol=1e-5)


def test_unknown_choices_raise():
  with pytest.raises(ValueError, match="kind is 'exo'; choose one of sigmoid"):
    preferences.dpo(np.zeros(1), 0.1, "exo")
  with pytest.raises(ValueError, match=r"label_smoothing is 0\.5"):
    preferences.dpo(np.zeros(1), 0.1, "robust", 0.5)
  with pytest.raises(ValueError, match="f_divergence is 'tv'; choose one of"):
    preferences.dpo_score(np.zeros(1), "tv")


def test_bradley_terry_by_hand():
  chosen, rejected = np.array([1.0, 2.0]), np.array([0.0, 2.0])
  np.testing.assert_allclose(
    bradley_terry_of(chosen, rejected),
    [-_log_sigmoid(1.0), np.log(2)],
    rtol=1e-6,
  )
  np.testing.assert_allclose(
    bradley_terry_of(chosen, rejected, np.array([0.5, 0.0]), 0.1),
    [-_log_sigmoid(0.5) + 0.1, np.log(2) + 1.6],
    rtol=1e-6,
  )


@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_far_rewards_are_finite(gap):
  rewards = np.float32([gap, gap])
  ranking = functools.partial(preferences.bradley_terry, center_coef=0.1)
  values, gradients = slopes.values_and_slopes(ranking, rewards, -rewards)
  assert np.isfinite(values).all()
  assert np.isfinite(gradients).all()

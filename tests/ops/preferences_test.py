"""Losses of pairs: by hand, mirrored, and at large margins."""

import functools

import jax
import numpy as np
import pytest

from grpo_jax.ops import baselines, masked, preferences, surrogates

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


def test_robust_loss_is_unbiased_under_wrong_labels():
  """With a share s of the labels swapped, its mean is the clean loss."""
  s = 0.2
  right, wrong = (
    np.asarray(dpo_of(d, 0.5, "robust", s)) for d in (MARGIN, -MARGIN)
  )
  robust = (1 - s) * right + s * wrong
  np.testing.assert_allclose(robust, dpo_of(MARGIN, 0.5), atol=1e-6)


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


def test_pair_of_grpo_and_of_dpo_push_the_same_way():
  """A group of two, on-policy: c = 1/√2 against β, both times ½."""
  logp = np.float32([[-1.0, -2.0], [-0.5, -1.5]])
  mask = np.array([[True, True], [True, False]])

  def grpo(logp):
    advantages = baselines.group_standardized(
      np.float32([0.3, 0.9]), np.ones(2, bool), np.zeros(2, int), 1
    )
    return (
      -masked.sum(surrogates.reinforce(logp, advantages), mask) / logp.shape[0]
    )

  def dpo(logp):
    x = masked.sum(logp - jax.lax.stop_gradient(logp), mask, axis=-1)
    return preferences.dpo(x[1:] - x[:1], 0.1).sum()

  slopes = jax.jit(lambda x: (jax.grad(grpo)(x), jax.grad(dpo)(x)))
  of_grpo, of_dpo = jax.device_get(slopes(logp))
  np.testing.assert_allclose(of_grpo / (0.5**0.5), of_dpo / 0.1, rtol=1e-4)


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


@jax.jit
def _ranking_and_slope(chosen, rejected, shift, center_coef):
  """Losses of shifted rewards, and the slopes of their sum in all three."""

  def total(chosen, rejected, shift):
    losses = preferences.bradley_terry(
      chosen + shift, rejected + shift, 0.0, center_coef
    )
    return losses.sum(), losses

  slopes, losses = jax.grad(total, (0, 1, 2), has_aux=True)(
    chosen, rejected, shift
  )
  return losses, slopes


def ranking_and_slope(chosen, rejected, shift, center_coef):
  arrays = np.float32(chosen), np.float32(rejected), shift, center_coef
  return jax.device_get(_ranking_and_slope(*arrays))


def test_ranking_ignores_a_shift_and_centering_does_not():
  def loss(shift, center_coef):
    return ranking_and_slope([1.0, -0.5], [0.2, 0.7], shift, center_coef)

  np.testing.assert_allclose(loss(3.0, 0.0)[0], loss(0.0, 0.0)[0], rtol=1e-5)
  assert (loss(3.0, 0.1)[0] > loss(0.0, 0.1)[0]).all()
  values, slopes = loss(0.0, 0.0)
  assert np.isfinite(values).all()
  np.testing.assert_allclose(slopes[2], 0.0, atol=1e-6)


@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_far_rewards_are_finite(gap):
  rewards = np.array([gap, gap])
  values, slopes = ranking_and_slope(rewards, -rewards, 0.0, 0.1)
  assert np.isfinite(values).all()
  assert np.isfinite(slopes[0]).all()
  assert np.isfinite(slopes[1]).all()

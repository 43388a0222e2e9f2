"""Losses of pairs: by hand, mirrored, and at large margins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import baselines, masked, preferences, surrogates

MARGIN = np.array([-1.5, 0.0, 0.4, 3.0])


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
  found = preferences.dpo(jnp.asarray(MARGIN), 0.5, kind, smoothing)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_no_margin_costs_log_two_and_swaps_mirror():
  assert preferences.dpo(jnp.zeros(1), 0.1).item() == np.float32(np.log(2))
  slope = jax.vmap(jax.grad(lambda d: preferences.dpo(d[None], 0.5)[0]))
  # σ(−βd) + σ(βd) = 1.
  np.testing.assert_allclose(
    slope(jnp.asarray(MARGIN)) + slope(-jnp.asarray(MARGIN)), -0.5, rtol=1e-6
  )


def test_robust_loss_is_unbiased_under_wrong_labels():
  """With a share s of the labels swapped, its mean is the clean loss."""
  d, s = jnp.asarray(MARGIN), 0.2
  robust = (1 - s) * preferences.dpo(d, 0.5, "robust", s)
  robust += s * preferences.dpo(-d, 0.5, "robust", s)
  np.testing.assert_allclose(robust, preferences.dpo(d, 0.5), atol=1e-6)


@pytest.mark.parametrize("kind", preferences.DPO_KINDS)
@pytest.mark.parametrize("divergence", preferences.F_DIVERGENCES)
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_a_gap_of_100_nats_is_finite_in_float32(kind, divergence, gap):
  def total(x):
    score = preferences.dpo_score(x, divergence)
    return preferences.dpo(score[:1] - score[1:], 0.1, kind).sum()

  value, slope = jax.value_and_grad(total)(jnp.array([gap, -gap]))
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
  found = jax.value_and_grad(
    lambda x: preferences.dpo_score(x[None], divergence)[0]
  )(jnp.log(3.0))
  np.testing.assert_allclose(found, (score, slope), rtol=1e-5)


def test_unknown_choices_raise():
  with pytest.raises(ValueError, match="kind is 'exo'; choose one of sigmoid"):
    preferences.dpo(jnp.zeros(1), 0.1, "exo")
  with pytest.raises(ValueError, match=r"label_smoothing is 0\.5"):
    preferences.dpo(jnp.zeros(1), 0.1, "robust", 0.5)
  with pytest.raises(ValueError, match="f_divergence is 'tv'; choose one of"):
    preferences.dpo_score(jnp.zeros(1), "tv")


def test_pair_of_grpo_and_of_dpo_push_the_same_way():
  """A group of two, on-policy: c = 1/√2 against β, both times ½."""
  logp = jnp.array([[-1.0, -2.0], [-0.5, -1.5]])
  mask = jnp.array([[True, True], [True, False]])
  rewards, group = jnp.array([0.3, 0.9]), jnp.zeros(2, int)
  advantages = baselines.group_standardized(
    rewards, jnp.ones(2, bool), group, 1
  )

  def grpo(logp):
    return (
      -masked.sum(surrogates.reinforce(logp, advantages), mask) / logp.shape[0]
    )

  def dpo(logp):
    x = masked.sum(logp - jax.lax.stop_gradient(logp), mask, axis=-1)
    return preferences.dpo(x[1:] - x[:1], 0.1).sum()

  np.testing.assert_allclose(
    jax.grad(grpo)(logp) / (0.5**0.5), jax.grad(dpo)(logp) / 0.1, rtol=1e-4
  )


def test_bradley_terry_by_hand():
  chosen, rejected = jnp.array([1.0, 2.0]), jnp.array([0.0, 2.0])
  np.testing.assert_allclose(
    preferences.bradley_terry(chosen, rejected),
    [-_log_sigmoid(1.0), np.log(2)],
    rtol=1e-6,
  )
  np.testing.assert_allclose(
    preferences.bradley_terry(chosen, rejected, jnp.array([0.5, 0.0]), 0.1),
    [-_log_sigmoid(0.5) + 0.1, np.log(2) + 1.6],
    rtol=1e-6,
  )


def test_ranking_ignores_a_shift_and_centering_does_not():
  chosen, rejected = jnp.array([1.0, -0.5]), jnp.array([0.2, 0.7])

  def loss(shift, center_coef):
    return preferences.bradley_terry(
      chosen + shift, rejected + shift, 0.0, center_coef
    )

  np.testing.assert_allclose(loss(3.0, 0.0), loss(0.0, 0.0), rtol=1e-5)
  assert (loss(3.0, 0.1) > loss(0.0, 0.1)).all()
  value, slope = jax.value_and_grad(lambda x: loss(x, 0.0).sum())(0.0)
  assert np.isfinite(value)
  np.testing.assert_allclose(slope, 0.0, atol=1e-6)


@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_far_rewards_are_finite(gap):
  value, slope = jax.value_and_grad(
    lambda r: preferences.bradley_terry(r, -r, 0.0, 0.1).sum()
  )(jnp.array([gap]))
  assert np.isfinite(value)
  assert np.isfinite(slope).all()

"""KL estimators: what each is in expectation, by enumeration in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import divergences

LOGITS = np.array([0.3, -1.2, 2.0, 0.1, -0.4])
REFERENCE = np.array([-0.5, 0.7, 1.1, -1.0, 0.2])
KINDS = ("k1", "k2", "k3")


def _kl(logits, other):  # KL(softmax(logits) ‖ softmax(other)), in full
  p, q = jax.nn.log_softmax(logits), jax.nn.log_softmax(other)
  return (jnp.exp(p) * (p - q)).sum()


def _value_and_gradient(kind):
  """E over y ~ π of the estimate and of its gradient, π held fixed."""
  mask = jnp.ones((1, len(LOGITS)), bool)
  probs = jax.nn.softmax(LOGITS)
  ref_logp = jax.nn.log_softmax(REFERENCE)[None]

  def expected(logits):
    logp = jax.nn.log_softmax(logits)[None]  # One column per symbol.
    return (probs * divergences.kl(logp, ref_logp, mask, kind)[0]).sum()

  return jax.value_and_grad(expected)(jnp.asarray(LOGITS))


def test_values_in_expectation():
  """E[k1] = E[k3] = KL(π ‖ ref); k2 is biased."""
  with jax.enable_x64(True):
    exact = _kl(LOGITS, REFERENCE)
    values = {kind: _value_and_gradient(kind)[0] for kind in KINDS}
    np.testing.assert_allclose(values["k1"], exact, rtol=1e-12)
    np.testing.assert_allclose(values["k3"], exact, rtol=1e-12)
    assert abs(values["k2"] - exact) > 0.05 * exact


def test_gradients_in_expectation():
  """E∇k1 = 0, E∇k2 = ∇KL(π ‖ ref), E∇k3 = ∇KL(ref ‖ π)."""
  with jax.enable_x64(True):
    logits = jnp.asarray(LOGITS)
    reverse = jax.grad(_kl, 0)(logits, REFERENCE)
    forward = jax.grad(_kl, 1)(REFERENCE, logits)
    assert np.abs(reverse - forward).max() > 0.05  # They can be told apart.
    gradients = {kind: _value_and_gradient(kind)[1] for kind in KINDS}
    np.testing.assert_allclose(gradients["k1"], 0, atol=1e-14)
    np.testing.assert_allclose(gradients["k2"], reverse, rtol=1e-10)
    np.testing.assert_allclose(gradients["k3"], forward, rtol=1e-10)


def test_k3_keeps_its_digits_near_zero():
  """k3(u) = u²/2 − u³/6 + …: 5e-9 at 1e-4, where exp(−u) − 1 has lost all."""
  u = np.array([1e-4, -1e-4, 1e-3, -1e-3], np.float32)
  wide = u.astype(np.float64)
  # One rounding of u is 6e-8 |u|, 1.2e-3 of the value u²/2 at 1e-4.
  np.testing.assert_allclose(
    divergences.kl_k3(u), np.expm1(-wide) + wide, rtol=2e-3
  )
  assert divergences.kl_k3(jnp.float32(0.0)) == 0
  # The written form, by contrast, is off by more than the value itself.
  naive = np.exp(-u) - np.float32(1) + u
  assert np.abs(naive[:2] - 5e-9).max() > 5e-9


def test_k3_is_never_negative_and_never_infinite():
  u = jnp.linspace(-100.0, 100.0, 4001)
  values = divergences.kl_k3(u)
  assert (values >= 0).all()
  assert np.isfinite(values).all()
  assert np.isfinite(jax.vmap(jax.grad(divergences.kl_k3))(u)).all()
  small = jnp.linspace(-1e-3, 1e-3, 4001)
  assert (divergences.kl_k3(small) >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_masked_slots_and_the_reference_get_no_gradient(kind):
  mask = jnp.array([[True, False]])
  logp, ref = jnp.array([[-1.0, jnp.nan]]), jnp.array([[-1.5, jnp.inf]])

  def total(logp, ref):
    return divergences.kl(logp, ref, mask, kind).sum()

  value, (slope, ref_slope) = jax.value_and_grad(total, (0, 1))(logp, ref)
  u = 0.5  # −1 − (−1.5)
  expected = {
    "k1": (u, 1.0),
    "k2": (u * u / 2, u),
    "k3": (np.exp(-u) - 1 + u, 1 - np.exp(-u)),
  }[kind]
  np.testing.assert_allclose(value, expected[0], rtol=1e-6)
  np.testing.assert_allclose(slope, [[expected[1], 0.0]], rtol=1e-6)
  assert not ref_slope.any()

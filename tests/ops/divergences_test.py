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


def test_straight_through_kinds_have_one_value_and_the_other_slope():
  u = jnp.array([[0.5, -0.25, 3.0]])
  mask = jnp.ones((1, 3), bool)

  def both(kind):
    return jax.value_and_grad(
      lambda x: divergences.kl(x, jnp.zeros((1, 3)), mask, kind).sum()
    )(u)

  for kind in ("k1", "k3"):
    value, slope = both(f"{kind}_plus")
    np.testing.assert_allclose(value, both(kind)[0], rtol=1e-6)
    np.testing.assert_allclose(slope, u, rtol=1e-6)  # Of u²/2.


def test_unbiased_k3_has_value_and_gradient_of_the_kl_off_policy():
  """E_old[r k3] = KL(π ‖ ref), and so is its gradient."""
  with jax.enable_x64(True):
    old = np.array([0.4, 0.2, -0.3, 1.0, 0.0])
    old_logp = jax.nn.log_softmax(old)[None]
    ref_logp = jax.nn.log_softmax(REFERENCE)[None]
    mask = jnp.ones((1, len(old)), bool)

    def expected(logits):
      logp = jax.nn.log_softmax(logits)[None]
      k = divergences.kl(logp, ref_logp, mask, "k3_unbiased", old_logp)
      return (jnp.exp(old_logp) * k).sum()

    found = jax.value_and_grad(expected)(jnp.asarray(LOGITS))
    exact = jax.value_and_grad(_kl)(jnp.asarray(LOGITS), REFERENCE)
    np.testing.assert_allclose(found[0], exact[0], rtol=1e-12)
    np.testing.assert_allclose(found[1], exact[1], rtol=1e-10)


def test_absolute_difference_does_not_push_where_both_agree():
  slope = jax.grad(
    lambda x: divergences.kl(
      x, jnp.zeros((1, 3)), jnp.ones((1, 3), bool), "abs"
    ).sum()
  )(jnp.array([[2.0, 0.0, -2.0]]))
  np.testing.assert_array_equal(slope, [[1.0, 0.0, -1.0]])


@pytest.mark.parametrize("kind", divergences.KL_KINDS)
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_a_gap_of_100_nats_is_finite_in_float32(kind, gap):
  zeros, mask = jnp.zeros((1, 2)), jnp.ones((1, 2), bool)
  value, slope = jax.value_and_grad(
    lambda x: divergences.kl(x, zeros, mask, kind, zeros).sum()
  )(zeros + gap)
  assert np.isfinite(value)
  assert np.isfinite(slope).all()


@pytest.mark.parametrize("kind", divergences.KL_KINDS)
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e9])
def test_masked_garbage_reaches_nothing(kind, garbage):
  mask = jnp.array([[True, True, False]])
  logp, ref, old = (
    jnp.array([[-1.0, -2.0, x]]) * jnp.array([1.0, y, 1.0])
    for x, y in ((-1.0, 1.0), (-2.0, 0.7), (-3.0, 1.2))
  )

  def both(logp, ref, old):
    return jax.value_and_grad(
      lambda *xs: divergences.kl(*xs[:2], mask, kind, xs[2]).sum(), (0, 1, 2)
    )(logp, ref, old)

  value, slopes = both(logp, ref, old)
  dirty, dirty_slopes = both(
    *(jnp.where(mask, x, garbage) for x in (logp, ref, old))
  )
  assert dirty == value
  np.testing.assert_array_equal(dirty_slopes[0], slopes[0])
  assert not np.any(dirty_slopes[1])
  assert not np.any(dirty_slopes[2])


def test_bad_kinds_raise():
  zeros, mask = jnp.zeros((1, 1)), jnp.ones((1, 1), bool)
  with pytest.raises(ValueError, match="kind is 'k4'; choose one of k1"):
    divergences.kl(zeros, zeros, mask, "k4")
  with pytest.raises(ValueError, match="pass old_logp"):
    divergences.kl(zeros, zeros, mask, "k3_unbiased")


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_jensen_shannon_is_its_definition(beta):
  with jax.enable_x64(True):
    found = divergences.generalized_jsd(
      jnp.asarray(LOGITS), jnp.asarray(REFERENCE), beta
    )
    p, q = (np.exp(x) / np.exp(x).sum() for x in (LOGITS, REFERENCE))
    if beta in (0.0, 1.0):
      a, b = (q, p) if beta == 0 else (p, q)
      expected = sum(x * np.log(x / y) for x, y in zip(a, b, strict=True))
    else:
      m = (1 - beta) * p + beta * q
      expected = beta * (q * np.log(q / m)).sum()
      expected += (1 - beta) * (p * np.log(p / m)).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_jensen_shannon_slope_is_a_finite_difference():
  with jax.enable_x64(True):
    logits, teacher = jnp.asarray(LOGITS), jnp.asarray(REFERENCE)
    for beta in (0.0, 0.3, 1.0):

      def divergence(x, beta=beta):
        return divergences.generalized_jsd(x, teacher, beta)

      slope = jax.grad(divergence)(logits)
      for v in range(len(LOGITS)):
        step = jnp.zeros_like(logits).at[v].set(1e-6)
        rise = divergence(logits + step) - divergence(logits - step)
        np.testing.assert_allclose(slope[v], rise / 2e-6, atol=1e-8)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_excluded_tokens_and_far_logits_are_finite(beta):
  student = jnp.array([[0.0, -jnp.inf, 1.0], [100.0, -100.0, 0.0]])
  teacher = jnp.array([[0.5, -jnp.inf, 0.0], [-100.0, 100.0, -jnp.inf]])
  value, slopes = jax.value_and_grad(
    lambda *xs: divergences.generalized_jsd(*xs, beta).sum(), (0, 1)
  )(student, teacher)
  assert np.isfinite(value)
  assert np.isfinite(slopes[0]).all()
  assert not slopes[1].any()
  same = divergences.generalized_jsd(student, student, beta)
  np.testing.assert_allclose(same, 0.0, atol=1e-6)


def test_beta_is_a_weight():
  with pytest.raises(ValueError, match=r"beta is 1\.5; it is a weight"):
    divergences.generalized_jsd(jnp.zeros(3), jnp.zeros(3), 1.5)


def _topk(logits, ids):
  return jax.nn.log_softmax(logits)[..., ids]


def test_topk_kl_by_hand():
  # p = (½, ¼, ¼), q = (¼, ½, ¼); kept {1}: ¼ log ½ + ¾ log (¾ / ½).
  p, q = jnp.log(jnp.array([[[0.25]]])), jnp.log(jnp.array([[[0.5]]]))
  np.testing.assert_allclose(
    divergences.topk_kl(p, q),
    [[0.25 * np.log(0.5) + 0.75 * np.log(1.5)]],
    rtol=1e-6,
  )


def test_topk_kl_of_everything_is_the_full_kl():
  with jax.enable_x64(True):
    everything = jnp.array([3, 1, 0, 4, 2])

    def topk(logits):
      return divergences.topk_kl(
        _topk(logits, everything)[None, None],
        _topk(jnp.asarray(REFERENCE), everything)[None, None],
      ).sum()

    found = jax.value_and_grad(topk)(jnp.asarray(LOGITS))
    exact = jax.value_and_grad(_kl)(jnp.asarray(LOGITS), REFERENCE)
    np.testing.assert_allclose(found[0], exact[0], rtol=1e-12)
    np.testing.assert_allclose(found[1], exact[1], atol=1e-12)


def test_topk_kl_bounds_the_full_kl_from_below():
  with jax.enable_x64(True):
    logits, reference = jnp.asarray(LOGITS), jnp.asarray(REFERENCE)
    order = jnp.argsort(-reference)
    values = [
      divergences.topk_kl(
        _topk(logits, order[:k])[None, None],
        _topk(reference, order[:k])[None, None],
      ).item()
      for k in (1, 3, 5)
    ]
    # Splitting the rest can only add; at the same policy all is 0.
    assert (np.diff(values) >= -1e-15).all()
    assert values[0] > 0
    kept = _topk(logits, order[:2])[None, None]
    np.testing.assert_allclose(divergences.topk_kl(kept, kept), 0, atol=1e-15)


@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_topk_kl_is_finite_with_and_without_a_rest(gap):
  kept = jnp.array([0, 1])
  for size in (2, 3):
    student = jnp.zeros(size).at[0].set(gap)
    teacher = jnp.zeros(size).at[1].set(gap)
    value, slope = jax.value_and_grad(
      lambda x, t=teacher: divergences.topk_kl(
        _topk(x, kept)[None, None], _topk(t, kept)[None, None]
      ).sum()
    )(student)
    assert np.isfinite(value)
    assert value >= -1e-5
    assert np.isfinite(slope).all()

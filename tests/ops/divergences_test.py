"""KL estimators: what each is in expectation, by enumeration in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import divergences
from tests.ops.slopes import values_and_slopes

LOGITS = np.array([0.3, -1.2, 2.0, 0.1, -0.4])
REFERENCE = np.array([-0.5, 0.7, 1.1, -1.0, 0.2])
KINDS = ("k1", "k2", "k3")


def _kl(logits, other):  # KL(softmax(logits) ‖ softmax(other)), in full
  p, q = jax.nn.log_softmax(logits), jax.nn.log_softmax(other)
  return (jnp.exp(p) * (p - q)).sum()


def test_k3_keeps_its_digits_near_zero():
  """k3(u) = u²/2 − u³/6 + …: 5e-9 at 1e-4, where exp(−u) − 1 has lost all."""
  u = np.array([1e-4, -1e-4, 1e-3, -1e-3], np.float32)
  wide = u.astype(np.float64)
  # One rounding of u is 6e-8 |u|, 1.2e-3 of the value u²/2 at 1e-4.
  k3 = jax.jit(divergences.kl_k3)
  np.testing.assert_allclose(k3(u), np.expm1(-wide) + wide, rtol=2e-3)
  np.testing.assert_array_equal(k3(0 * u), 0)
  # The written form, by contrast, is off by more than the value itself.
  naive = np.exp(-u) - np.float32(1) + u
  assert np.abs(naive[:2] - 5e-9).max() > 5e-9


def test_k3_is_never_negative_and_never_infinite():
  u = np.linspace(-100.0, 100.0, 4001, dtype=np.float32)
  values, (slopes,) = values_and_slopes(divergences.kl_k3, u)
  assert (values >= 0).all()
  assert np.isfinite(values).all()
  assert np.isfinite(slopes).all()
  small = np.linspace(-1e-3, 1e-3, 4001, dtype=np.float32)
  assert (values_and_slopes(divergences.kl_k3, small)[0] >= 0).all()


@functools.partial(jax.jit, static_argnums=0)
def _compiled_estimate(kind, mask, *logps):
  def total(*logps):
    return divergences.kl(*logps[:2], mask, kind, logps[2]).sum()

  return jax.value_and_grad(total, (0, 1, 2))(*logps)


ZEROS, EVERY = np.zeros((1, 3), np.float32), np.ones((1, 3), bool)


def estimate(kind, logp, ref_logp=ZEROS, old_logp=ZEROS, mask=EVERY):
  """Sum of the estimates of [1, 3] tokens; slopes in all three log-probs."""
  logps = map(np.float32, (logp, ref_logp, old_logp))
  return jax.device_get(_compiled_estimate(kind, mask, *logps))


@pytest.mark.parametrize("kind", KINDS)
def test_masked_slots_and_the_reference_get_no_gradient(kind):
  value, (slope, ref_slope, _) = estimate(
    kind,
    logp=[[-1.0, np.nan, np.nan]],
    ref_logp=[[-1.5, np.inf, np.inf]],
    mask=np.array([[True, False, False]]),
  )
  u = 0.5  # −1 − (−1.5)
  expected = {
    "k1": (u, 1.0),
    "k2": (u * u / 2, u),
    "k3": (np.exp(-u) - 1 + u, 1 - np.exp(-u)),
  }[kind]
  np.testing.assert_allclose(value, expected[0], rtol=1e-6)
  np.testing.assert_allclose(slope, [[expected[1], 0.0, 0.0]], rtol=1e-6)
  assert not ref_slope.any()


def test_straight_through_kinds_have_one_value_and_the_other_slope():
  u = np.array([[0.5, -0.25, 3.0]])
  for kind in ("k1", "k3"):
    value, slopes = estimate(f"{kind}_plus", u)
    np.testing.assert_allclose(value, estimate(kind, u)[0], rtol=1e-6)
    np.testing.assert_allclose(slopes[0], u, rtol=1e-6)  # Of u²/2.


def test_absolute_difference_does_not_push_where_both_agree():
  _, slopes = estimate("abs", [[2.0, 0.0, -2.0]])
  np.testing.assert_array_equal(slopes[0], [[1.0, 0.0, -1.0]])


@pytest.mark.parametrize("kind", divergences.KL_KINDS)
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_a_gap_of_100_nats_is_finite_in_float32(kind, gap):
  value, slopes = estimate(kind, ZEROS + gap)
  assert value.dtype == np.float32
  assert np.isfinite(value)
  assert np.isfinite(slopes[0]).all()


@pytest.mark.parametrize("kind", divergences.KL_KINDS)
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e9])
def test_masked_garbage_reaches_nothing(kind, garbage):
  mask = np.array([[True, True, False]])
  logps = [
    np.array([[-1.0, -2.0 * y, x]])
    for x, y in ((-1.0, 1.0), (-2.0, 0.7), (-3.0, 1.2))
  ]
  value, slopes = estimate(kind, *logps, mask=mask)
  dirty, dirty_slopes = estimate(
    kind, *(np.where(mask, x, garbage) for x in logps), mask=mask
  )
  assert dirty == value
  np.testing.assert_array_equal(dirty_slopes[0], slopes[0])
  assert not np.any(dirty_slopes[1])
  assert not np.any(dirty_slopes[2])


def test_bad_kinds_raise():
  with pytest.raises(ValueError, match="kind is 'k4'; choose one of k1"):
    divergences.kl(ZEROS, ZEROS, EVERY, "k4")
  kl = jax.jit(divergences.kl, static_argnums=3)
  with pytest.raises(ValueError, match="pass old_logp"):
    kl(ZEROS, ZEROS, EVERY, "k3_unbiased")


@functools.cache
def _jsd(beta):
  return functools.partial(divergences.generalized_jsd, beta=beta)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_jensen_shannon_is_its_definition(beta):
  with jax.enable_x64(True):
    found, _ = values_and_slopes(_jsd(beta), LOGITS, REFERENCE)
    p, q = (np.exp(x) / np.exp(x).sum() for x in (LOGITS, REFERENCE))
    if beta in (0.0, 1.0):
      a, b = (q, p) if beta == 0 else (p, q)
      expected = sum(x * np.log(x / y) for x, y in zip(a, b, strict=True))
    else:
      m = (1 - beta) * p + beta * q
      expected = beta * (q * np.log(q / m)).sum()
      expected += (1 - beta) * (p * np.log(p / m)).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_excluded_tokens_and_far_logits_are_finite(beta):
  student = np.float32([[0.0, -np.inf, 1.0], [100.0, -100.0, 0.0]])
  teacher = np.float32([[0.5, -np.inf, 0.0], [-100.0, 100.0, -np.inf]])
  values, slopes = values_and_slopes(_jsd(beta), student, teacher)
  assert np.isfinite(values).all()
  assert np.isfinite(slopes[0]).all()
  assert not slopes[1].any()
  same, _ = values_and_slopes(_jsd(beta), student, student)
  np.testing.assert_allclose(same, 0.0, atol=1e-6)


def test_beta_is_a_weight():
  with pytest.raises(ValueError, match=r"beta is 1\.5; it is a weight"):
    divergences.generalized_jsd(np.zeros(3), np.zeros(3), 1.5)


@functools.cache
def _topk_kl(*ids):
  """The KL of logits [V] on these ids, with all others as one rest."""

  def function(logits, reference):
    return divergences.topk_kl(
      *(
        jax.nn.log_softmax(x)[np.array(ids)][None, None]
        for x in (logits, reference)
      )
    )[0, 0]

  return function


def test_topk_kl_by_hand():
  # p = (½, ¼, ¼), q = (¼, ½, ¼); kept {1}: ¼ log ½ + ¾ log (¾ / ½).
  p, q = np.log(np.float32([[[[0.25]]], [[[0.5]]]]))
  found, _ = values_and_slopes(divergences.topk_kl, p, q)
  np.testing.assert_allclose(
    found, [[0.25 * np.log(0.5) + 0.75 * np.log(1.5)]], rtol=1e-6
  )


def test_topk_kl_of_everything_is_the_full_kl():
  with jax.enable_x64(True):
    everything = _topk_kl(3, 1, 0, 4, 2)
    value, slopes = values_and_slopes(everything, LOGITS, REFERENCE)
    exact, exact_slopes = values_and_slopes(_kl, LOGITS, REFERENCE)
    np.testing.assert_allclose(value, exact, rtol=1e-12)
    np.testing.assert_allclose(slopes[0], exact_slopes[0], atol=1e-12)


@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_topk_kl_is_finite_with_and_without_a_rest(gap):
  for size in (2, 3):
    student, teacher = np.eye(size, dtype=np.float32)[:2] * np.float32(gap)
    value, slopes = values_and_slopes(_topk_kl(0, 1), student, teacher)
    assert np.isfinite(value)
    assert value >= -1e-5
    assert np.isfinite(slopes[0]).all()

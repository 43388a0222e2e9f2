"""KL divergences: estimated from sampled tokens, or over a vocabulary.

Value and gradient of an estimator differ in what they estimate. On samples of
π_θ the expected value of k1 and k3 is KL(π_θ ‖ π_ref). The expected gradient is
that of KL(π_θ ‖ π_ref) for k2, of KL(π_ref ‖ π_θ) for k3, and 0 for k1.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import masked, ratios


def kl_k1(log_ratio: jax.Array) -> jax.Array:
  """The estimator k1 = u: unbiased value; as a loss its mean gradient is 0."""
  return log_ratio


def kl_k2(log_ratio: jax.Array) -> jax.Array:
  """The estimator k2 = u²/2: biased value; on-policy ∇KL(π_θ‖π_ref)."""
  return 0.5 * jnp.square(log_ratio)


def kl_k3(log_ratio: jax.Array, clamp: float | None = 20.0) -> jax.Array:
  """The estimator k3 = exp(−u) − 1 + u ≥ 0: unbiased value.

  Its gradient is ∇KL(π_ref‖π_θ).

  u is bounded below at −clamp, where exp would overflow, with a slope of 0;
  above, k3 is linear and does not need a bound. expm1 keeps digits for
  |u| < 1e-4, where exp(−u) − 1 + u loses all of them.
  """
  if clamp is not None:
    log_ratio = jnp.maximum(log_ratio, -clamp)
  return jnp.expm1(-log_ratio) + log_ratio


KL_KINDS = ("k1", "k2", "k3", "abs", "k1_plus", "k3_plus", "k3_unbiased")


def kl(
  logp: jax.Array,  # [B, T]
  ref_logp: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  kind: str,
  old_logp: jax.Array | None = None,  # [B, T]
) -> jax.Array:  # [B, T]
  """Per-token KL estimate, u = log π_θ − log π_ref.

      k1           u
      k2           u²/2
      k3           exp(−u) − 1 + u
      abs          |u|
      k1_plus      value of k1, gradient of k2
      k3_plus      value of k3, gradient of k2
      k3_unbiased  r k3 with r = π_θ/π_old differentiated: off-policy too,
                   value and gradient are those of KL(π_θ ‖ π_ref)

  Args:
    logp: Log-probs under the policy being trained, nats.
    ref_logp: Log-probs under the frozen reference, nats.
    mask: True on trained tokens.
    kind: One of `KL_KINDS`.
    old_logp: Log-probs under the policy that sampled, nats; for
      "k3_unbiased".

  Returns:
    Nats per token, 0 where masked.

  Raises:
    ValueError: If `kind` is unknown or `old_logp` is missing.

  Source: Schulman, "Approximating KL divergence", 2020; k3 in the loss:
  Shao et al., "DeepSeekMath", arXiv:2402.03300, Eq. 4; unbiased: "DeepSeek-
  V3.2", arXiv:2512.02556, Section 3.1; value and gradient from two estimators:
  verl.
  """
  chex.assert_equal_shape([logp, ref_logp, mask])
  if kind not in KL_KINDS:
    raise ValueError(
      f"divergences.kl: kind is {kind!r}; choose one of {', '.join(KL_KINDS)}."
    )
  u = masked.select(logp, mask) - masked.select(
    jax.lax.stop_gradient(ref_logp), mask
  )
  name = kind.partition("_")[0]
  k = {
    "k1": lambda: kl_k1(u),
    "k2": lambda: kl_k2(u),
    "k3": lambda: kl_k3(u),
    # Slope 0 at u = 0 (JAX gives |u| a slope of 1 there): no push on-policy.
    "abs": lambda: u * jax.lax.stop_gradient(jnp.sign(u)),
  }[name]()
  if kind.endswith("_plus"):
    k2 = kl_k2(u)
    k = jax.lax.stop_gradient(k - k2) + k2
  if kind.endswith("_unbiased"):
    if old_logp is None:
      raise ValueError(
        "divergences.kl: kind 'k3_unbiased' weighs tokens by π_θ/π_old; pass"
        " old_logp, the log-probs at the start of the update."
      )
    k *= ratios.token_ratio(logp, old_logp, mask)
  return k


def _log_probs(logits: jax.Array) -> jax.Array:  # [..., V]
  """Log-softmax, at least float32, finite where a logit is −inf."""
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  return _floored(jax.nn.log_softmax(logits))


def _floored(logp: jax.Array) -> jax.Array:
  # exp(−1e4) is 0, but 0 · (−1e4) is not NaN, and a token that only one of
  # two policies excludes costs 1e4 nats instead of infinity.
  return jnp.maximum(logp, -1e4)


def _full_kl(logp: jax.Array, other: jax.Array) -> jax.Array:  # [..., V]
  return (jnp.exp(logp) * (logp - other)).sum(axis=-1)


def generalized_jsd(
  logits: jax.Array,  # [..., V]
  teacher_logits: jax.Array,  # [..., V]
  beta: float,
) -> jax.Array:  # [...]
  """Generalised Jensen-Shannon divergence over the whole vocabulary.

      β KL(q ‖ m) + (1 − β) KL(p ‖ m),   m = (1 − β) p + β q

  with p the student and q the teacher. Its limits are used at the ends: the
  reverse KL(p ‖ q) at β = 1 and the forward KL(q ‖ p) at β = 0.

  Args:
    logits: Logits of the student; −inf where a token is excluded.
    teacher_logits: Logits of the teacher, a constant, on the same vocabulary.
    beta: In [0, 1].

  Returns:
    Nats, ≥ 0; 0 where both agree.

  Raises:
    ValueError: If `beta` is outside [0, 1].

  Source: Agarwal et al., "On-Policy Distillation of Language Models (GKD)",
  arXiv:2306.13649, Section 2; β as in TRL.
  """
  chex.assert_equal_shape([logits, teacher_logits])
  if not 0 <= beta <= 1:
    raise ValueError(
      f"divergences.generalized_jsd: beta is {beta}; it is a weight in"
      " [0, 1], 1 for KL(student ‖ teacher) and 0 for KL(teacher ‖ student)."
    )
  student = _log_probs(logits)
  teacher = jax.lax.stop_gradient(_log_probs(teacher_logits))
  if beta == 0:
    return _full_kl(teacher, student)
  if beta == 1:
    return _full_kl(student, teacher)
  mixture = jnp.logaddexp(
    student + jnp.log1p(-beta), teacher + jnp.log(beta)
  )  # [..., V]
  return beta * _full_kl(teacher, mixture) + (1 - beta) * _full_kl(
    student, mixture
  )


def topk_kl(
  topk_logp: jax.Array,  # [B, T, K]
  ref_topk_logp: jax.Array,  # [B, T, K]
) -> jax.Array:  # [B, T]
  """KL(π_θ ‖ π_ref) over the reference's K likeliest tokens and one rest.

      Σ_k p_k (log p_k − log q_k) + p̄ (log p̄ − log q̄),   p̄ = 1 − Σ_k p_k

  The rest makes this a divergence of two distributions: without it the policy
  could lower the sum by moving mass out of the K tokens. It is a lower bound of
  the full KL, and equal to it at K = V.

  Args:
    topk_logp: Log-probs of the K tokens under the policy, nats.
    ref_topk_logp: Their log-probs under the reference, a constant.

  Returns:
    Nats per token. Masked inputs may give NaN: select the inputs before.
  """
  chex.assert_rank([topk_logp, ref_topk_logp], 3)
  chex.assert_equal_shape([topk_logp, ref_topk_logp])
  dtype = jnp.promote_types(topk_logp.dtype, jnp.float32)
  logp = _floored(topk_logp.astype(dtype))
  ref = _floored(jax.lax.stop_gradient(ref_topk_logp).astype(dtype))

  def rest(logp):
    # A rest below one rounding of 1 is indistinguishable from 0, and at K = V
    # both rests are 0: with one floor for both logarithms they add nothing.
    mass = jnp.maximum(-jnp.expm1(jax.nn.logsumexp(logp, axis=-1)), 0.0)
    return mass, jnp.log(jnp.maximum(mass, jnp.finfo(dtype).eps))

  mass, log_mass = rest(logp)
  _, ref_log_mass = rest(ref)
  return _full_kl(logp, ref) + mass * (log_mass - ref_log_mass)

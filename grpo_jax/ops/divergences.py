"""Estimators of KL(π_θ ‖ π_ref) from samples of π_θ."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import masked


def kl_k1(log_ratio: jax.Array) -> jax.Array:
  """k1 = u: unbiased in value; as a loss its expected gradient is 0."""
  return log_ratio


def kl_k2(log_ratio: jax.Array) -> jax.Array:
  """k2 = u²/2: biased in value; on-policy its gradient is ∇KL(π_θ‖π_ref)."""
  return 0.5 * jnp.square(log_ratio)


def kl_k3(log_ratio: jax.Array) -> jax.Array:
  """k3 = exp(−u) − 1 + u ≥ 0: unbiased in value; gradient ∇KL(π_ref‖π_θ).

  expm1 keeps digits for |u| < 1e-4, where exp(−u) − 1 + u has none left.
  """
  return jnp.expm1(jnp.minimum(-log_ratio, 20.0)) + log_ratio


KL_ESTIMATORS = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}


def kl(
  logp: jax.Array,  # [B, T]
  ref_logp: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  kind: str,
) -> jax.Array:  # [B, T]
  """Per-token KL estimate, u = log π_θ − log π_ref.

  Args:
    logp: Log-probs under the policy being trained, nats.
    ref_logp: Log-probs under the frozen reference, nats.
    mask: True on trained tokens.
    kind: "k1", "k2" or "k3".

  Returns:
    Nats per token, 0 where masked.

  Source: Schulman, "Approximating KL divergence", 2020; k3 in the loss:
  Shao et al., "DeepSeekMath", arXiv:2402.03300, Eq. 4.
  """
  chex.assert_equal_shape([logp, ref_logp, mask])
  u = masked.select(logp, mask) - masked.select(
    jax.lax.stop_gradient(ref_logp), mask
  )
  return KL_ESTIMATORS[kind](u)

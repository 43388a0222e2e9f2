"""On-policy distillation: a teacher's log-probs of the student's tokens."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import masked


def token_gap(
  teacher_logp: jax.Array,  # [B, T]
  logp: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  clamp: float,
) -> jax.Array:  # [B, T]
  """The gap log π_teacher(y_t) − log π(y_t), within ±clamp.

  At the sampled token this is −k1 of the reverse KL. As an advantage, its
  expected gradient is that of −KL(π ‖ π_teacher) at fixed prefixes.

  Args:
    teacher_logp: Log-probs under the teacher, nats; −inf where it excludes the
      token.
    logp: Log-probs under the student, nats.
    mask: True on trained tokens.
    clamp: Bound of a token, nats.

  Returns:
    Nats, 0 where masked.

  Source: Lu et al., "On-Policy Distillation", Thinking Machines, 2025.
  """
  chex.assert_equal_shape([teacher_logp, logp, mask])
  gap = masked.select(teacher_logp, mask) - masked.select(logp, mask)
  return jnp.clip(gap, -clamp, clamp)


def early_weights(
  gap: jax.Array,  # [B, T]
  gamma: float,
  eps: float = 1e-8,
) -> jax.Array:  # [B, T]
  """Weights that fall from 1 + γ at the first token of a row to about 1.

      w_t = 1 + γ (1 − Σ_{s<t} |g_s| / Σ_s |g_s|)

  So tokens before the disagreement count more than those that follow from it.

  Args:
    gap: From `token_gap`, 0 where masked.
    gamma: γ ≥ 0; 0 gives weights of 1.
    eps: Smallest denominator, nats.

  Source: importance-weighted on-policy distillation, `IWOPDTrainer` of TRL
  1.16.
  """
  size = jnp.abs(gap)
  before = jnp.cumsum(size, axis=-1) - size
  total = jnp.maximum(size.sum(axis=-1, keepdims=True), eps)
  return 1 + gamma * (1 - before / total)

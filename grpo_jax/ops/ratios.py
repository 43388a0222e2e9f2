"""Importance ratios π_θ / π_old of tokens and of whole completions.

Every exponential of a log-ratio is clamped in log space first: float32
overflows at exp(88.7), and inf · 0 in its gradient is NaN. The zero gradient
outside the clamp is intended.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import masked


def exp_clamped(log_ratio: jax.Array, clamp: float | None) -> jax.Array:
  """Computes exp(clip(x, -clamp, clamp)); `clamp` in nats, None: no clamp."""
  if clamp is not None:
    log_ratio = jnp.clip(log_ratio, -clamp, clamp)
  return jnp.exp(log_ratio)


def log_ratio(
  logp: jax.Array,  # [B, T]
  old_logp: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T]
  """Log-ratio log π_θ − log π_old per token, nats; exactly 0 where masked."""
  chex.assert_rank([logp, old_logp, mask], 2)
  chex.assert_equal_shape([logp, old_logp, mask])
  old_logp = jax.lax.stop_gradient(old_logp)  # π_old is a constant.
  return masked.select(logp, mask) - masked.select(old_logp, mask)


def token_ratio(
  logp: jax.Array,  # [B, T]
  old_logp: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  clamp: float | None = 20.0,
) -> jax.Array:  # [B, T]
  """Importance ratio of each token.

      r_it = π_θ(y_it | …) / π_old(y_it | …)

  Args:
    logp: Log-probabilities under the policy being trained, nats.
    old_logp: Log-probabilities at the start of the update, nats.
    mask: True on trained tokens.
    clamp: Largest |log r|, nats; None for no clamp.

  Returns:
    Positive ratios; 1.0 where masked.

  Source: Schulman et al., "Proximal Policy Optimization Algorithms",
  arXiv:1707.06347, Section 3.
  """
  return exp_clamped(log_ratio(logp, old_logp, mask), clamp)


def sequence_ratio(
  logp: jax.Array,  # [B, T]
  old_logp: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  clamp: float | None = 20.0,
) -> jax.Array:  # [B]
  """Length-normalised importance ratio of each completion.

      s_i(θ) = exp( (1 / |y_i|) Σ_t [ log π_θ(y_it) − log π_old(y_it) ] )

  Args:
    logp: Log-probabilities under the policy being trained, nats.
    old_logp: Log-probabilities at the start of the update, nats.
    mask: True on trained tokens, up to and including the end token.
    clamp: Largest |log s|, nats; None for no clamp.

  Returns:
    One positive ratio per completion; 1.0 where it has no tokens.

  Source: Zheng et al., "Group Sequence Policy Optimization",
  arXiv:2507.18071, Eq. 7.
  """
  mean = masked.mean(log_ratio(logp, old_logp, mask), mask, axis=-1)  # [B]
  return exp_clamped(mean, clamp)


def sequence_token_ratio(
  logp: jax.Array,  # [B, T]
  old_logp: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  clamp: float | None = 20.0,
) -> jax.Array:  # [B, T]
  """Ratio of the whole completion, with the gradient of each token alone.

      s_it = sg[s_i] · π_θ(y_it) / sg[π_θ(y_it)]

  The value is `sequence_ratio` at every token; the slope with respect to
  log π_θ(y_it) is s_i, so advantages may differ between tokens.

  Args:
    logp: Log-probabilities under the policy being trained, nats.
    old_logp: Log-probabilities at the start of the update, nats.
    mask: True on trained tokens, up to and including the end token.
    clamp: Largest |log s|, nats; None for no clamp.

  Returns:
    Positive ratios, equal within a row; 1.0 in rows without tokens.

  Source: Zheng et al., "Group Sequence Policy Optimization",
  arXiv:2507.18071, Eq. 14.
  """
  mean = masked.mean(log_ratio(logp, old_logp, mask), mask, axis=-1)  # [B]
  logp = masked.select(logp, mask)
  own = logp - jax.lax.stop_gradient(logp)  # 0, with a slope of 1.
  return exp_clamped(jax.lax.stop_gradient(mean)[:, None] + own, clamp)


def trajectory_ratio(
  logp: jax.Array,  # [B, T]
  old_logp: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  clamp: float | None = 20.0,
) -> jax.Array:  # [B]
  """Importance ratio of each completion: the product over its tokens.

      w_i(θ) = exp( Σ_t [ log π_θ(y_it) − log π_old(y_it) ] )

  Args:
    logp: Log-probabilities under the policy being trained, nats.
    old_logp: Log-probabilities at the start of the update, nats.
    mask: True on trained tokens, up to and including the end token.
    clamp: Largest |log w|, nats; None for no clamp. Sums over thousands of
      tokens pass 88 nats, where float32 overflows, even near the old policy.

  Returns:
    One positive ratio per completion; 1.0 where it has no tokens.

  Source: Ahmadian et al., "Back to Basics: Revisiting REINFORCE Style
  Optimization", arXiv:2402.14740, Section 3.1 (a completion as one action).
  """
  return exp_clamped(log_ratio(logp, old_logp, mask).sum(axis=-1), clamp)

"""Surrogate objectives of a ratio and an advantage (to be maximised).

Advantages are constants everywhere: one per completion or one per token.
Clips are written with `where` and not `jnp.clip`, whose slope at a bound is
split: at r = 1 with a width of 0 the inside keeps its slope of 1.
"""

from __future__ import annotations

import math

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import masked


def _advantages_like(advantages: jax.Array, x: jax.Array) -> jax.Array:
  """Constant advantages [B] or [B, T], shaped to broadcast with `x`."""
  if advantages.ndim > x.ndim:
    raise ValueError(
      f"surrogates: advantages of rank {advantages.ndim} cannot weigh a"
      f" ratio of rank {x.ndim}; a sequence-level ratio needs one advantage"
      " per completion [B]."
    )
  if advantages.ndim < x.ndim:
    advantages = advantages[..., None]
  return jax.lax.stop_gradient(advantages)


def _at_most(x: jax.Array, bound: float | jax.Array) -> jax.Array:
  return jnp.where(x > bound, bound, x)


def _at_least(x: jax.Array, bound: float | jax.Array) -> jax.Array:
  return jnp.where(x < bound, bound, x)


def clipped(
  ratio: jax.Array,  # [B] or [B, T]
  advantages: jax.Array,  # [B] or [B, T]
  clip_low: float,
  clip_high: float,
  dual_clip: float | None = None,
  ratio_cap: float | None = None,
) -> jax.Array:  # shape of ratio
  """The pessimistic clipped surrogate.

      min( r A, clip(r, 1 − ε_low, 1 + ε_high) A )

  With `ratio_cap` the first r is min(r, cap); with `dual_clip` c the result
  is at least c A where A < 0.

  Args:
    ratio: Importance ratios, positive.
    advantages: Constants; one per completion or per token.
    clip_low: Width of the range below 1, ≥ 0.
    clip_high: Width of the range above 1, ≥ 0.
    dual_clip: Largest loss in units of |A| where A < 0, > 1; None or 0: none.
    ratio_cap: Upper bound of the ratio, > 1 + clip_high; None or 0: none.

  Returns:
    The surrogate, not aggregated. Its gradient is A ∂r inside the range, and
    0 where A > 0 and r > 1 + ε_high, where A < 0 and r < 1 − ε_low, and where
    A < 0 and r > dual_clip or r > ratio_cap.

  Source: Schulman et al., arXiv:1707.06347, Eq. 7; separate widths: Yu et
  al., "DAPO", arXiv:2503.14476, Eq. 10; dual clip: Ye et al., "Mastering
  Complex Control in MOBA Games", arXiv:1912.09729; cap: "INTELLECT-2",
  arXiv:2505.07291 (two-sided clipping).
  """
  advantages = _advantages_like(advantages, ratio)
  inside = _at_most(_at_least(ratio, 1.0 - clip_low), 1.0 + clip_high)
  if ratio_cap:
    ratio = _at_most(ratio, ratio_cap)
  objective = jnp.minimum(ratio * advantages, inside * advantages)
  if dual_clip:
    bounded = _at_least(objective, dual_clip * advantages)
    objective = jnp.where(advantages < 0, bounded, objective)
  return objective


def upper_clipped(
  ratio: jax.Array,  # [B] or [B, T]
  advantages: jax.Array,  # [B] or [B, T]
  clip_high: float,
) -> jax.Array:  # shape of ratio
  """The surrogate clipped from above only.

      min( r A, min(r, 1 + ε_high) A )

  Args:
    ratio: Importance ratios, positive.
    advantages: Constants; one per completion or per token.
    clip_high: Width of the range above 1, ≥ 0.

  Returns:
    The surrogate, not aggregated. Its gradient is 0 only where A > 0 and
    r > 1 + ε_high.

  Source: Pang and Jin, "TIC-GRPO", arXiv:2508.02833 (with
  `ratios.trajectory_ratio`).
  """
  advantages = _advantages_like(advantages, ratio)
  capped = _at_most(ratio, 1.0 + clip_high)
  return jnp.minimum(ratio * advantages, capped * advantages)


def reinforce(
  logp: jax.Array,  # [B, T]
  advantages: jax.Array,  # [B] or [B, T]
) -> jax.Array:  # [B, T]
  """Score-function surrogate A log π; its gradient is A ∇ log π.

  Source: Williams, "Simple statistical gradient-following algorithms for
  connectionist reinforcement learning", Machine Learning 8, 1992.
  """
  return _advantages_like(advantages, logp) * logp


def clipped_weight(
  ratio: jax.Array,  # [B, T]
  logp: jax.Array,  # [B, T]
  advantages: jax.Array,  # [B] or [B, T]
  ratio_min: float,
  ratio_max: float,
) -> jax.Array:  # [B, T]
  """Score function weighted by a clipped ratio; every token keeps a gradient.

      sg[ clip(r, ratio_min, ratio_max) ] A log π_θ

  Args:
    ratio: Importance ratios, positive.
    logp: Log-probabilities under the policy being trained, nats.
    advantages: Constants; one per completion or per token.
    ratio_min: Lower bound of the ratio itself (not a width), ≥ 0.
    ratio_max: Upper bound of the ratio itself.

  Returns:
    The surrogate, not aggregated. Its value depends on log π and cannot be
    compared with that of `clipped`.

  Source: MiniMax, "MiniMax-M1", arXiv:2506.13585, Eq. 4 (CISPO).
  """
  weight = jax.lax.stop_gradient(jnp.clip(ratio, ratio_min, ratio_max))
  return weight * reinforce(logp, advantages)


def banded_weight(
  ratio: jax.Array,  # [B, T]
  logp: jax.Array,  # [B, T]
  advantages: jax.Array,  # [B] or [B, T]
  clip_low: float,
  clip_high: float,
) -> jax.Array:  # [B, T]
  """Score function weighted by the ratio where that is near 1, else 0.

      sg[ r · 1(1 − ε_low < r < 1 + ε_high) ] A log π_θ

  A token that has drifted too far is left out, in either direction and whatever
  the sign of A. With ε_low = 1 and ε_high = ∞ this is the importance-weighted
  policy gradient.

  Args:
    ratio: Importance ratios, positive.
    logp: Log-probabilities under the policy being trained, nats.
    advantages: Constants; one per completion or per token.
    clip_low: Width of the band below 1, in [0, 1].
    clip_high: Width of the band above 1, ≥ 0.

  Returns:
    The surrogate, not aggregated. Its value depends on log π and cannot be
    compared with that of `clipped`.

  Source: "SAO", arXiv:2607.07508 (double-sided importance sampling).
  """
  near = (ratio > 1.0 - clip_low) & (ratio < 1.0 + clip_high)
  weight = jax.lax.stop_gradient(jnp.where(near, ratio, 0.0))
  return weight * reinforce(logp, advantages)


def soft_gated(
  ratio: jax.Array,  # [B] or [B, T]
  advantages: jax.Array,  # [B] or [B, T]
  tau_positive: float,
  tau_negative: float,
) -> jax.Array:  # shape of ratio
  """Surrogate with a sigmoid gate in place of a clip.

      A (4/τ) σ( τ (r − 1) ),   τ = τ_positive where A > 0, else τ_negative

  Args:
    ratio: Importance ratios, positive; from clamped log-ratios.
    advantages: Constants; one per completion or per token.
    tau_positive: Sharpness for positive advantages, > 0.
    tau_negative: Sharpness for the others, > 0.

  Returns:
    The surrogate, not aggregated; |·| ≤ 4|A|/τ. At r = 1 its gradient is
    A ∂r, the policy gradient.

  Source: Gao et al., "Soft Adaptive Policy Optimization", arXiv:2511.20347.
  """
  advantages = _advantages_like(advantages, ratio)
  tau = jnp.where(advantages > 0, tau_positive, tau_negative)
  tau = tau.astype(ratio.dtype)
  return advantages * (4.0 / tau) * jax.nn.sigmoid(tau * (ratio - 1.0))


def geometric_mean(
  log_ratio: jax.Array,  # [B, T]
  advantages: jax.Array,  # [B]
  mask: jax.Array,  # [B, T] bool
  clip_low: float,
  clip_high: float,
  clamp: float | None = 20.0,
) -> jax.Array:  # [B]
  """Geometric mean of token ratios that are clipped in log space.

      A_i exp( (1/|y_i|) Σ_t y_it ),   y = min(Δ, ε_high)  where A > 0,
                                       y = max(Δ, −ε_low)  where A < 0

  Args:
    log_ratio: Δ = log π_θ − log π_old, nats.
    advantages: Constants, one per completion.
    mask: True on trained tokens.
    clip_low: Width of the range of Δ below 0, nats, ≥ 0.
    clip_high: Width of the range of Δ above 0, nats, ≥ 0.
    clamp: Largest |Δ|, nats: one side is not clipped; None for no clamp.

  Returns:
    One surrogate per completion; A_i without tokens.

  Source: Zhao et al., "Geometric-Mean Policy Optimization",
  arXiv:2507.20673.
  """
  chex.assert_rank([log_ratio, advantages, mask], [2, 1, 2])
  advantages = jax.lax.stop_gradient(advantages)
  log_ratio = masked.select(log_ratio, mask)
  if clamp is not None:
    log_ratio = jnp.clip(log_ratio, -clamp, clamp)
  pessimistic = jnp.where(
    advantages[:, None] > 0,
    _at_most(log_ratio, clip_high),
    _at_least(log_ratio, -clip_low),
  )
  return advantages * jnp.exp(masked.mean(pessimistic, mask, axis=-1))


def vespo_weight(
  log_ratio: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  advantages: jax.Array,  # [B]
  k_positive: float,
  lambda_positive: float,
  k_negative: float,
  lambda_negative: float,
  clamp: float = 20.0,
) -> jax.Array:  # [B]
  """Smooth weight of a completion's score function, 1 at ratio 1.

      φ(w) = exp( λ + k log w − λ w ),   w = exp( Σ_t Δ_t )

  Args:
    log_ratio: Δ = log π_θ − log π_old, nats.
    mask: True on trained tokens.
    advantages: One per completion; its sign chooses (k, λ).
    k_positive, lambda_positive: For A ≥ 0, > 0.
    k_negative, lambda_negative: For A < 0, > 0.
    clamp: Largest |Δ| of a token and largest log w, nats.

  Returns:
    Constants in (0, ∞); 1 without tokens. The objective is `reinforce` times
    φ.

  Source: "VESPO: Variational Sequence-Level Soft Policy Optimization",
  arXiv:2602.10693; lower bound log 1e-8: TRL.
  """
  chex.assert_rank([log_ratio, mask, advantages], [2, 2, 1])
  floor = math.log(1e-8)
  log_w = jnp.clip(masked.select(log_ratio, mask), -clamp, clamp)
  log_w = jnp.clip(log_w.sum(axis=-1), floor, clamp)  # [B]
  k = jnp.where(advantages < 0, k_negative, k_positive)
  scale = jnp.where(advantages < 0, lambda_negative, lambda_positive)
  phi = jnp.exp(scale + k * log_w - scale * jnp.exp(log_w))
  return jax.lax.stop_gradient(phi.astype(log_ratio.dtype))


def covariance(
  advantages: jax.Array,  # [B] or [B, T]
  logp: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T]
  """Covariance of advantage and log-prob, as the summand of each token.

      cov_it = (A_it − mean A) (log π_it − mean log π),   means over tokens

  Updates on tokens with a large share lower the entropy most.

  Returns:
    Constants; 0 where masked.

  Source: Cui et al., "The Entropy Mechanism of Reinforcement Learning for
  Reasoning Language Models", arXiv:2505.22617.
  """
  chex.assert_equal_shape([logp, mask])
  advantages = jnp.broadcast_to(_advantages_like(advantages, logp), logp.shape)
  logp = jax.lax.stop_gradient(logp)
  product = (advantages - masked.mean(advantages, mask)) * (
    logp - masked.mean(logp, mask)
  )
  return masked.select(product, mask)


def clip_cov_mask(
  cov: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  not_clipped: jax.Array,  # [B, T] bool
  fraction: float,
  low: float,
  high: float,
  key: jax.Array,  # [] PRNG key
) -> jax.Array:  # [B, T] bool
  """Chooses tokens at random among those with a high covariance (Clip-Cov).

  Args:
    cov: Covariance of each token, as `covariance` returns it.
    mask: True on trained tokens; N of them.
    not_clipped: True where the ordinary clip does not remove the gradient.
    fraction: max(1, ⌊fraction · N⌋) tokens are chosen, or all candidates if
      there are fewer.
    low, high: Candidates have a covariance strictly between them.
    key: Random key of the choice.

  Returns:
    True on tokens that lose their gradient.

  Source: Cui et al., arXiv:2505.22617, Section 4.
  """
  candidates = mask & not_clipped & (cov > low) & (cov < high)
  scores = jax.random.uniform(key, cov.shape)
  return _top(scores, candidates, _share(mask, fraction))


def kl_cov_mask(
  cov: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  fraction: float,
) -> jax.Array:  # [B, T] bool
  """Chooses the tokens with the highest covariance (KL-Cov).

  Args:
    cov: Covariance of each token, as `covariance` returns it.
    mask: True on trained tokens; N of them.
    fraction: max(1, ⌊fraction · N⌋) tokens are chosen; of equal ones the
      first.

  Returns:
    True on tokens to penalise; nowhere if no token is trained.

  Source: Cui et al., arXiv:2505.22617, Section 4.
  """
  return _top(cov, mask, _share(mask, fraction))


def _share(mask: jax.Array, fraction: float) -> jax.Array:  # []
  return jnp.maximum(jnp.floor(fraction * mask.sum()).astype(jnp.int32), 1)


def _top(
  scores: jax.Array,  # [B, T]
  candidates: jax.Array,  # [B, T] bool
  count: jax.Array,  # [] int32
) -> jax.Array:  # [B, T] bool
  """The `count` candidates with the highest scores; all if there are fewer."""
  # By rank and not by a threshold: ties must not raise the number.
  order = jnp.argsort(
    jnp.where(candidates, scores, -jnp.inf), axis=None, descending=True
  )
  rank = jnp.zeros_like(order).at[order].set(jnp.arange(order.size))
  return candidates & (rank.reshape(scores.shape) < count)

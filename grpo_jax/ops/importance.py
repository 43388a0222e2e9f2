"""Importance weights and masks for completions of another policy.

An update involves three policies: the sampler (`behavior_logp`), the policy at
the start of the update (`old_logp`) and the current policy (`logp`). The first
two differ even at equal parameters, because they run in two programs. All
results are constants of the loss: weights and masks without gradients.
"""

from __future__ import annotations

import math

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import divergences, masked, ratios


def _without_nan(log_ratio: jax.Array, mask: jax.Array) -> jax.Array:
  """Constant log-ratios; 0 where masked or NaN (not known from the sampler)."""
  log_ratio = jax.lax.stop_gradient(log_ratio)
  return masked.select(log_ratio, mask & ~jnp.isnan(log_ratio))


def importance_weights(
  log_ratio: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  level: str,
  mode: str,
  maximum: float,
  minimum: float = 0.0,
) -> jax.Array:  # [B, T]
  """Bounded importance weights π_old / π_behavior of tokens or completions.

      w_t = exp(x_t)  or  w = exp(Σ_t x_t),   x = log π_old − log π_behavior

  "truncate" (TIS) bounds w to [minimum, maximum]; "mask" sets it to 0
  outside: IcePop for tokens, MIS for sequences. log w is clamped at ±20 nats.

  Args:
    log_ratio: x, nats. NaN if the sampler did not report a log-prob: factor 1.
    mask: True on trained tokens.
    level: "token" or "sequence".
    mode: "truncate" or "mask".
    maximum: Largest weight kept, > 0.
    minimum: Smallest weight kept, ≥ 0.

  Returns:
    Factors of the policy loss, equal within a row at the level "sequence";
    0 where masked.

  Raises:
    ValueError: If `level` or `mode` is unknown.

  Source: Yao et al., "Your Efficient RL Framework Secretly Brings You
  Off-Policy RL Training", 2025 (TIS); Ling Team, "Every Step Evolves",
  arXiv:2510.18855 (IcePop); Liu et al., "When Speed Kills Stability", 2025
  (sequence masks).
  """
  chex.assert_rank([log_ratio, mask], 2)
  chex.assert_equal_shape([log_ratio, mask])
  _check_level("importance_weights", level)
  x = _without_nan(log_ratio, mask)
  if level == "sequence":
    x = jnp.broadcast_to(x.sum(axis=-1, keepdims=True), x.shape)
  weights = ratios.exp_clamped(x, 20.0)
  if mode == "truncate":
    weights = jnp.clip(weights, minimum, maximum)
  elif mode == "mask":
    keep = (weights >= minimum) & (weights <= maximum)
    weights = masked.select(weights, keep)
  else:
    raise ValueError(
      f"corrections.importance_weights: mode is {mode!r}; choose 'truncate'"
      " or 'mask'."
    )
  return masked.select(weights, mask)


def _check_level(name: str, level: str) -> None:
  if level not in ("token", "sequence"):
    raise ValueError(
      f"corrections.{name}: level is {level!r}; choose 'token' or 'sequence'."
    )


def batch_normalized(
  weights: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  level: str,
) -> jax.Array:  # [B, T]
  """Weights divided by their mean over tokens, or over non-empty completions.

  Args:
    weights: Importance weights, as `importance_weights` returns them.
    mask: True on trained tokens.
    level: Unit of the mean: "token" or "sequence".

  Returns:
    Weights of mean 1; unchanged where the mean is below 1e-8.

  Raises:
    ValueError: If `level` is unknown.

  Source: verl, `rollout_is_batch_normalize`.
  """
  _check_level("batch_normalized", level)
  if level == "token":
    mean = masked.mean(weights, mask)
  else:
    mean = masked.mean(masked.mean(weights, mask, axis=-1), mask.any(axis=-1))
  return weights / jnp.where(mean > 1e-8, mean, 1.0)


def rejection_mask(
  log_ratio: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  statistic: str,
  kind: str,
  low: float,
  high: float,
) -> jax.Array:  # [B, T] bool
  """Leaves out tokens or completions whose sampler and old policy disagree.

  The estimate k of KL(π_behavior ‖ π_old) is computed for each token and
  reduced by `statistic`. k2 and k3 must be at most `high`; k1, which is a
  negative log-ratio, must lie in [log low, log high].

  Args:
    log_ratio: log π_old − log π_behavior, nats; NaN counts as 0.
    mask: True on trained tokens.
    statistic: "token", or of a completion "seq_sum", "seq_mean" or "seq_max"
      (every token must pass).
    kind: "k1", "k2" or "k3".
    low: Lower bound of the ratio for k1, 0 for none; not used otherwise.
    high: Upper bound: of the ratio for k1, in nats otherwise.

  Returns:
    The tokens of `mask` that are kept. They leave the denominators as well.

  Raises:
    ValueError: If `statistic` or `kind` is unknown.

  Source: verl, `rollout_rs` and `rollout_rs_threshold`.
  """
  chex.assert_equal_shape([log_ratio, mask])
  estimators = {
    "k1": divergences.kl_k1,
    "k2": divergences.kl_k2,
    "k3": divergences.kl_k3,
  }
  if kind not in estimators:
    raise ValueError(
      f"corrections.rejection_mask: kind is {kind!r}; choose one of"
      f" {', '.join(estimators)}."
    )
  u = -jnp.clip(_without_nan(log_ratio, mask), -20.0, 20.0)  # nats
  k = masked.select(estimators[kind](u), mask)  # [B, T]
  if statistic == "seq_sum":
    k = k.sum(axis=-1, keepdims=True)  # [B, 1]
  elif statistic == "seq_mean":
    k = masked.mean(k, mask, axis=-1)[:, None]  # [B, 1]
  elif statistic not in ("token", "seq_max"):
    raise ValueError(
      f"corrections.rejection_mask: statistic is {statistic!r}; choose one of"
      " token, seq_sum, seq_mean, seq_max."
    )
  if kind == "k1":
    keep = k <= math.log(high)
    if low > 0:
      keep &= k >= math.log(low)
  else:
    keep = k <= high
  if statistic == "seq_max":
    keep = (keep | ~mask).all(axis=-1, keepdims=True)  # [B, 1]
  return mask & keep


def off_policy_sequence_mask(
  logp: jax.Array,  # [B, T]
  behavior_logp: jax.Array,  # [B, T]
  advantages: jax.Array,  # [B] or [B, T]
  mask: jax.Array,  # [B, T] bool
  threshold: float,
) -> jax.Array:  # [B, 1] or [B, T] bool
  """Leaves out bad completions that have become unlikely under the policy.

      keep = A ≥ 0  or  (1/|y_i|) Σ_t [log π_behavior − log π_θ] ≤ δ

  Args:
    logp: Log-probs under the policy being trained, nats.
    behavior_logp: Log-probs under the policy that sampled, nats; a NaN
      difference counts as 0.
    advantages: One per completion or per token; only the sign is read.
    mask: True on trained tokens.
    threshold: δ, nats per token.

  Returns:
    True where the policy loss counts; per token if advantages are.

  Source: "DeepSeek-V3.2", arXiv:2512.02556, Section 3.1 (off-policy sequence
  masking).
  """
  chex.assert_equal_shape([logp, behavior_logp, mask])
  gap = _without_nan(behavior_logp - logp, mask)
  drift = masked.mean(gap, mask, axis=-1)[:, None]  # [B, 1]
  if advantages.ndim == 1:
    advantages = advantages[:, None]
  return (advantages >= 0) | (drift <= threshold)


def top_entropy_mask(
  entropy: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  fraction: float,
) -> jax.Array:  # [B, T] bool
  """Keeps the tokens with the highest entropy.

      H_it ≥ quantile_{1 − fraction}(H),   over all tokens of the mask

  Args:
    entropy: Nats; a constant.
    mask: True on trained tokens.
    fraction: Share of them to keep, in (0, 1].

  Returns:
    True on kept tokens, within `mask`; ties with the last kept token are kept,
    too.

  Source: Wang et al., "Beyond the 80/20 Rule", arXiv:2506.01939.
  """
  chex.assert_equal_shape([entropy, mask])
  entropy = jax.lax.stop_gradient(entropy)
  # `H ≥ quantile` needs the first order statistic at or above the rank of the
  # quantile. It is not interpolated: an interpolation that rounds up by one
  # unit in the last place would lose the token on which it lies.
  rank = (1.0 - fraction) * jnp.maximum(mask.sum() - 1, 0)
  index = jnp.ceil(rank - 1e-4).astype(jnp.int32)
  ordered = jnp.sort(jnp.where(mask, entropy, jnp.inf), axis=None)
  return mask & (entropy >= ordered[index])

"""Shaping of rewards and advantages: length, entropy, the KL coefficient."""

from __future__ import annotations

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp

from grpo_jax import ranges
from grpo_jax.ops import baselines, masked

# Added to entropies and deviations that divide.
_EPS = 1e-6
NORMALIZATIONS = ("split", "joint", "none")


def total_reward(
  components: Mapping[str, jax.Array],  # each [B] float32
  weights: Mapping[str, float | jax.Array],
) -> tuple[jax.Array, jax.Array]:  # [B], [B] bool
  """The weighted sum of the components that apply, and a check of its size.

      R_b = Σ_{k applicable to b} w_k r_kb

  Args:
    components: Each reward by name, before weights; NaN = not applicable.
    weights: Weight of each component, by the same names.

  Returns:
    The sum, and True if a component or the sum is beyond `ranges.MAX_REWARD`.
  """
  total = jnp.zeros_like(next(iter(components.values())))  # [B]
  too_large = jnp.zeros_like(total, bool)  # [B]
  for name in sorted(components):
    values = components[name]
    too_large |= jnp.abs(values) > ranges.MAX_REWARD
    total += weights[name] * jnp.where(jnp.isnan(values), 0.0, values)
  # 0 · inf is NaN, and a comparison with NaN is False.
  return total, too_large | ~(jnp.abs(total) <= ranges.MAX_REWARD)


def soft_overlong(
  lengths: jax.Array,  # [B] int, tokens
  max_length: float,
  cache_length: float,
) -> jax.Array:  # [B]
  """Penalty that grows over the last `cache_length` tokens of the budget.

      0                          n ≤ L_max − L_cache
      (L_max − L_cache − n) / L_cache    up to L_max
      −1                         n > L_max

  Source: Yu et al., "DAPO", arXiv:2503.14476, Eq. 13.
  """
  expected = max_length - cache_length
  return jnp.clip((expected - lengths) / cache_length, -1.0, 0.0)


def adaptive_kl_coef(
  coef: jax.Array,  # []
  kl: jax.Array,  # []
  target: float,
  horizon: float,
  num_samples: jax.Array | int,
) -> jax.Array:  # []
  """The KL coefficient after a step, steered towards a KL of `target`.

      β (1 + clip(KL / target − 1, −0.2, 0.2) · n / horizon)

  Args:
    coef: β before the step.
    kl: KL to the reference that was measured in the step, nats.
    target: KL to hold, nats, > 0.
    horizon: Completions over which β changes by at most a factor of about
      e^0.2.
    num_samples: n, completions of the step.

  Source: Ziegler et al., "Fine-Tuning Language Models from Human
  Preferences", arXiv:1909.08593.
  """
  error = jnp.clip(kl / target - 1.0, -0.2, 0.2)
  return coef * (1.0 + error * num_samples / horizon)


def _entropy_shaped(
  correct: jax.Array,  # [B] or [B, 1] bool
  entropy: jax.Array,  # [B] or [B, T]
  alive: jax.Array,  # shape of entropy, bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  alpha1: float,
  alpha2: float,
) -> jax.Array:  # shape of entropy
  """Rewards ±(α1 + α2 d share), d the alive rows of the same side."""
  # A negative entropy can only be round-off.
  entropy = jnp.maximum(masked.wide(masked.select(entropy, alive)), 0.0)
  weight = masked.select(
    jnp.where(correct, entropy, 1.0 / (entropy + _EPS)), alive
  )
  sides = 2 * group_id + correct.reshape(-1)  # [B]

  def total(x):
    return jax.ops.segment_sum(x, sides, 2 * num_groups)[sides]

  count = total(alive.astype(weight.dtype))
  sum_weight = total(weight)
  # Right rows without entropy have equal shares.
  share = jnp.where(
    sum_weight > 0,
    weight / jnp.where(sum_weight > 0, sum_weight, 1.0) * count,
    1,
  )
  shaped = jnp.where(correct, 1.0, -1.0) * (alpha1 + alpha2 * share)
  return jax.lax.stop_gradient(masked.select(shaped, alive))


def gtpo_rewards(
  correct: jax.Array,  # [B] bool
  entropy: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  valid: jax.Array,  # [B] bool
  alpha1: float = 1.0,
  alpha2: float = 0.1,
) -> jax.Array:  # [B, T]
  """Token rewards that pay uncertain tokens of right completions more.

      right:  α1 + α2 d_t H_it / Σ_k H_kt
      wrong: −α1 − α2 d_t (1 / H_it) / Σ_k (1 / H_kt)

  Sums are over the d_t rows of the group on the same side that have a trained
  token t, so that each side's shaping at t adds up to ±α2 d_t.

  Args:
    correct: True on right completions.
    entropy: Entropy of the distribution each token was drawn from, nats.
    mask: True on trained tokens.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.
    valid: Rows that were scored.
    alpha1: Size of the outcome.
    alpha2: Size of the shaping.

  Returns:
    Rewards; 0 where masked and for invalid rows. Right rows without any entropy
    have equal shares.

  Source: "GTPO and GRPO-S: Token and Sequence-Level Reward Shaping with
  Policy Entropy", arXiv:2508.04349.
  """
  chex.assert_rank([entropy, mask], 2)
  chex.assert_equal_shape([entropy, mask])
  return _entropy_shaped(
    correct[:, None],
    entropy,
    mask & valid[:, None],
    group_id,
    num_groups,
    alpha1,
    alpha2,
  )


def grpo_s_rewards(
  correct: jax.Array,  # [B] bool
  entropy: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  valid: jax.Array,  # [B] bool
  alpha1: float = 1.0,
  alpha2: float = 0.1,
) -> jax.Array:  # [B]
  """Rewards of whole completions by their mean entropy; see `gtpo_rewards`.

  The arguments are those of `gtpo_rewards`; H is the mean over a row's trained
  tokens and d the number of rows on the same side.

  Returns:
    Rewards; 0 for invalid rows and rows without tokens.

  Source: arXiv:2508.04349 (GRPO-S).
  """
  chex.assert_rank([entropy, mask], 2)
  chex.assert_equal_shape([entropy, mask])
  return _entropy_shaped(
    correct,
    masked.mean(masked.wide(entropy), mask, axis=-1),
    mask.any(axis=-1) & valid,
    group_id,
    num_groups,
    alpha1,
    alpha2,
  )


def normalized_over_group(
  x: jax.Array,  # [B] or [B, T]
  mask: jax.Array,  # shape of x, bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  positive: jax.Array,  # [B] bool
  how: str,
) -> jax.Array:  # shape of x
  """Standardises x over the entries of a group; std with ddof 0, eps 1e-6.

  Args:
    x: One number per completion or per token.
    mask: True on entries that count.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.
    positive: Side of each row.
    how: "joint" takes a group's entries together, "split" those of positive
      and of other rows apart (which removes the sign of the outcome), "none"
      leaves x unchanged.

  Returns:
    0 where masked and where the entries taken together are all equal.

  Raises:
    ValueError: If `how` is not one of `NORMALIZATIONS`.

  Source: GTPO, arXiv:2508.04349; which of the two its authors use is not
  clear from the text.
  """
  if how not in NORMALIZATIONS:
    raise ValueError(
      f"normalized_over_group: how={how!r} is unknown; choose one of"
      f" {list(NORMALIZATIONS)}."
    )
  chex.assert_equal_shape([x, mask])
  if how == "none":
    return jax.lax.stop_gradient(masked.select(x, mask))
  if how == "split":
    group_id, num_groups = 2 * group_id + positive, 2 * num_groups
  entries = jnp.repeat(group_id, x.size // x.shape[0])
  return baselines.group_standardized(
    x.reshape(-1), mask.reshape(-1), entries, num_groups, 0, _EPS
  ).reshape(x.shape)


def edge_factor(
  entropy: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  low: float = 0.1,
  high: float = 10.0,
) -> jax.Array:  # [B]
  """A factor of advantages that is large for confident completions.

      clip( mean_j H̄_j / H̄_i, low, high ),   H̄ = mean entropy of a row's tokens

  and no mean entropy is below 1e-6.

  Args:
    entropy: Entropy of the distribution each token was drawn from, nats.
    mask: True on trained tokens; the mean over j is over rows that have any.
    low: Least factor.
    high: Greatest factor.

  Returns:
    Positive factors, 1 where all entropies are equal; 1 for rows without
    tokens.

  Source: Zhang et al., "EDGE-GRPO", arXiv:2507.21848. Unlike the authors'
  code: padding does not count, the factor is a constant, and it is clipped
  (their bounds, which they left commented out).
  """
  chex.assert_rank([entropy, mask], 2)
  chex.assert_equal_shape([entropy, mask])
  present = mask.any(axis=-1)
  mean = masked.mean(masked.wide(entropy), mask, axis=-1)  # [B]
  batch_mean = jnp.maximum(masked.mean(mean, present), _EPS)
  factor = jnp.clip(batch_mean / jnp.maximum(mean, _EPS), low, high)
  return jax.lax.stop_gradient(jnp.where(present, factor, 1.0))

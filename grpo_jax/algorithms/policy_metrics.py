"""What is measured of a surrogate: clipped tokens, and pairs ahead."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.ops import aggregation, ratios
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch, Weighted


def of_pairs(policy: PolicyOutputs, batch: TrainBatch) -> dict[str, Weighted]:
  """How far the better completions are ahead, against the reference."""
  x = ratios.log_ratio(policy.logp, batch.ref_logp, batch.mask).sum(axis=-1)
  margin = jax.ops.segment_sum(
    batch.pair_role * x, batch.group_id, batch.num_groups
  )[batch.group_id]
  is_pair = (batch.pair_role != 0)[:, None] & batch.mask
  return {
    "pairs/margin": aggregation.over_sequences(margin, is_pair),
    "pairs/accuracy": aggregation.over_sequences(
      (margin > 0).astype(x.dtype), is_pair
    ),
  }


def of_clips(
  algorithm: Algorithm,
  config: Any,
  policy: PolicyOutputs,
  batch: TrainBatch,
) -> dict[str, Weighted]:
  """Share of tokens that the surrogate gives no gradient, by direction."""
  policy, batch = jax.lax.stop_gradient((policy, batch))
  found = clipped(algorithm, config, policy, batch)
  advantages = batch.advantages
  if advantages.ndim == 1:
    advantages = advantages[:, None]
  positive = advantages > 0
  dtype = policy.logp.dtype

  def share(x):
    return aggregation.over_tokens(
      jnp.broadcast_to(x, batch.mask.shape).astype(dtype), batch.mask
    )

  return {
    "clip_fraction": share(found),
    # With one clip per side, a positive advantage is cut from above and a
    # negative one from below.
    "clip_fraction/high": share(found & positive),
    "clip_fraction/low": share(found & ~positive),
  }


def clipped(
  algorithm: Algorithm,
  config: Any,
  policy: PolicyOutputs,
  batch: TrainBatch,
) -> jax.Array:  # [B, T] bool
  """Which trained tokens the surrogate gives no gradient.

  Measured, not re-derived: a trained token with a non-zero advantage whose
  derivative of the policy loss is exactly 0 was clipped, whatever the
  algorithm's ratio and bounds are.

  Args:
    algorithm: The objective; has a `policy_loss` and ratios.
    config: Config of the objective.
    policy: Outputs of the policy for the rows; see `sanitize`.
    batch: Prepared rows. What is said of tokens that are not trained means
      nothing.
  """
  fixed = jax.lax.stop_gradient((policy, batch))

  def total(logp):
    policy, batch = fixed
    outputs = dataclasses.replace(policy, logp=logp)
    assert algorithm.policy_loss is not None
    return algorithm.policy_loss(config, outputs, batch).sum()

  policy, batch = fixed
  slope = jax.grad(total)(policy.logp)  # [B, T]
  advantages = batch.advantages
  if advantages.ndim == 1:
    advantages = advantages[:, None]
  return (slope == 0) & (advantages != 0)

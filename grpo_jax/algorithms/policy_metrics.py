"""Metrics of a policy loss: clipped tokens, and margins of pairs."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.ops import aggregation, ratios
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch, Weighted


def of_pairs(policy: PolicyOutputs, batch: TrainBatch) -> dict[str, Weighted]:
  """Margins of pairs: log-ratio to the reference, better minus worse."""
  x = ratios.log_ratio(policy.logp, batch.reference.logp, batch.mask).sum(
    axis=-1
  )
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
  """Shares of clipped tokens, by direction."""
  policy, batch = jax.lax.stop_gradient((policy, batch))
  is_clipped = clipped(algorithm, config, policy, batch)
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
    "clip_fraction": share(is_clipped),
    # With one clip per side, a positive advantage is cut from above and a
    # negative one from below.
    "clip_fraction/high": share(is_clipped & positive),
    "clip_fraction/low": share(is_clipped & ~positive),
  }


def clipped(
  algorithm: Algorithm,
  config: Any,
  policy: PolicyOutputs,
  batch: TrainBatch,
) -> jax.Array:  # [B, T] bool
  """True on trained tokens without a gradient of the surrogate.

  This is measured, not derived: a trained token with a non-zero advantage whose
  derivative of the policy loss is exactly 0 was clipped, whatever the
  algorithm's ratio and bounds are.

  Args:
    algorithm: The objective; has a `policy_loss` and ratios.
    config: Config of the objective.
    policy: Outputs of the policy for the rows; see `sanitize`.
    batch: Prepared rows. Results at tokens that are not trained are
      meaningless.
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

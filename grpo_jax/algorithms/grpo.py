"""GRPO: group-relative advantages instead of a critic (arXiv:2402.03300).

    A_i  = (R_i − mean_g R) / (std_g R + eps)
    L    = −(1/S) Σ_i (1/|y_i|) Σ_t [min(r_it A_i, clip(r_it) A_i) − β k3_it]

This is outcome supervision; k3 estimates the KL to the reference. The division
by the deviation is `advantage_scale`. The paper prints neither the clip range
nor the kind of standard deviation; 0.2 and the sample deviation (ddof = 1) are
the usual readings (TRL, verl).
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, baselines, ratios, surrogates
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPOConfig(ClipConfig):
  kl_coef: float = 0.04  # Section 4.2.
  advantage_scale: str = "group"  # Section 4.1.2.


def advantages(config: ClipConfig, batch: TrainBatch) -> jax.Array:  # [B]
  del config  # The common options divide by the deviation.
  return baselines.group_centered(
    batch.rewards, batch.valid, batch.group_id, batch.num_groups
  )


def clipped_loss(
  config: ClipConfig,
  ratio: jax.Array,  # [B] or [B, T]
  batch: TrainBatch,
) -> jax.Array:  # shape of ratio
  """The clipped loss −min(r A, clip(r) A) with all bounds of `ClipConfig`."""
  return -surrogates.clipped(
    ratio,
    batch.advantages,
    config.clip_low,
    config.clip_high,
    config.dual_clip,
    config.ratio_cap,
  )


def policy_loss(
  config: ClipConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  ratio = ratios.token_ratio(
    policy.logp, batch.old_logp, batch.mask, config.log_ratio_clamp
  )  # [B, T]
  return clipped_loss(config, ratio, batch)


GRPO = Algorithm(
  name="grpo",
  config_class=GRPOConfig,
  advantages=advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp",),
  min_group_size=2,
)

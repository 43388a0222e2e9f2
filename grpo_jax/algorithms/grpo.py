"""GRPO: group-relative advantages instead of a critic (arXiv:2402.03300).

    A_i  = (R_i − mean_g R) / (std_g R + eps)
    L    = −(1/S) Σ_i (1/|y_i|) Σ_t min(r_it A_i, clip(r_it) A_i) + β KL_it

Outcome supervision. The paper prints neither the clip range nor which
standard deviation it means; 0.2 and the sample deviation (ddof = 1) are the
usual readings (TRL, verl).
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import objective
from grpo_jax.ops import aggregation, baselines, ratios, surrogates
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPOConfig(objective.CommonConfig):
  clip_low: float = 0.2  # Convention; not printed in the paper.
  clip_high: float = 0.2
  log_ratio_clamp: float = 20.0  # Nats, before exp.
  kl_coef: float = 0.04  # Section 4.2.


def advantages(config: GRPOConfig, batch: TrainBatch) -> jax.Array:  # [B]
  del config
  return baselines.group_standardized(
    batch.rewards, batch.valid, batch.group_id, batch.num_groups
  )


def policy_loss(
  config: GRPOConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  ratio = ratios.token_ratio(
    policy.logp, batch.old_logp, batch.mask, config.log_ratio_clamp
  )  # [B, T]
  return -surrogates.clipped(
    ratio, batch.advantages, config.clip_low, config.clip_high
  )


GRPO = Algorithm(
  name="grpo",
  config_class=GRPOConfig,
  advantages=advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp",),
  min_group_size=2,
)

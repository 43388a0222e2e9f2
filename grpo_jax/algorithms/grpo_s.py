"""GRPO-S: rewards of completions shaped by their entropy (2508.04349).

    right:  R̃_i =  α_1 + α_2 |right| H_i / Σ_{k right} H_k
    wrong:  R̃_i = −α_1 − α_2 |wrong| (1/H_i) / Σ_{k wrong} (1/H_k)
    A_i   = (R̃_i − mean_g) / (std_g + eps)
    L     = −(1/S) Σ_i min(s_i A_i, clip(s_i) A_i),   s_i = (1/|y_i|) Σ_t r_it

This is the sequence form of `gtpo.py`, with H_i the mean entropy of a
completion's tokens. The ratio is the arithmetic mean of the tokens' ratios.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo, gtpo
from grpo_jax.algorithms.gtpo import GTPOConfig
from grpo_jax.ops import aggregation, masked, ratios, shaping
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPOSConfig(GTPOConfig):
  """Options of GRPO-S: those of GTPO."""


def advantages(config: GRPOSConfig, batch: TrainBatch) -> jax.Array:  # [B]
  present = batch.mask.any(axis=-1) & batch.valid
  return gtpo.shaped_advantages(config, batch, shaping.grpo_s_rewards, present)


def policy_loss(
  config: GRPOSConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B]
  of_tokens = ratios.token_ratio(
    policy.logp, batch.old_logp, batch.mask, config.log_ratio_clamp
  )  # [B, T]
  ratio = masked.mean(of_tokens, batch.mask, axis=-1)  # [B]
  return grpo.clipped_loss(config, ratio, batch)


GRPO_S = Algorithm(
  name="grpo_s",
  config_class=GRPOSConfig,
  advantages=advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp", "behavior_entropy"),
  whole_completions=True,
  min_group_size=2,
  token_advantages=False,
)

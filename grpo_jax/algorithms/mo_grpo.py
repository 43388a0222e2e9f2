"""MO-GRPO: normalises every objective before the sum (2509.22047).

    A_i = Σ_k w_k (r_ik − mean_g r_k) / (std_g r_k + eps)
    L   = GRPO's, by default without its KL

If rewards are added first, as in GRPO, the reward with the largest variance
dominates; here each objective correlates equally with A. An objective that does
not apply to a completion contributes 0 to it. Terms of the reward sum
(`kl_in_reward`, `overlong_cache`) are refused: normalised like another
objective, such a term would have the same weight whatever its coefficient is.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, baselines
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class MOGRPOConfig(ClipConfig):
  """Options of MO-GRPO: those of `ClipConfig`."""

  scale_free = True  # Standardised here.
  reads_rewards = False  # Components of rewards are read.


def advantages(config: MOGRPOConfig, batch: TrainBatch) -> jax.Array:  # [B]
  return baselines.objectives_standardized(
    batch.scores.components,
    ~jnp.isnan(batch.scores.components),
    batch.scores.component_weights,
    batch.valid,
    batch.group_id,
    batch.num_groups,
    eps=config.advantage_eps,
  )


MO_GRPO = Algorithm(
  name="mo_grpo",
  config_class=MOGRPOConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp", "components"),
  min_group_size=2,
)

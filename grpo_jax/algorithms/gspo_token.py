"""GSPO-token: the sequence's ratio with each token's own gradient.

    s_it = sg[s_i] · π_θ(y_it) / sg[π_θ(y_it)],  s_i of GSPO
    L    = −(1/S) Σ_i (1/|y_i|) Σ_t min(s_it A_it, clip(s_it) A_it)

Value and gradient equal those of GSPO if A is constant in a completion; the
method is for advantages that are not. Deviation: the clamp of `gspo.py`.

Source: Zheng et al., "Group Sequence Policy Optimization", arXiv:2507.18071,
Section 4.3.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.gspo import GSPOConfig
from grpo_jax.ops import aggregation, ratios
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GSPOTokenConfig(GSPOConfig):
  """Options of GSPO-token, with the defaults of GSPO."""


def policy_loss(
  config: GSPOTokenConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  ratio = ratios.sequence_token_ratio(
    policy.logp, batch.old_logp, batch.mask, config.log_ratio_clamp
  )  # [B, T]
  return grpo.clipped_loss(config, ratio, batch)


GSPO_TOKEN = Algorithm(
  name="gspo_token",
  config_class=GSPOTokenConfig,
  advantages=grpo.advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp",),
  whole_completions=True,
  min_group_size=2,
)

"""LUSPO: GSPO with each completion weighted by its length.

    L = −(1/S) Σ_i |y_i| min(s_i A_i, clip(s_i, 1 − ε_low, 1 + ε_high) A_i)

GSPO's mean over tokens favours short completions; the factor |y_i| removes
that. s_i and the clamp are those of `gspo.py`.

Source: arXiv:2602.05261; the clip range is that of TRL 1.16.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import grpo, gspo
from grpo_jax.algorithms.gspo import GSPOConfig
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class LUSPOConfig(GSPOConfig):
  clip_low: float = 2e-3
  clip_high: float = 2.5e-3


def policy_loss(
  config: LUSPOConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  per_sequence = gspo.policy_loss(config, policy, batch)  # [B]
  return jnp.broadcast_to(per_sequence[:, None], batch.mask.shape)


LUSPO = Algorithm(
  name="luspo",
  config_class=LUSPOConfig,
  advantages=grpo.advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_sequence_sums,
  needs=("old_logp",),
  whole_completions=True,
  min_group_size=2,
  token_advantages=False,
)

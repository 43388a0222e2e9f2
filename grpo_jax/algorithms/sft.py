"""Supervised fine-tuning: mean negative log-likelihood of completions.

    L = −(1/N) Σ_i Σ_t log π_θ(y_it)

There is no second trainer: the update is the same, but completions come from
data instead of the sampler.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class SFTConfig(CommonConfig):
  """Options of fine-tuning: the common ones."""

  scale_free = True  # Rewards are not read.
  reads_rewards = False


def advantages(config: SFTConfig, batch: TrainBatch) -> jax.Array:  # [B]
  del config
  return jnp.zeros_like(batch.rewards)


def policy_loss(
  config: SFTConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  del config, batch
  return -policy.logp


SFT = Algorithm(
  name="sft",
  config_class=SFTConfig,
  advantages=advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_tokens,
  token_advantages=False,
)

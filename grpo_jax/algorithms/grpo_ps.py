"""GRPO with process supervision: a reward for every step of reasoning.

    ρ̃_ij = (ρ_ij − mean_g ρ) / (std_g ρ + eps)
    A_it = Σ_{j: step j of i ends at or after t} ρ̃_ij
    L    = GRPO's

Statistics are over all step rewards of the group. Tokens after the last step
have advantage 0.

Source: Shao et al., "DeepSeekMath", arXiv:2402.03300, Section 4.1.3.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, baselines
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPOPSConfig(ClipConfig):
  kl_coef: float = 0.04  # Section 4.2.
  scale_free = True  # Standardised here.
  reads_rewards = False  # Rewards of steps are read.


def advantages(config: GRPOPSConfig, batch: TrainBatch) -> jax.Array:  # [B, T]
  return baselines.process_supervision(
    batch.scores.step_rewards,
    batch.scores.step_mask,
    batch.completion_mask,
    batch.valid,
    batch.group_id,
    batch.num_groups,
    eps=config.advantage_eps,
  )


GRPO_PS = Algorithm(
  name="grpo_ps",
  config_class=GRPOPSConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp", "step_rewards"),
  whole_completions=True,
  min_group_size=2,
)

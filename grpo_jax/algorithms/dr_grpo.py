"""Dr. GRPO: GRPO without its two biases (arXiv:2503.20783).

    A_i  = R_i − mean_g R
    L    = −(1 / (S · T)) Σ_i Σ_t min(r_it A_i, clip(r_it) A_i)

No division by the group's deviation (question-difficulty bias) and none by
the completion's own length (length bias); T is the generation budget.
Deviation: S counts completions that have trained tokens, so filtered rows
leave the mean.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo, objective
from grpo_jax.ops import aggregation, baselines
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrGRPOConfig(objective.CommonConfig):
  clip_low: float = 0.2  # Section 3.2, "PPO's clip"; oat's math_rl.sh.
  clip_high: float = 0.2
  log_ratio_clamp: float = 20.0  # Nats, before exp.


def advantages(config: DrGRPOConfig, batch: TrainBatch) -> jax.Array:  # [B]
  del config
  return baselines.group_centered(
    batch.rewards, batch.valid, batch.group_id, batch.num_groups
  )


DR_GRPO = Algorithm(
  name="dr_grpo",
  config_class=DrGRPOConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_budget,
  needs=("old_logp",),
  min_group_size=2,
)

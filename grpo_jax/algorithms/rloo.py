"""RLOO: each completion against the mean of the others (arXiv:2402.14740).

    A_i = R_i − (1/(G − 1)) Σ_{j ≠ i} R_j
    L   = −(1/S) Σ_i min(w_i A_i, clip(w_i) A_i),   w_i = Π_t r_it

The whole completion is one action, so its ratio is the product over tokens; the
KL to the reference is part of the reward. On-policy the gradient is
A_i ∇ log π(y_i), unbiased. Coefficient and clip range are those of TRL 1.16;
the paper makes one update per batch and does not need a ratio. verl clips the
token ratio instead. Deviations: log w is clamped at ±20 nats; a completion that
is alone in its group has A = 0.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, baselines, ratios
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class RLOOConfig(ClipConfig):
  kl_coef: float = 0.05
  kl_kind: str = "k1"
  kl_in_reward: bool = True  # Section 3.


def advantages(config: RLOOConfig, batch: TrainBatch) -> jax.Array:  # [B]
  del config
  return baselines.leave_one_out(
    batch.rewards, batch.valid, batch.group_id, batch.num_groups
  )


def policy_loss(
  config: RLOOConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B]
  ratio = ratios.trajectory_ratio(
    policy.logp, batch.old_logp, batch.mask, config.log_ratio_clamp
  )  # [B]
  return grpo.clipped_loss(config, ratio, batch)


RLOO = Algorithm(
  name="rloo",
  config_class=RLOOConfig,
  advantages=advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp",),
  whole_completions=True,
  min_group_size=2,
  token_advantages=False,
)

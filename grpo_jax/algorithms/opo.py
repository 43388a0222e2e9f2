"""OPO: on-policy, with the baseline of least variance (arXiv:2505.23585).

    b_g = Σ_{j ∈ g} |y_j| R_j / Σ_{j ∈ g} |y_j|,   A_i = R_i − b_g
    L   = −(1/S) Σ_i A_i Σ_t log π_θ(y_it)

The optimal baseline weighs rewards by the squared norm of the score, which the
paper replaces by the length |y|, the number of tokens of the policy. The method
is exactly on-policy: without ratio, KL and entropy bonus. Use one update per
batch.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import reinforce
from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, baselines
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class OPOConfig(CommonConfig):
  """Options of OPO: the common ones."""


def advantages(config: OPOConfig, batch: TrainBatch) -> jax.Array:  # [B]
  del config
  return baselines.length_weighted(
    batch.rewards,
    batch.sampler.lengths,
    batch.valid,
    batch.group_id,
    batch.num_groups,
  )


OPO = Algorithm(
  name="opo",
  config_class=OPOConfig,
  advantages=advantages,
  policy_loss=reinforce.policy_loss,
  aggregate=aggregation.over_sequence_sums,
  needs=("lengths",),
  whole_completions=True,
  min_group_size=2,
)

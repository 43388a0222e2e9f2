"""ReMax: the reward of the greedy completion as baseline (arXiv:2310.10505).

    A_i = R_i − R(greedy completion of the prompt)
    L   = −(1/S) Σ_i A_i Σ_t log π_θ(y_it)

The greedy completions are one more rollout of one row per prompt. If the
verifier of a greedy completion failed, the baseline is 0.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import reinforce
from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, masked
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReMaxConfig(CommonConfig):
  """Options of ReMax: the common ones."""


def advantages(config: ReMaxConfig, batch: TrainBatch) -> jax.Array:  # [B]
  del config
  return masked.select(batch.rewards - batch.scores.greedy, batch.valid)


REMAX = Algorithm(
  name="remax",
  config_class=ReMaxConfig,
  advantages=advantages,
  policy_loss=reinforce.policy_loss,
  aggregate=aggregation.over_sequence_sums,
  needs=("greedy_rewards",),
)

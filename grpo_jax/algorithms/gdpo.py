"""GDPO: each objective normalised, then their sum over the batch (2601.05242).

    S_i = Σ_k w_k (r_ik − mean_g r_k) / (std_g r_k + eps)
    A_i = (S_i − mean_batch S) / (std_batch S + 1e-4)
    L   = GRPO's, by default without its KL

This is MO-GRPO followed by a normalisation that does not depend on the number
of objectives (TRL: `normalize_then_sum`).
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo, mo_grpo
from grpo_jax.algorithms.mo_grpo import MOGRPOConfig
from grpo_jax.ops import aggregation, baselines
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GDPOConfig(MOGRPOConfig):
  """MO-GRPO's options, and one more.

  Attributes:
    batch_eps: Added to the deviation of the sums over the batch.
  """

  batch_eps: float = 1e-4


def advantages(config: GDPOConfig, batch: TrainBatch) -> jax.Array:  # [B]
  return baselines.batch_standardized(
    mo_grpo.advantages(config, batch), batch.valid, eps=config.batch_eps
  )


GDPO = Algorithm(
  name="gdpo",
  config_class=GDPOConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp", "components"),
  min_group_size=2,
)

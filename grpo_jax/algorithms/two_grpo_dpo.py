"""2-GRPO with DPO on the same pairs.

    L = L_2GRPO + α · L_DPO

One forward pass serves both. On-policy with π_θ = π_ref the two gradients are
proportional (arXiv:2510.00977); away from the reference DPO weighs a pair by
how wrong it still is, and GRPO clips it by how far it has moved. The sum is
ours: neither paper trains it.
"""

from __future__ import annotations

import dataclasses

from grpo_jax.algorithms import dpo, grpo
from grpo_jax.algorithms.two_grpo import TwoGRPOConfig
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm, Term, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoGRPODPOConfig(TwoGRPOConfig):
  """What DPO adds.

  Attributes:
    dpo_coef: α of the equation: weight of DPO's loss.
    beta: β of DPO: how much a difference of log-ratios counts, per nat.
  """

  dpo_coef: float = 0.1
  beta: float = 0.1  # arXiv:2305.18290, Section 6.


def prepare(config: TwoGRPODPOConfig, batch: TrainBatch) -> TrainBatch:
  del config
  return dataclasses.replace(batch, pair_role=dpo.pair_roles(batch))


def terms(config: TwoGRPODPOConfig) -> dict[str, Term]:
  return {
    "dpo": Term(
      lambda batch: config.dpo_coef,
      lambda policy, batch: dpo.pair_loss(policy, batch, config.beta),
      aggregation.over_sequences,
      lambda batch: batch.mask & (batch.pair_role != 0)[:, None],
    )
  }


TWO_GRPO_DPO = Algorithm(
  name="two_grpo_dpo",
  config_class=TwoGRPODPOConfig,
  advantages=grpo.advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_sequences,
  prepare=prepare,
  terms=terms,
  needs=("old_logp", "ref_logp"),
  couples_group=True,
  min_group_size=2,
  max_group_size=2,
)

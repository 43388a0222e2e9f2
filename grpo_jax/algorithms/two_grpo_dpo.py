"""2-GRPO with DPO on the same pairs.

    L = L_2GRPO + α · L_DPO

One forward pass serves both, and DPO's settings are those of `dpo.py`.
On-policy with π_θ = π_ref, the gradient of 2-GRPO, whose loss is a mean over
the tokens of a completion, has the direction of DPO's with `length_normalized`
(arXiv:2510.00977). Away from the reference DPO weighs a pair by its remaining
error, and GRPO clips the pair by its distance from the old policy. The sum is
ours: neither paper trains it.
"""

from __future__ import annotations

import dataclasses

from grpo_jax.algorithms import dpo, grpo
from grpo_jax.algorithms.dpo import WithPairsConfig
from grpo_jax.algorithms.two_grpo import TwoGRPOConfig
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoGRPODPOConfig(TwoGRPOConfig, WithPairsConfig):
  """Options of 2-GRPO and of DPO."""


TWO_GRPO_DPO = Algorithm(
  name="two_grpo_dpo",
  config_class=TwoGRPODPOConfig,
  advantages=grpo.advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_sequences,
  prepare=dpo.with_roles,
  terms=dpo.pair_term,
  needs=("old_logp", "ref_logp"),
  couples_group=True,
  min_group_size=2,
  max_group_size=2,
)

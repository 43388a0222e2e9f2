"""2-GRPO: GRPO with two completions per prompt (arXiv:2510.00977).

With G = 2 and unequal rewards the advantages are ±1/√2 (ddof = 1), whatever the
gap: the pair is a preference, and on-policy the gradient has the direction of
DPO's. Otherwise this is `grpo.py`, without its KL.
"""

from __future__ import annotations

import dataclasses

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoGRPOConfig(ClipConfig):
  advantage_scale: str = "group"  # Section 3.


TWO_GRPO = Algorithm(
  name="two_grpo",
  config_class=TwoGRPOConfig,
  advantages=grpo.advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp",),
  min_group_size=2,
  max_group_size=2,
)

"""Dr. GRPO: GRPO without its two biases (arXiv:2503.20783).

    A_i  = R_i − mean_g R
    L    = −(1 / (S · T)) Σ_i Σ_t min(r_it A_i, clip(r_it) A_i)

It divides neither by the group's deviation (question-difficulty bias) nor by
the completion's own length (length bias); T is the generation budget.
Deviation: S counts completions that have trained tokens, so filtered rows
leave the mean.
"""

from __future__ import annotations

import dataclasses

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrGRPOConfig(ClipConfig):
  """Options of Dr. GRPO; the clip range is 0.2, as in oat's math_rl.sh.

  The paper says "PPO's clip" (Section 3.2).
  """


DR_GRPO = Algorithm(
  name="dr_grpo",
  config_class=DrGRPOConfig,
  advantages=grpo.advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_budget,
  needs=("old_logp",),
  min_group_size=2,
)

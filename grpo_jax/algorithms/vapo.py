"""VAPO: PPO with a critic for long reasoning (arXiv:2504.05118).

    λ_i = 1 − 1 / (α |y_i|) for the policy, λ_critic = 1 for the critic
    L   = PPO's with clip (0.2, 0.28)
          + μ · −Σ_{i right} Σ_t log π_θ(y_it) / Σ_{i right} |y_i|

Unlike in `ppo.py`, there is no KL by default. The paper pre-trains the
critic with the policy frozen (phase "value"), and samples several completions
of few prompts. Deviation: λ_i is within [0, 1]; as printed it is negative for
completions of fewer than 1/α = 20 tokens.
"""

from __future__ import annotations

import dataclasses

from grpo_jax.algorithms import grpo, ppo
from grpo_jax.algorithms.options import ClipConfig, CriticOptions
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm


@dataclasses.dataclass(frozen=True, kw_only=True)
class VAPOConfig(ClipConfig, CriticOptions):
  clip_high: float = 0.28
  lam_critic: float = 1.0
  length_adaptive_alpha: float = 0.05
  positive_nll_coef: float = 0.1  # μ


VAPO = Algorithm(
  name="vapo",
  config_class=VAPOConfig,
  advantages=ppo.advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  returns=ppo.returns,
  critic_loss=ppo.critic_loss,
  needs=("old_logp", "token_rewards", "values"),
)

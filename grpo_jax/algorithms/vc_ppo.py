"""VC-PPO: PPO with a pre-trained critic and two λ (arXiv:2503.01491).

PPO with λ = 0.95 for the policy and λ_critic = 1 for the critic, whose targets
then are the returns. Unlike in `ppo.py`, there is no KL by default. The
phase "value" pre-trains it with the policy frozen.
"""

from __future__ import annotations

import dataclasses

from grpo_jax.algorithms import grpo, ppo
from grpo_jax.algorithms.options import ClipConfig, CriticOptions
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm


@dataclasses.dataclass(frozen=True, kw_only=True)
class VCPPOConfig(ClipConfig, CriticOptions):
  lam_critic: float = 1.0


VC_PPO = Algorithm(
  name="vc_ppo",
  config_class=VCPPOConfig,
  advantages=ppo.advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  returns=ppo.returns,
  critic_loss=ppo.critic_loss,
  needs=("old_logp", "token_rewards", "values"),
)

"""PPO with DPO on pairs of the same completions.

    L = L_PPO + α · L_DPO

If the rewards of a group differ, its first best and its first worst completion
are a pair (`dpo.py`). PPO with its critic trains all completions. So the critic
compares tokens with expectations, and the pair compares two completions. One
forward pass serves both.

The sum is ours: no paper that we know trains it. α = 0 is PPO.
"""

from __future__ import annotations

import dataclasses

from grpo_jax.algorithms import dpo, grpo, ppo
from grpo_jax.algorithms.dpo import WithPairsConfig
from grpo_jax.algorithms.ppo import PPOConfig
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPODPOConfig(PPOConfig, WithPairsConfig):
  """Options of PPO and of DPO."""


PPO_DPO = Algorithm(
  name="ppo_dpo",
  config_class=PPODPOConfig,
  advantages=ppo.advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  prepare=dpo.with_roles,
  terms=dpo.pair_term,
  returns=ppo.returns,
  critic_loss=ppo.critic_loss,
  needs=("old_logp", "ref_logp", "token_rewards", "values"),
  couples_group=True,
  min_group_size=2,
)

"""PPO for language models: a critic instead of groups (arXiv:1707.06347).

    r_it = −β k1_it + 1[t last] R_i
    δ_t  = r_t + γ V_{t+1} − V_t,   Â_t = δ_t + γ λ Â_{t+1}
    L    = −(1/N) Σ_i Σ_t min(r_it A_it, clip(r_it) A_it)
           + c_v (1/N) Σ_i Σ_t ½ max((V − R̂)², (clip(V, V_old ± ε_v) − R̂)²)

A is Â, whitened over all tokens; R̂ = Â(λ_critic) + V_old is the critic's
target. Defaults are those of TRL 1.16: KL in the reward, λ = λ_critic = 0.95.
Longer reasoning: λ_critic = 1 is VC-PPO's decoupled GAE (arXiv:2503.01491),
and `length_adaptive_alpha` = 0.05 is VAPO's λ_i = 1 − 1/(α |y_i|)
(arXiv:2504.05118), here within [0, 1] because the paper's is negative for
short completions. `dual_clip` = 3 is verl's default.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, masked, returns, values
from grpo_jax.types import Algorithm, Term, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOConfig(ClipConfig):
  gamma: float = 1.0
  lam: float = 0.95
  lam_critic: float = 0.95
  length_adaptive_alpha: float = 0.0  # 0: λ is `lam`.
  value_coef: float = 0.1
  value_clip: float = 0.2  # 0: no clip.
  kl_coef: float = 0.05
  kl_kind: str = "k1"
  kl_in_reward: bool = True  # arXiv:1909.08593, Eq. 2.

  def __post_init__(self):
    super().__post_init__()
    for name in ("gamma", "lam", "lam_critic"):
      if getattr(self, name) > 1:
        self.complain(name, "must be in [0, 1]")


def _generalized(config: PPOConfig, batch: TrainBatch, lam):
  rewards = batch.token_rewards + returns.outcome_rewards(
    batch.rewards, batch.mask
  )
  return returns.generalized_advantages(
    rewards, batch.values, batch.mask, config.gamma, lam
  )  # [B, T], [B, T]


def advantages(config: PPOConfig, batch: TrainBatch) -> jax.Array:  # [B, T]
  lam: float | jax.Array = config.lam
  if config.length_adaptive_alpha:
    lam = returns.length_adaptive_lambda(
      batch.mask.sum(axis=-1), config.length_adaptive_alpha
    )  # [B]
  raw, _ = _generalized(config, batch, lam)
  return masked.whiten(raw, batch.mask)


def prepare(config: PPOConfig, batch: TrainBatch) -> TrainBatch:
  _, targets = _generalized(config, batch, config.lam_critic)
  return dataclasses.replace(batch, returns=targets)


def terms(config: PPOConfig) -> dict[str, Term]:
  return {
    "value": Term(
      lambda batch: config.value_coef,
      lambda policy, batch: values.value_loss(
        policy.values,
        batch.returns,
        batch.values,
        batch.mask,
        config.value_clip or None,
      ),
      aggregation.over_tokens,
    )
  }


PPO = Algorithm(
  name="ppo",
  config_class=PPOConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  prepare=prepare,
  terms=terms,
  needs=("old_logp", "token_rewards", "values"),
)

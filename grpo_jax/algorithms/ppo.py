"""PPO for language models: a critic instead of groups (arXiv:1707.06347).

    r_it = −β k1_it + 1[t last] R_i
    δ_t  = r_t + γ V_{t+1} − V_t,   Â_t = δ_t + γ λ Â_{t+1}
    L    = −(1/N) Σ_i Σ_t min(r_it A_it, clip(r_it) A_it)
    L_V  = (1/N) Σ_i Σ_t ½ max((V − R̂)², (clip(V, V_old ± ε_v) − R̂)²)

A is Â, whitened over all tokens; R̂ = Â(λ_critic) + V_old is the critic's
target. Defaults are those of TRL's experimental PPO: KL in the reward, and λ =
λ_critic = 0.95. `dual_clip` = 3 is verl's default.

V beyond the last token of a completion that was cut off is 0 by default, as in
TRL; with `bootstrap_cut` it is a value of the critic.

If contexts are compacted, R_i is that of the rollout. `boundary` sets the
meaning of the end of a context, and `reward` pays each context R_i or its
share. `length_adaptive_alpha` counts all tokens of a rollout, or those of a
context (`length_adaptive_unit`).

Deviation: L_V has no coefficient. TRL adds 0.1 L_V to L, for one optimizer;
here the critic has an optimizer and gradient clipping of its own
(`config.critic`), and the gradient of L_V does not enter the policy.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig, CriticOptions
from grpo_jax.ops import aggregation, masked
from grpo_jax.ops import returns as returns_lib
from grpo_jax.ops import values as values_lib
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOConfig(ClipConfig, CriticOptions):
  kl_coef: float = 0.05
  kl_kind: str = "k1"
  kl_in_reward: bool = True  # arXiv:1909.08593, Eq. 2.


def _generalized(config: CriticOptions, batch: TrainBatch, lam):
  beyond = None  # [B]
  if config.bootstrap_cut:
    beyond = masked.select(batch.critic.final_value, ~batch.terminated)
  if batch.traces.id is not None:
    return returns_lib.subtrace_advantages(
      batch.scores.token_rewards,
      batch.rewards,
      batch.critic.values,
      batch.mask,
      batch.traces.id,
      batch.traces.order,
      config.gamma,
      lam,
      config.boundary,
      config.reward,
      beyond,
    )
  rewards = batch.scores.token_rewards + returns_lib.outcome_rewards(
    batch.rewards, batch.mask
  )
  return returns_lib.generalized_advantages(
    rewards, batch.critic.values, batch.mask, config.gamma, lam, beyond
  )  # [B, T], [B, T]


def advantages(config: CriticOptions, batch: TrainBatch) -> jax.Array:  # [B, T]
  lam: float | jax.Array = config.lam
  if config.length_adaptive_alpha:
    lengths = batch.mask.sum(axis=-1)  # [B]
    if batch.traces.id is not None and config.length_adaptive_unit == "trace":
      lengths = returns_lib.over_traces(lengths, batch.traces.id)
    lam = returns_lib.length_adaptive_lambda(
      lengths, config.length_adaptive_alpha
    )  # [B]
  raw, _ = _generalized(config, batch, lam)
  return masked.whiten(raw, batch.mask) if config.whiten else raw


def returns(config: CriticOptions, batch: TrainBatch) -> jax.Array:  # [B, T]
  return _generalized(config, batch, config.lam_critic)[1]


def critic_loss(
  config: CriticOptions, values: jax.Array, batch: TrainBatch
) -> jax.Array:  # [B, T]
  return values_lib.value_loss(
    values,
    batch.returns,
    batch.critic.values,
    batch.mask,
    config.value_clip or None,
  )


PPO = Algorithm(
  name="ppo",
  config_class=PPOConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  returns=returns,
  critic_loss=critic_loss,
  needs=("old_logp", "token_rewards", "values"),
)

"""SAO: one completion per prompt, a critic, asynchronous (arXiv:2607.07508).

    r_it = π_θ(y_it) / π_sampler(y_it)
    L    = −(1/N) Σ_i Σ_t sg[r_it · 1(1 − ε_low < r_it < 1 + ε_high)]
                          A_it log π_θ(y_it)

The ratio is relative to the policy that sampled, as the sampler recorded it, so
a pass for π_old is not needed. Tokens outside the band are left out on both
sides, whatever the sign of A. A are generalised advantages over the tokens of
the policy, with λ_i = 1 − 1 / (α |y_i|); the critic's targets have λ = 1. The
bounds are those for mathematics; for code the paper uses (0.8, 3).

The paper pre-trains the critic. Then it trains the critic with its attention
frozen, with two updates for each update of the policy and five times the
policy's learning rate: `config.critic.freeze=("attention",)`, `num_updates=2`,
phase "value". `configs/recipes/sao.py` sets these, and `configs/ppo_add.py:sao`
does in small. γ and the KL are not stated; 1 and none are our choice. If
contexts are compacted, `boundary` = "compaction_rl" has CompactionRL's discount
with this band.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import ppo
from grpo_jax.algorithms.options import CriticOptions
from grpo_jax.ops import aggregation, ratios, surrogates
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class SAOConfig(CriticOptions):
  """The band of ratios, and the critic's options.

  Attributes:
    clip_low, clip_high: Widths of the band (1 − low, 1 + high) of ratios to the
      sampler; tokens outside are left out.
    log_ratio_clamp: Largest |log ratio|, nats, so that exp cannot overflow.
  """

  clip_low: float = 0.3  # Widths of the band, Section 4.
  clip_high: float = 5.0
  log_ratio_clamp: float = 20.0  # Nats, before exp.
  lam_critic: float = 1.0
  length_adaptive_alpha: float = 1.5
  whiten: bool = False
  value_clip: float = 0.0

  def __post_init__(self):
    super().__post_init__()
    if self.clip_low > 1:
      self.complain("clip_low", "is the width of the band below 1, in [0, 1]")


def policy_loss(
  config: SAOConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  ratio = ratios.token_ratio(
    policy.logp, batch.sampler.behavior_logp, batch.mask, config.log_ratio_clamp
  )  # [B, T]
  return -surrogates.banded_weight(
    ratio, policy.logp, batch.advantages, config.clip_low, config.clip_high
  )


SAO = Algorithm(
  name="sao",
  config_class=SAOConfig,
  advantages=ppo.advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_tokens,
  returns=ppo.returns,
  critic_loss=ppo.critic_loss,
  needs=("behavior_logp", "token_rewards", "values"),
  max_group_size=1,
)

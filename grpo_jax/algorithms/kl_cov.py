"""KL-Cov: a penalty on the tokens that would lower the entropy most.

    cov_it = (A_i − mean A) (log π_old(y_it) − mean log π_old)
    L      = −(1/N) Σ_i Σ_t [r_it A_i − κ 1[selected] |log r_it|]

The ⌊fraction · N⌋ tokens with the largest cov, at least one, are selected.
Ratios are not clipped. Deviations: log r is clamped at ±20 nats in r (verl has
no clamp here), and the covariance is that of the anchor and of the whole batch.

Source: Cui et al., "The Entropy Mechanism of Reinforcement Learning for
Reasoning Language Models", arXiv:2505.22617, Section 4.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, divergences, ratios, surrogates
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class KLCovConfig(CommonConfig):
  """Options of KL-Cov: the choice of tokens, and their penalty.

  Attributes:
    cov_fraction: Share of the trained tokens, those of the largest covariance.
    cov_kl_coef: κ of the equation, per nat of |log r|.
    log_ratio_clamp: Largest |log ratio|, nats, so that exp cannot overflow.
  """

  advantage_scale: str = "group"
  cov_fraction: float = 2e-4  # Section 4.3.
  cov_kl_coef: float = 1.0  # κ, per nat.
  log_ratio_clamp: float = 20.0  # Nats, before exp.


def prepare(config: KLCovConfig, batch: TrainBatch) -> TrainBatch:
  cov = surrogates.covariance(batch.advantages, batch.old_logp, batch.mask)
  selected = surrogates.kl_cov_mask(cov, batch.mask, config.cov_fraction)
  return dataclasses.replace(batch, selected=selected)


def policy_loss(
  config: KLCovConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  log_ratio = ratios.log_ratio(policy.logp, batch.old_logp, batch.mask)
  ratio = ratios.exp_clamped(log_ratio, config.log_ratio_clamp)
  surrogate = surrogates.reinforce(ratio, batch.advantages)  # r · A
  penalty = divergences.kl(policy.logp, batch.old_logp, batch.selected, "abs")
  return -surrogate + config.cov_kl_coef * penalty


KL_COV = Algorithm(
  name="kl_cov",
  config_class=KLCovConfig,
  advantages=grpo.advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_tokens,
  prepare=prepare,
  needs=("old_logp", "anchor"),
  min_group_size=2,
)

"""VESPO: REINFORCE weighted by a smooth function of the trajectory's ratio.

    W_i = Π_t r_it,   φ(W) = sg[exp(λ) W^k exp(−λ W)],   φ(1) = 1
    L   = −(1/N) Σ_i Σ_t φ(W_i) A_i log π_θ(y_it)

with (k, λ) = (2, 3) for A_i ≥ 0 and (3, 2) otherwise. Deviations: each log r is
clamped at ±20 nats, and W to [1e-8, e^20], as in TRL 1.16. Importance weights
(`importance_mode`) multiply the loss, as in any other algorithm, and are not
part of W; TRL has them in W.

Source: arXiv:2602.10693; the constants are those of TRL 1.16.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, ratios, surrogates
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class VESPOConfig(CommonConfig):
  """Options of VESPO: the shape of the weight φ.

  Attributes:
    k_positive, lambda_positive: k and λ of φ for advantages ≥ 0.
    k_negative, lambda_negative: k and λ of φ for negative advantages.
    log_ratio_clamp: Largest log W, nats.
  """

  k_positive: float = 2.0
  lambda_positive: float = 3.0
  k_negative: float = 3.0
  lambda_negative: float = 2.0
  log_ratio_clamp: float = 20.0  # Nats.
  advantage_scale: str = "group"


def policy_loss(
  config: VESPOConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  weight = surrogates.vespo_weight(
    ratios.log_ratio(policy.logp, batch.old_logp, batch.mask),
    batch.mask,
    batch.advantages,
    config.k_positive,
    config.lambda_positive,
    config.k_negative,
    config.lambda_negative,
    clamp=config.log_ratio_clamp,
  )  # [B]
  return -surrogates.reinforce(policy.logp, weight * batch.advantages)


VESPO = Algorithm(
  name="vespo",
  config_class=VESPOConfig,
  advantages=grpo.advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("old_logp",),
  whole_completions=True,
  min_group_size=2,
  token_advantages=False,
)

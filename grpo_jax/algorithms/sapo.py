"""SAPO: a smooth gate instead of a clip (arXiv:2511.20347).

    L = −(1/S) Σ_i (1/|y_i|) Σ_t A_i (4/τ) σ(τ (r_it − 1)),
    τ = τ_pos if A_i > 0 else τ_neg

Near r = 1 the slope is that of the clipped surrogate; far away it vanishes.
Some descriptions omit the factor 4/τ; without it the slope at 1 is not 1.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, ratios, surrogates
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class SAPOConfig(CommonConfig):
  """Options of SAPO: temperatures of the gate.

  Attributes:
    tau_positive, tau_negative: τ of the equation, the sharpness of the gate
      around ratio 1, for tokens with a positive advantage and for the others.
    log_ratio_clamp: Largest |log ratio|, nats, so that exp cannot overflow.
  """

  tau_positive: float = 1.0  # Section 5.
  tau_negative: float = 1.05
  log_ratio_clamp: float = 20.0  # Nats, before exp.
  advantage_scale: str = "group"

  def __post_init__(self):
    super().__post_init__()
    for name in ("tau_positive", "tau_negative"):
      if getattr(self, name) == 0:
        self.complain(name, "must be greater than 0")


def policy_loss(
  config: SAPOConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  ratio = ratios.token_ratio(
    policy.logp, batch.old_logp, batch.mask, config.log_ratio_clamp
  )  # [B, T]
  return -surrogates.soft_gated(
    ratio, batch.advantages, config.tau_positive, config.tau_negative
  )


SAPO = Algorithm(
  name="sapo",
  config_class=SAPOConfig,
  advantages=grpo.advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp",),
  min_group_size=2,
)

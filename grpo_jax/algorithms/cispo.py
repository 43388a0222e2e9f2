"""CISPO: the clipped ratio as a constant weight (MiniMax-M1, 2506.13585).

    L = −(1/N) Σ_i Σ_t sg[clip(r_it, ρ_min, ρ_max)] A_i log π_θ(y_it)

Every token keeps a gradient, also beyond the clip. The bounds are absolute:
TRL's `epsilon_high` is ρ_max, verl's bounds are 1 − ε_low and 1 + ε_high. The
paper uses no lower bound and tunes the upper one without printing it; 5 is
TRL's example.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, ratios, surrogates
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class CISPOConfig(CommonConfig):
  """Options of CISPO: bounds of the weight.

  Attributes:
    ratio_min, ratio_max: Bounds to which the ratio of a token is clipped before
      it becomes the weight: ρ of the equation. 0 for no lower bound.
    log_ratio_clamp: Largest |log ratio|, nats, so that exp cannot overflow.
  """

  ratio_min: float = 0.0  # Section 3.1: no lower bound.
  ratio_max: float = 5.0
  log_ratio_clamp: float = 20.0  # Nats, before exp.
  advantage_scale: str = "group"

  def __post_init__(self):
    super().__post_init__()
    if self.ratio_min > self.ratio_max:
      self.complain("ratio_min", f"is above ratio_max={self.ratio_max}")


def policy_loss(
  config: CISPOConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  ratio = ratios.token_ratio(
    policy.logp, batch.old_logp, batch.mask, config.log_ratio_clamp
  )  # [B, T]
  return -surrogates.clipped_weight(
    ratio, policy.logp, batch.advantages, config.ratio_min, config.ratio_max
  )


CISPO = Algorithm(
  name="cispo",
  config_class=CISPOConfig,
  advantages=grpo.advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("old_logp",),
  min_group_size=2,
)

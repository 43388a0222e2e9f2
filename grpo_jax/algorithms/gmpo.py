"""GMPO: the geometric mean of clipped token ratios (arXiv:2507.20673).

    y_it = min(Δ_it, clip(Δ_it, −ε_low, ε_high)) if A_i > 0, else max(…)
    L    = −(1/S) Σ_i A_i exp( (1/|y_i|) Σ_t y_it ),   Δ = log π_θ − log π_old

The clip range applies to log-ratios: ratios are in [e^−0.4, e^0.4]. Deviation:
Δ is clamped at ±20 nats; on its unclipped side the paper's mean has no bound.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, ratios, surrogates
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GMPOConfig(CommonConfig):
  """Options of GMPO: a clip range of log-ratios.

  Attributes:
    clip_low, clip_high: Range [−low, high] to which log-ratios of tokens are
      clipped, nats.
    log_ratio_clamp: Largest |Δ|, nats, on its unclipped side too.
  """

  clip_low: float = 0.4  # Section 4.1, nats of the log-ratio.
  clip_high: float = 0.4
  log_ratio_clamp: float = 20.0  # Nats.
  advantage_scale: str = "group"  # Eq. 1.


def policy_loss(
  config: GMPOConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B]
  log_ratio = ratios.log_ratio(policy.logp, batch.old_logp, batch.mask)
  return -surrogates.geometric_mean(
    log_ratio,
    batch.advantages,
    batch.mask,
    config.clip_low,
    config.clip_high,
    config.log_ratio_clamp,
  )


GMPO = Algorithm(
  name="gmpo",
  config_class=GMPOConfig,
  advantages=grpo.advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp",),
  whole_completions=True,
  min_group_size=2,
  token_advantages=False,
)

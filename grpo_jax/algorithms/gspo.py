"""GSPO: ratios and clipping on whole sequences (arXiv:2507.18071).

    s_i = exp( (1/|y_i|) Σ_t [log π_θ − log π_old] )
    L   = −(1/S) Σ_i min(s_i A_i, clip(s_i, 1 − ε_low, 1 + ε_high) A_i)

Deviation: `log_ratio_clamp` bounds the mean log-ratio at ±10 nats, as in verl;
the paper has no bound. LUSPO has the same `policy_loss`.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, ratios
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GSPOConfig(ClipConfig):
  clip_low: float = 3e-4  # Section 5.1.
  clip_high: float = 4e-4  # Section 5.1.
  log_ratio_clamp: float = 10.0
  advantage_scale: str = "group"  # Eq. 6.


def policy_loss(
  config: ClipConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B]
  ratio = ratios.sequence_ratio(
    policy.logp, batch.old_logp, batch.mask, config.log_ratio_clamp
  )  # [B]
  return grpo.clipped_loss(config, ratio, batch)


GSPO = Algorithm(
  name="gspo",
  config_class=GSPOConfig,
  advantages=grpo.advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp",),
  whole_completions=True,
  min_group_size=2,
  token_advantages=False,
)

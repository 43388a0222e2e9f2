"""REINFORCE++ with the group's mean as baseline (arXiv:2501.03262).

    A_it = (R_i − mean_g R − mean) / std,   over all tokens of the batch
    L    = −(1/N) Σ_i Σ_t [min(r_it A_it, clip(r_it) A_it) − β k2_it]

k2 is the estimator whose gradient is that of KL(π_θ ‖ π_ref).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import grpo, reinforce_pp
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, masked
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class REINFORCEPPBaselineConfig(ClipConfig):
  """Options of REINFORCE++ with baseline: the standardisation.

  Attributes:
    normalize_over: Units of the mean and the deviation: "tokens" or
      "sequences", as in `reinforce_pp`.
  """

  kl_coef: float = 1e-3
  kl_kind: str = "k2"
  normalize_over: str = "tokens"
  scale_free = True  # Standardised here.

  def __post_init__(self):
    super().__post_init__()
    reinforce_pp.check_normalize_over(self)


def advantages(
  config: REINFORCEPPBaselineConfig, batch: TrainBatch
) -> jax.Array:  # [B, T]
  centered = grpo.advantages(config, batch)[:, None]  # [B, 1]
  by_rows = config.normalize_over == "sequences"
  return masked.whiten(
    jnp.broadcast_to(centered, batch.mask.shape), batch.mask, by_rows
  )


REINFORCE_PP_BASELINE = Algorithm(
  name="reinforce_pp_baseline",
  config_class=REINFORCEPPBaselineConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("old_logp",),
  whole_completions=True,
  min_group_size=2,
)

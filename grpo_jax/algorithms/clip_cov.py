"""Clip-Cov: a few tokens that would lower the entropy most are not trained.

    cov_it = (A_i − mean A) (log π_old(y_it) − mean log π_old)
    L      = −(1/N) Σ_i Σ_t 1[not dropped] min(r_it A_i, clip(r_it) A_i)

Of the tokens with cov in (cov_low, cov_high), ⌊fraction · N⌋, at least one, are
dropped at random; all of them if there are fewer. N counts dropped tokens, too.
Deviation: the covariance is that of the anchor and of the whole batch, and the
draw is made once per step; verl uses the current policy in every minibatch. The
draw depends on the row's place in the batch.

Source: Cui et al., "The Entropy Mechanism of Reinforcement Learning for
Reasoning Language Models", arXiv:2505.22617, Section 4.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, surrogates
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipCovConfig(ClipConfig):
  """Options of Clip-Cov: the choice of tokens that are dropped.

  Attributes:
    cov_low, cov_high: Bounds of the covariance of tokens that may be dropped.
    cov_fraction: Share of the trained tokens that are dropped.
  """

  advantage_scale: str = "group"
  cov_low: float = 1.0  # Section 4.3.
  cov_high: float = 5.0
  cov_fraction: float = 2e-4

  def __post_init__(self):
    super().__post_init__()
    if self.cov_low > self.cov_high:
      self.complain("cov_low", f"is above cov_high={self.cov_high}")


def prepare(config: ClipCovConfig, batch: TrainBatch) -> TrainBatch:
  dropped = surrogates.clip_cov_mask(
    surrogates.covariance(batch.advantages, batch.old_logp, batch.mask),
    batch.mask,
    batch.mask,  # At the anchor ratios are not clipped.
    config.cov_fraction,
    config.cov_low,
    config.cov_high,
    batch.key,
  )
  weight = jnp.where(dropped, 0.0, 1.0).astype(batch.old_logp.dtype)
  return dataclasses.replace(batch, policy_weight=weight)


CLIP_COV = Algorithm(
  name="clip_cov",
  config_class=ClipCovConfig,
  advantages=grpo.advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  prepare=prepare,
  needs=("old_logp", "anchor"),
  min_group_size=2,
)

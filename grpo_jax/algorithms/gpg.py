"""GPG: the plain policy gradient with group means (arXiv:2504.02546).

    A_i = α (R_i − mean_g R) / F,   α = B / #{i: R_i ≠ 0}
    L   = −(1/N) Σ_i Σ_t A_i log π_θ(y_it)

α compensates for rows without a reward, and F is a constant. There is no ratio:
use one update per batch. α is that of verl: the paper counts the groups that
have a signal.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import reinforce
from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, baselines
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPGConfig(CommonConfig):
  """Options of GPG: the constant F.

  Attributes:
    normalizer: F of the equation, which divides advantages; > 0.
  """

  normalizer: float = 1.0  # F.

  def __post_init__(self):
    super().__post_init__()
    if self.normalizer == 0:
      self.complain("normalizer", "divides and must be greater than 0")


def advantages(config: GPGConfig, batch: TrainBatch) -> jax.Array:  # [B]
  rewarded = (batch.valid & (batch.rewards != 0)).sum()
  alpha = jnp.where(
    rewarded > 0, batch.valid.sum() / jnp.maximum(rewarded, 1), 1.0
  )
  centered = baselines.group_centered(
    batch.rewards, batch.valid, batch.group_id, batch.num_groups
  )
  return alpha.astype(centered.dtype) * centered / config.normalizer


GPG = Algorithm(
  name="gpg",
  config_class=GPGConfig,
  advantages=advantages,
  policy_loss=reinforce.policy_loss,
  aggregate=aggregation.over_tokens,
  min_group_size=2,
)

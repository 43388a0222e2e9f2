"""GFPO: sample more completions, learn from the concise ones (2508.09726).

    S_g = the k completions of the group with the best metric
    A_i = 1[i ∈ S_g] (R_i − mean_S R) / (std_S R + eps)
    L   = −(1/N) Σ_i Σ_t min(r_it A_i, clip(r_it) A_i) + β KL_it − c H

The metric is the length (shortest first) or the reward per token ("efficiency",
largest first), ties by the order of rows. N counts the tokens of all
completions, also of those left out (Eq. 2), and the deviation is the
population's. The paper prints the KL against π_old; here it is that to the
reference. Its adaptive k is not part of this file.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, baselines
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GFPOConfig(ClipConfig):
  """Which completions are kept.

  Attributes:
    num_kept: Completions of a group that are learned from, at least 2.
    metric: Kept are the best by "length" (the shortest) or by "efficiency" (the
      largest reward per token).
  """

  num_kept: int = 8  # Section 4: k ≤ 8 of 8, 16 or 24.
  metric: str = "length"  # Or "efficiency".
  kl_coef: float = 1e-3  # Section 4.
  entropy_coef: float = 1e-3  # Section 4.
  scale_free = True  # Standardised here.

  def __post_init__(self):
    super().__post_init__()
    if self.metric not in ("length", "efficiency"):
      self.complain("metric", "is neither length nor efficiency")
    if self.num_kept < 2:
      self.complain("num_kept", "leaves nothing to compare; at least 2")


def advantages(config: GFPOConfig, batch: TrainBatch) -> jax.Array:  # [B]
  lengths = batch.completion_mask.sum(axis=-1).astype(batch.rewards.dtype)
  cost = lengths
  if config.metric == "efficiency":
    cost = -batch.rewards / jnp.maximum(lengths, 1)
  kept = batch.valid & (
    baselines.rank_in_group(cost, batch.valid, batch.group_id) < config.num_kept
  )
  return baselines.group_standardized(
    batch.rewards,
    kept,
    batch.group_id,
    batch.num_groups,
    ddof=0,
    eps=config.advantage_eps,
  )


GFPO = Algorithm(
  name="gfpo",
  config_class=GFPOConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("old_logp",),
  whole_completions=True,
  min_group_size=2,
)

"""EDGE-GRPO: confident rows count more, from arXiv:2507.21848."""

import numpy as np

from tests.references import common, grpo, two_grpo


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  behavior_entropy,  # [B, T]
  mask,  # [B, T] bool
  factor_min: float = 0.1,
  factor_max: float = 10.0,
  eps: float = 1e-6,
) -> np.ndarray:  # [B]
  """A_i clip(mean_batch H̄ / max(H̄_i, eps), factor_min, factor_max).

  A_i is that of GRPO, H̄_i the mean entropy of the row's tokens, and the mean
  of the batch is over the valid rows that have tokens; the others get 0.
  """
  base = grpo.advantages(rewards, valid, group_id)
  rows = [
    i
    for group in common.members(valid, group_id)
    for i in group
    if common.num_tokens(mask[i]) > 0
  ]
  row_entropy = {
    i: common.masked_mean(behavior_entropy[i], mask[i]) for i in rows
  }
  mean = sum(row_entropy.values()) / max(len(rows), 1)
  out = np.zeros(len(rewards))
  for i in rows:
    factor = mean / max(row_entropy[i], eps)
    out[i] = base[i] * max(factor_min, min(factor_max, factor))
  return out


# As GRPO, without divergence: clip 0.2, the mean of the rows' token means.
loss = two_grpo.loss

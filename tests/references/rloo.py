"""RLOO: leave-one-out baseline, whole-row ratio, from arXiv:2402.14740.

Its divergence is a part of the reward, hence kl_coef = 0 in the loss.
"""

import numpy as np

from tests.references import common


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
) -> np.ndarray:  # [B]
  """A_i = R_i − (1/(G − 1)) Σ_{j≠i} R_j over the group's valid rows.

  A lone row, a row that is not valid and equal rewards give exactly 0.
  """
  out = np.zeros(len(rewards))
  for rows in common.members(valid, group_id):
    values = [float(rewards[i]) for i in rows]
    if max(values) > min(values):
      others = [(sum(values) - x) / (len(rows) - 1) for x in values]
      out[rows] = np.subtract(values, others)
  return out


@common.with_kl_and_entropy(common.seq_mean_token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B]
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/S) Σ_i [−min(w_i A_i, clip(w_i) A_i) + β mean_t k3] − c · mean H."""

  def term(i: int) -> float:
    ratio = common.trajectory_ratio(
      logp[i], old_logp[i], mask[i], log_ratio_clamp
    )
    return -common.clipped_surrogate(
      ratio, advantages[i], clip_low, clip_high, dual_clip, ratio_cap
    )

  return common.row_mean(term, mask)

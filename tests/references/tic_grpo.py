"""TIC-GRPO: one ratio per trajectory, clipped above, from arXiv:2508.02833."""

import math

import numpy as np

from tests.references import common, grpo


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
  length_corrected: bool = False,
) -> np.ndarray:  # [B]
  """GRPO's advantages, of R_i / n_i with `length_corrected`."""
  values = np.zeros(len(rewards))
  for i in range(len(rewards)):
    if valid[i]:
      values[i] = float(rewards[i])
      if length_corrected:
        values[i] /= max(common.num_tokens(mask[i]), 1)
  return grpo.advantages(values, valid, group_id)


@common.with_kl_and_entropy(common.seq_mean_token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B]
  *,
  clip_high: float = 0.28,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/S) Σ_i [−min(w A, min(w, 1 + ε) A) + β mean_t k3] − c · mean H."""

  def term(i: int) -> float:
    ratio = common.trajectory_ratio(
      logp[i], old_logp[i], mask[i], log_ratio_clamp
    )
    return -common.clipped_surrogate(
      ratio, advantages[i], math.inf, clip_high, dual_clip, ratio_cap
    )

  return common.row_mean(term, mask)

"""GRPO with outcome rewards, from the equations of arXiv:2402.03300."""

import numpy as np

from tests.references import common


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  ddof: int = 1,
  eps: float = 1e-6,
  singleton: str = "zero",
) -> np.ndarray:  # [B]
  """A_i = (R_i − μ_g) / (σ_g + eps) over the valid rows of the group.

  Rows that are not valid get 0 and do not enter μ, σ. Equal rewards give
  exactly 0. A lone row gets 0, or its reward with singleton="raw".
  """
  out = np.zeros(len(rewards))
  for rows in common.members(valid, group_id):
    values = [float(rewards[i]) for i in rows]
    if len(rows) > 1 or singleton != "raw":
      values = common.standardized(values, ddof, eps)
    out[rows] = values
  return out


@common.with_kl_and_entropy(common.seq_mean_token_mean, kl_coef=0.04)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/S) Σ_i (1/n_i) Σ_t [−min(rA, clip(r) A) + β k3] − c · mean H."""
  terms = common.token_clip(
    *(logp, old_logp, mask, advantages),
    *(clip_low, clip_high, dual_clip, ratio_cap, log_ratio_clamp),
  )
  return common.seq_mean_token_mean(terms, mask)

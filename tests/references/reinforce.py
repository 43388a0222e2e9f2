"""REINFORCE: log-probability weighted by return (Williams, 1992)."""

import numpy as np

from tests.references import common


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int, not used
  *,
  baseline=None,  # number or [B]
) -> np.ndarray:  # [B]
  """A_i = R_i − b_i, without a baseline R_i; 0 where not valid."""
  del group_id
  return np.where(valid, rewards - (0 if baseline is None else baseline), 0.0)


@common.with_kl_and_entropy(common.seq_mean_token_sum)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T], not used
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  clip_low: float | None = None,  # not used: there is no ratio
  clip_high: float | None = None,  # not used
) -> float:
  """(1/S) Σ_i Σ_t [−A ℓ + β k3] − c · mean H."""
  del old_logp, clip_low, clip_high

  def term(i: int, t: int) -> float:
    return -common.advantage_at(advantages, i, t) * float(logp[i][t])

  return common.seq_mean_token_sum(common.per_token(term, mask), mask)

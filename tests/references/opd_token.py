"""On-policy distillation by the sampled token's log-probs .

The teacher is the frozen reference. Reverse KL of arXiv:2306.13649, estimated
on the sampled token and used as a reward without discount.
"""

import numpy as np

from tests.references import common, reinforce_pp


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  ref_logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  opd_clamp: float = 20.0,
) -> np.ndarray:  # [B, T]
  """A_it = clip(ℓ_teacher − ℓ_old, ±clamp); 0 where masked or not valid."""
  del rewards, group_id

  def term(i: int, t: int) -> float:
    if not valid[i]:
      return 0.0
    gap = float(ref_logp[i][t]) - float(old_logp[i][t])
    return common.clamp(gap, opd_clamp)

  return common.per_token(term, mask)


# (1/N) Σ_i Σ_t [clipped(r, A) + β k3] − c · mean H, clip 0.2 / 0.2.
loss = reinforce_pp.loss

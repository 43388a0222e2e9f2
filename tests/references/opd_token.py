"""On-policy distillation by the sampled token's log-probs .

The teacher is the frozen reference. Reverse KL of arXiv:2306.13649, estimated
on the sampled token and used as a reward without discount.
"""

import numpy as np

from tests.references import common, more_b


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


def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B, T]
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  ref_logp=None,  # [B, T]
  kl_coef: float = 0.0,
  entropy=None,  # [B, T]
  entropy_coef: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/N) Σ_i Σ_t [clipped(r, A) + β k3] − c · mean H."""
  return more_b.clipped_loss(
    common.token_mean,
    logp,
    old_logp,
    mask,
    advantages,
    clip_low=clip_low,
    clip_high=clip_high,
    dual_clip=dual_clip,
    ratio_cap=ratio_cap,
    ref_logp=ref_logp,
    kl_coef=kl_coef,
    entropy=entropy,
    entropy_coef=entropy_coef,
    log_ratio_clamp=log_ratio_clamp,
  )

"""Clip-Cov: some tokens of high covariance are dropped (arXiv:2505.22617)."""

import numpy as np

from tests.references import common, grpo, more_b

advantages = grpo.advantages


def candidates(
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  cov_low: float = 1.0,
  cov_high: float = 5.0,
) -> np.ndarray:  # [B, T] bool
  """The tokens with cov_low < cov < cov_high, among which some are dropped."""
  cov = more_b.covariance(old_logp, mask, advantages)
  out = np.zeros(np.shape(mask), bool)
  for i, t in np.ndindex(out.shape):
    out[i, t] = bool(mask[i][t]) and cov_low < cov[i, t] < cov_high
  return out


def num_dropped(
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  cov_low: float = 1.0,
  cov_high: float = 5.0,
  cov_fraction: float = 2e-4,
) -> int:
  """max(1, ⌊fraction · N⌋), and no more than there are candidates."""
  among = candidates(old_logp, mask, advantages, cov_low, cov_high)
  return min(more_b.covariance_count(mask, cov_fraction), int(among.sum()))


def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  dropped=None,  # [B, T] bool, drawn among the candidates; None: none
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
  """(1/N) Σ_i Σ_t [(not dropped) clipped(r, A) + β k3] − c · mean H."""
  if dropped is None:
    dropped = np.zeros(np.shape(mask), bool)
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
    weight=lambda i, t: 0.0 if dropped[i][t] else 1.0,
  )

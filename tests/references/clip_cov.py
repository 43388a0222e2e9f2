"""Clip-Cov: some tokens of high covariance are dropped (arXiv:2505.22617)."""

import numpy as np

from tests.references import common, grpo

advantages = grpo.advantages


def candidates(
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  cov_low: float = 1.0,
  cov_high: float = 5.0,
) -> np.ndarray:  # [B, T] bool
  """The tokens with cov_low < cov < cov_high, among which some are dropped."""
  cov = common.covariance(old_logp, mask, advantages)
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
  return min(common.covariance_count(mask, cov_fraction), int(among.sum()))


@common.with_kl_and_entropy(common.token_mean)
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
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/N) Σ_i Σ_t [(not dropped) clipped(r, A) + β k3] − c · mean H."""
  terms = common.token_clip(
    *(logp, old_logp, mask, advantages),
    *(clip_low, clip_high, dual_clip, ratio_cap, log_ratio_clamp),
  )
  if dropped is not None:
    terms = np.where(dropped, 0.0, terms)
  return common.token_mean(terms, mask)

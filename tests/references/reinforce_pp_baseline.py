"""REINFORCE++ with group baseline and k2, from arXiv:2501.03262."""

import numpy as np

from tests.references import common, dr_grpo


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
  singleton: str = "zero",
) -> np.ndarray:  # [B, T]
  """R_i − μ_g on every trained token, whitened over those of valid rows.

  A lone row has μ_g = R_i, or μ_g = 0 with singleton="raw".
  """
  centred = dr_grpo.advantages(rewards, valid, group_id, singleton=singleton)
  keep = common.valid_tokens(mask, valid)
  spread = common.per_token(lambda i, t: centred[i], keep)
  return common.whiten(spread, keep)


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
  ref_logp=None,  # [B, T]
  kl_coef: float = 1e-3,
  entropy=None,  # [B, T]
  entropy_coef: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/N) Σ_i Σ_t [−min(rA, clip(r) A) + β k2] − c · mean H."""
  terms = common.token_clip(
    *(logp, old_logp, mask, advantages),
    *(clip_low, clip_high, dual_clip, ratio_cap, log_ratio_clamp),
  )
  return common.token_mean(terms, mask) + common.kl_and_entropy(
    *(common.token_mean, logp, mask, ref_logp, kl_coef, entropy, entropy_coef),
    log_ratio_clamp,
    lambda logp, ref_logp, _: common.kl_k2(logp, ref_logp),
  )

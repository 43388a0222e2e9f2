"""SPO: one completion per prompt against a tracked baseline (2509.13232)."""

import math

import numpy as np

from tests.references import common, more_a


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int, not used
  *,
  expected,  # [B]
) -> np.ndarray:  # [B]
  """R_i − φ_i minus its mean, over its sample deviation + 1e-8; 0: unscored."""
  del group_id
  rows = [i for i in range(len(rewards)) if valid[i]]
  gaps = {i: float(rewards[i]) - float(expected[i]) for i in rows}
  out = np.zeros(len(rewards))
  if len(rows) < 2:
    return out
  mean = sum(gaps.values()) / len(rows)
  squares = sum((gap - mean) ** 2 for gap in gaps.values())
  deviation = math.sqrt(squares / (len(rows) - 1))
  for i, gap in gaps.items():
    out[i] = (gap - mean) / (deviation + 1e-8)
  return out


def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  dual_clip: float = 10.0,
  ratio_cap: float = 0.0,
  ref_logp=None,  # [B, T]
  kl_coef: float = 0.0,
  entropy=None,  # [B, T]
  entropy_coef: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/N) Σ_i Σ_t [−min(rA, clip(r) A) + β k3] − c · mean H."""
  terms = more_a.token_clip(
    *(logp, old_logp, mask, advantages),
    *(clip_low, clip_high, dual_clip, ratio_cap, log_ratio_clamp),
  )
  return common.token_mean(terms, mask) + common.kl_and_entropy(
    common.token_mean,
    logp,
    mask,
    ref_logp,
    kl_coef,
    entropy,
    entropy_coef,
    log_ratio_clamp,
  )

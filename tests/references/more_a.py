"""Pieces that several of the further reference losses share.

Plain loops in float64, as in `common`; positions where a mask is False and
rows that are not valid are never read.

`frozen_logp` is what a stop_gradient sees: a loss that holds part of itself
constant reads that part from `frozen_logp`, which is `logp` unless given. Its
value is therefore that of the equation, and finite differences over `logp` at
fixed `frozen_logp` are its gradient.
"""

import math
from collections.abc import Callable

import numpy as np

from tests.references import common


def clipped(
  ratio: float,
  advantage: float,
  clip_low: float,
  clip_high: float,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
) -> float:
  """min(min(r, cap) A, clip(r) A), at least c A where A < 0: to be maximised.

  `dual_clip` c and `ratio_cap` are off when 0. The cap must exceed
  1 + clip_high, so that it does not touch the clipped branch.
  """
  if ratio_cap:
    ratio = min(ratio, ratio_cap)
  return common.clipped_surrogate(
    ratio, advantage, clip_low, clip_high, dual_clip or None
  )


def token_clip(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  clip_low: float,
  clip_high: float,
  dual_clip: float,
  ratio_cap: float,
  log_ratio_clamp: float | None,
) -> np.ndarray:  # [B, T]
  """Minus the clipped surrogate of every trained token's own ratio."""

  def term(i: int, t: int) -> float:
    ratio = common.token_ratio(logp[i][t], old_logp[i][t], log_ratio_clamp)
    advantage = common.advantage_at(advantages, i, t)
    return -clipped(ratio, advantage, clip_low, clip_high, dual_clip, ratio_cap)

  return common.per_token(term, mask)


def row_mean(
  term: Callable[[int], float],
  mask,  # [B, T]
) -> float:
  """(1/S) Σ_i term(i) over the S rows with tokens; 0 without any."""
  total = 0.0
  for i in range(len(mask)):
    if common.num_tokens(mask[i]) > 0:
      total += term(i)
  return total / max(common.num_rows(mask), 1)


def trajectory_ratio(
  logp,  # [T]
  old_logp,  # [T]
  mask,  # [T]
  log_ratio_clamp: float | None,
) -> float:
  """w = exp(Σ_t m (ℓ − ℓ_old)) of one row, the sum limited to ±clamp."""
  total = 0.0
  for t in range(len(mask)):
    if mask[t]:
      total += float(logp[t]) - float(old_logp[t])
  return math.exp(common.clamp(total, log_ratio_clamp))


def whiten(
  x,  # [B, T]
  mask,  # [B, T]
  eps: float = 1e-8,
) -> np.ndarray:  # [B, T]
  """(x − mean) / √(var + eps) over the mask, var with ddof 1; 0 elsewhere.

  Fewer than two entries, and equal entries, give exactly 0.
  """
  out = np.zeros(np.shape(mask))
  entries = []
  for row, keep in zip(x, mask, strict=True):
    entries += [float(v) for v, k in zip(row, keep, strict=True) if k]
  if len(entries) < 2 or max(entries) == min(entries):
    return out
  mean = sum(entries) / len(entries)
  variance = sum((v - mean) ** 2 for v in entries) / (len(entries) - 1)
  for i in range(len(mask)):
    for t in range(len(mask[i])):
      if mask[i][t]:
        out[i, t] = (float(x[i][t]) - mean) / math.sqrt(variance + eps)
  return out


def valid_tokens(mask, valid) -> np.ndarray:  # [B, T], [B] -> [B, T] bool
  """The mask without the rows that are not valid."""
  out = np.zeros(np.shape(mask), bool)
  for i in range(len(valid)):
    for t in range(np.shape(mask)[1]):
      out[i, t] = bool(mask[i][t]) and bool(valid[i])
  return out


def require_reference(kl_coef: float, ref_logp) -> None:
  """Raises ValueError if a divergence is asked for without its array."""
  if kl_coef and ref_logp is None:
    raise ValueError(
      f"reference loss: kl_coef is {kl_coef} but ref_logp is None; pass "
      "ref_logp [B, T] or kl_coef=0.0"
    )

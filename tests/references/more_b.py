"""Pieces that several of the references share beside those of `common`.

Plain loops in float64; positions where `mask` is False are never read.
"""

import math
from collections.abc import Callable

import numpy as np

from tests.references import common

# --- losses ------------------------------------------------------------------


def clipped_loss(
  aggregate: Callable[..., float],
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  clip_low: float,
  clip_high: float,
  dual_clip: float,  # 0: off
  ratio_cap: float,  # 0: off
  ref_logp,  # [B, T] or None
  kl_coef: float,
  entropy,  # [B, T] or None
  entropy_coef: float,
  log_ratio_clamp: float | None,
  weight: Callable[[int, int], float] | None = None,
) -> float:
  """aggregate(w · clipped + β k3) − c · mean H on token ratios."""

  def term(i: int, t: int) -> float:
    ratio = common.token_ratio(logp[i][t], old_logp[i][t], log_ratio_clamp)
    advantage = common.advantage_at(advantages, i, t)
    value = clipped(ratio, advantage, clip_low, clip_high, dual_clip, ratio_cap)
    return value if weight is None else weight(i, t) * value

  policy = aggregate(common.per_token(term, mask), mask)
  return policy + common.kl_and_entropy(
    aggregate,
    logp,
    mask,
    ref_logp,
    kl_coef,
    entropy,
    entropy_coef,
    log_ratio_clamp,
  )


def clipped(
  ratio: float,
  advantage: float,
  clip_low: float,
  clip_high: float,
  dual_clip: float,  # 0: off
  ratio_cap: float,  # 0: off
) -> float:
  """−min(min(r, cap) A, clip(r) A), at most −c A where A < 0: to minimise."""
  capped = min(ratio, ratio_cap) if ratio_cap else ratio
  limited = max(1.0 - clip_low, min(1.0 + clip_high, ratio))
  value = -min(capped * advantage, limited * advantage)
  if dual_clip and advantage < 0:
    value = min(value, -dual_clip * advantage)
  return value


def negative_log_sigmoid(x: float) -> float:
  """−log σ(x) = log(1 + e^{−x}), without overflow."""
  if x >= 0:
    return math.log1p(math.exp(-x))
  return -x + math.log1p(math.exp(x))


# --- statistics --------------------------------------------------------------


def standardized(values: list[float], ddof: int, eps: float) -> list[float]:
  """(x − μ) / (σ + eps); equal values and a lone value give exactly 0."""
  if len(values) <= 1 or max(values) == min(values):
    return [0.0] * len(values)
  mean = sum(values) / len(values)
  variance = sum((x - mean) ** 2 for x in values) / (len(values) - ddof)
  return [(x - mean) / (math.sqrt(variance) + eps) for x in values]


def members(valid, group_id) -> list[list[int]]:  # each [B]
  """The valid rows of every group, in row order."""
  groups: dict[int, list[int]] = {}
  for i in range(len(valid)):
    if valid[i]:
      groups.setdefault(int(group_id[i]), []).append(i)
  return list(groups.values())


def covariance(old_logp, mask, advantages) -> np.ndarray:  # [B, T]
  """(A − mean A) (ℓ_old − mean ℓ_old), means over tokens; 0 where masked."""
  all_advantages = common.per_token(
    lambda i, t: common.advantage_at(advantages, i, t), mask
  )
  mean_advantage = common.token_mean(all_advantages, mask)
  mean_logp = common.token_mean(old_logp, mask)
  return common.per_token(
    lambda i, t: (
      (all_advantages[i, t] - mean_advantage)
      * (float(old_logp[i][t]) - mean_logp)
    ),
    mask,
  )


def covariance_count(mask, cov_fraction: float) -> int:  # mask [B, T]
  """max(1, ⌊fraction · N⌋) tokens, and none of none."""
  total = sum(common.num_tokens(row) for row in mask)
  return min(total, max(1, math.floor(cov_fraction * total)))


# --- entropy-shaped rewards --------------------------------------------------


def shaped_rewards(
  entropies: list[float],
  correct: bool,
  alpha1: float,
  alpha2: float,
  eps: float,
) -> list[float]:
  """Shaped rewards of those rows of one group that are right, or wrong.

  Right: α1 + α2 d H_i / Σ_k H_k. Wrong: −α1 − α2 d (1/H_i) / Σ_k (1/H_k), with
  1/H read as 1/(H + eps). d is their number. If no right row has any entropy
  the shares are equal.
  """
  if correct:
    shares = entropies if sum(entropies) > 0 else [1.0] * len(entropies)
    sign = 1.0
  else:
    shares = [1.0 / (h + eps) for h in entropies]
    sign = -1.0
  total = sum(shares)
  return [
    sign * (alpha1 + alpha2 * len(shares) * share / total) for share in shares
  ]


def normalized(
  values: list[float], correct: list[bool], normalization: str, eps: float
) -> list[float]:
  """Standardises the values of one group (ddof 0) together or by side.

  Raises:
    ValueError: if normalization is not "joint", "split" or "none".
  """
  if normalization == "none":
    return list(values)
  if normalization == "joint":
    return standardized(values, 0, eps)
  if normalization != "split":
    raise ValueError(
      f"reference loss: normalization is {normalization!r}; pass 'joint', "
      "'split' or 'none'"
    )
  out = [0.0] * len(values)
  for side in (True, False):
    at = [j for j in range(len(values)) if bool(correct[j]) == side]
    scaled = standardized([values[j] for j in at], 0, eps)
    for j, value in zip(at, scaled, strict=True):
      out[j] = value
  return out


# --- pairs -------------------------------------------------------------------


def pairs(rewards, valid, group_id, mask) -> list[tuple[int, int]]:
  """(argmax R, argmin R) of every group where they differ; first on ties.

  Rows that are not valid or have no token are in no pair.
  """
  out = []
  for rows in members(valid, group_id):
    rows = [i for i in rows if common.num_tokens(mask[i]) > 0]
    if not rows:
      continue
    best = max(rows, key=lambda i: float(rewards[i]))
    worst = min(rows, key=lambda i: float(rewards[i]))
    if float(rewards[best]) > float(rewards[worst]):
      out.append((best, worst))
  return out


def pair_advantages(rewards, valid, group_id, mask) -> np.ndarray:  # [B]
  """+1 on the better row of each pair, −1 on the worse, 0 on the others."""
  out = np.zeros(len(rewards))
  for best, worst in pairs(rewards, valid, group_id, mask):
    out[best] = 1.0
    out[worst] = -1.0
  return out

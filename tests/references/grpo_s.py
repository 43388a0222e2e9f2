"""GRPO-S: rewards shaped by entropy per sequence, from arXiv:2508.04349."""

import numpy as np

from tests.references import common


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  behavior_entropy,  # [B, T]
  mask,  # [B, T] bool
  correct,  # [B] bool
  alpha1: float = 1.0,
  alpha2: float = 0.1,
  normalization: str = "joint",
  eps: float = 1e-6,
) -> np.ndarray:  # [B]
  """Shaped rewards by mean entropy, standardised in the group (ddof 0).

  Rows without tokens get 0 and enter no statistic.
  """
  out = np.zeros(len(rewards))
  for rows in common.members(valid, group_id):
    rows = [i for i in rows if common.num_tokens(mask[i]) > 0]
    for side in (True, False):
      same = [i for i in rows if bool(correct[i]) == side]
      entropies = [
        common.masked_mean(behavior_entropy[i], mask[i]) for i in same
      ]
      shaped = common.shaped_rewards(entropies, side, alpha1, alpha2, eps)
      for i, value in zip(same, shaped, strict=True):
        out[i] = value
    scaled = common.normalized(
      [out[i] for i in rows], [correct[i] for i in rows], normalization, eps
    )
    for i, value in zip(rows, scaled, strict=True):
      out[i] = value
  return out


@common.with_kl_and_entropy(common.seq_mean_token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B]
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/S) Σ_i [clipped(mean_t r, A_i) + β mean_t k3] − c · mean H."""
  policy = 0.0
  for i in range(len(mask)):
    n = common.num_tokens(mask[i])
    if n == 0:
      continue
    ratio = 0.0
    for t in range(len(mask[i])):
      if mask[i][t]:
        ratio += common.token_ratio(logp[i][t], old_logp[i][t], log_ratio_clamp)
    policy -= common.clipped_surrogate(
      ratio / n, float(advantages[i]), clip_low, clip_high, dual_clip, ratio_cap
    )
  policy /= max(common.num_rows(mask), 1)
  return policy

"""GMPO: the geometric mean of clipped ratios, from arXiv:2507.20673."""

import math

from tests.references import common, grpo

# As in GRPO.
advantages = grpo.advantages


@common.with_kl_and_entropy(common.seq_mean_token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B]
  *,
  clip_low: float = 0.4,  # of the log-ratio
  clip_high: float = 0.4,  # of the log-ratio
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/S) Σ_i [−A_i exp(mean_t y) + β mean_t k3] − c · mean H.

  y = min(Δ, clip(Δ, −ε_low, ε_high)) where A > 0, max where A < 0, with
  Δ = ℓ − ℓ_old.
  """

  def term(i: int) -> float:
    advantage = float(advantages[i])
    total = 0.0
    for t in range(len(mask[i])):
      if not mask[i][t]:
        continue
      delta = float(logp[i][t]) - float(old_logp[i][t])
      delta = common.clamp(delta, log_ratio_clamp)
      clipped = max(-clip_low, min(clip_high, delta))
      pick = min if advantage > 0 else max
      total += pick(delta, clipped)
    return -advantage * math.exp(total / common.num_tokens(mask[i]))

  return common.row_mean(term, mask)

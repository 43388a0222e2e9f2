"""GSPO-token: GSPO's ratio, one advantage per token, from arXiv:2507.18071."""

import math

from tests.references import common, grpo

# Equation 6 of the paper: as in GRPO.
advantages = grpo.advantages


@common.with_kl_and_entropy(common.seq_mean_token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  clip_low: float = 3e-4,
  clip_high: float = 4e-4,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  log_ratio_clamp: float | None = 10.0,
  frozen_logp=None,  # [B, T], see common
) -> float:
  """(1/S) Σ_i (1/n_i) Σ_t [−min(s A, clip(s) A) + β k3] − c · mean H.

  s_it = sg[s_i] π(y_t) / sg[π(y_t)], s_i the ratio of GSPO: the value of the
  row, the gradient of the token.
  """
  frozen = logp if frozen_logp is None else frozen_logp

  def term(i: int, t: int) -> float:
    log_ratio = sum(
      float(frozen[i][s]) - float(old_logp[i][s])
      for s in range(len(mask[i]))
      if mask[i][s]
    ) / common.num_tokens(mask[i])
    log_ratio += float(logp[i][t]) - float(frozen[i][t])
    ratio = math.exp(common.clamp(log_ratio, log_ratio_clamp))
    advantage = common.advantage_at(advantages, i, t)
    return -common.clipped_surrogate(
      ratio, advantage, clip_low, clip_high, dual_clip, ratio_cap
    )

  return common.seq_mean_token_mean(common.per_token(term, mask), mask)

"""GRPO as in DeepSeek-V3.2: no σ, sequence mask, unbiased divergence.

From arXiv:2512.02556. Keeping the routing and the sampling mask belongs to
the model, not to the loss.
"""

import math

from tests.references import common, dr_grpo

# R − μ_g without the standard deviation: as in Dr. GRPO.
advantages = dr_grpo.advantages


def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  behavior_logp=None,  # [B, T], old_logp when not given
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  off_policy_threshold: float = 0.5,
  ref_logp=None,  # [B, T]
  kl_coef: float = 0.001,
  entropy=None,  # [B, T]
  entropy_coef: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/S) Σ_i (1/n_i) Σ_t [−M min(rA, clip(r) A) + β r k3] − c · mean H.

  M = 0 iff A < 0 and mean_t(ℓ_behavior − ℓ) of the row exceeds the threshold;
  a token whose ℓ_behavior is NaN adds 0 to that mean. The divergence stays on
  every token.
  """
  behavior = old_logp if behavior_logp is None else behavior_logp
  terms = common.token_clip(
    *(logp, old_logp, mask, advantages),
    *(clip_low, clip_high, dual_clip, ratio_cap, log_ratio_clamp),
  )

  def term(i: int, t: int) -> float:
    drift = 0.0
    for s in range(len(mask[i])):
      if mask[i][s] and not math.isnan(behavior[i][s]):
        drift += float(behavior[i][s]) - float(logp[i][s])
    drift /= common.num_tokens(mask[i])
    negative = common.advantage_at(advantages, i, t) < 0
    return 0.0 if negative and drift > off_policy_threshold else terms[i, t]

  def weighted(kl, mask) -> float:
    ratio = common.per_token(
      lambda i, t: common.token_ratio(
        logp[i][t], old_logp[i][t], log_ratio_clamp
      ),
      mask,
    )
    return common.seq_mean_token_mean(ratio * kl, mask)

  policy = common.seq_mean_token_mean(common.per_token(term, mask), mask)
  return policy + common.kl_and_entropy(
    *(weighted, logp, mask, ref_logp, kl_coef, entropy, entropy_coef),
    log_ratio_clamp,
  )

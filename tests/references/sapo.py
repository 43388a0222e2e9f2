"""SAPO: a sigmoid gate in place of the clip, from arXiv:2511.20347."""

import math

from tests.references import common, grpo

# As in GRPO.
advantages = grpo.advantages


@common.with_kl_and_entropy(common.seq_mean_token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  tau_positive: float = 1.0,
  tau_negative: float = 1.05,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/S) Σ_i (1/n_i) Σ_t [−A (4/τ) σ(τ (r − 1)) + β k3] − c · mean H.

  τ is `tau_positive` where A > 0, `tau_negative` elsewhere.
  """

  def term(i: int, t: int) -> float:
    ratio = common.token_ratio(logp[i][t], old_logp[i][t], log_ratio_clamp)
    advantage = common.advantage_at(advantages, i, t)
    tau = tau_positive if advantage > 0 else tau_negative
    gate = 1.0 / (1.0 + math.exp(-tau * (ratio - 1.0)))
    return -advantage * (4.0 / tau) * gate

  return common.seq_mean_token_mean(common.per_token(term, mask), mask)

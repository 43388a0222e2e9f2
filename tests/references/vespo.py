"""VESPO: a soft weight of the trajectory ratio, from arXiv:2602.10693."""

import math

from tests.references import common, grpo

# As in GRPO.
advantages = grpo.advantages

# Limits of the trajectory's log-ratio.
LOG_MIN, LOG_MAX = math.log(1e-8), 20.0


@common.with_kl_and_entropy(common.token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  k_positive: float = 2.0,
  lambda_positive: float = 3.0,
  k_negative: float = 3.0,
  lambda_negative: float = 2.0,
  log_ratio_clamp: float | None = 20.0,
  frozen_logp=None,  # [B, T], see common
) -> float:
  """(1/N) Σ_i Σ_t [−sg[φ(w_i)] A ℓ + β k3] − c · mean H.

  w_i = exp(Σ_t m Δ) and φ(w) = exp(λ + k log w − λ w), with (k, λ) by the sign
  of A; A = 0 counts as positive.
  """
  frozen = logp if frozen_logp is None else frozen_logp

  def term(i: int, t: int) -> float:
    log_w = 0.0
    for s in range(len(mask[i])):
      if mask[i][s]:
        delta = float(frozen[i][s]) - float(old_logp[i][s])
        log_w += common.clamp(delta, log_ratio_clamp)
    log_w = max(LOG_MIN, min(LOG_MAX, log_w))
    advantage = common.advantage_at(advantages, i, t)
    k, lam = k_positive, lambda_positive
    if advantage < 0:
      k, lam = k_negative, lambda_negative
    phi = math.exp(lam + k * log_w - lam * math.exp(log_w))
    return -phi * advantage * float(logp[i][t])

  return common.token_mean(common.per_token(term, mask), mask)

"""CISPO: clipped weights, every token keeps its gradient (arXiv:2506.13585)."""

from tests.references import common, grpo

# As in GRPO.
advantages = grpo.advantages


@common.with_kl_and_entropy(common.token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  ratio_min: float = 0.0,
  ratio_max: float = 5.0,
  log_ratio_clamp: float | None = 20.0,
  frozen_logp=None,  # [B, T], see common
) -> float:
  """(1/N) Σ_i Σ_t [−sg[clip(r, min, max)] A ℓ + β k3] − c · mean H."""
  frozen = logp if frozen_logp is None else frozen_logp

  def term(i: int, t: int) -> float:
    ratio = common.token_ratio(frozen[i][t], old_logp[i][t], log_ratio_clamp)
    weight = max(ratio_min, min(ratio_max, ratio))
    return -weight * common.advantage_at(advantages, i, t) * float(logp[i][t])

  return common.token_mean(common.per_token(term, mask), mask)

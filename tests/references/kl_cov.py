"""KL-Cov: tokens of top covariance are held back, from arXiv:2505.22617."""

import numpy as np

from tests.references import common, grpo

advantages = grpo.advantages


def chosen(
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  cov_fraction: float = 2e-4,
) -> np.ndarray:  # [B, T] bool
  """The max(1, ⌊fraction · N⌋) tokens of top covariance, first on ties."""
  cov = common.covariance(old_logp, mask, advantages)
  out = np.zeros(np.shape(mask), bool)
  tokens = [at for at in np.ndindex(out.shape) if mask[at[0]][at[1]]]
  tokens.sort(key=lambda at: -cov[at])
  for at in tokens[: common.covariance_count(mask, cov_fraction)]:
    out[at] = True
  return out


@common.with_kl_and_entropy(common.token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  cov_fraction: float = 2e-4,
  cov_kl_coef: float = 1.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/N) Σ_i Σ_t [−A r + (chosen) κ |ℓ − ℓ_old| + β k3] − c · mean H."""
  held = chosen(old_logp, mask, advantages, cov_fraction)

  def term(i: int, t: int) -> float:
    ratio = common.token_ratio(logp[i][t], old_logp[i][t], log_ratio_clamp)
    value = -common.advantage_at(advantages, i, t) * ratio
    if held[i, t]:
      value += cov_kl_coef * abs(float(logp[i][t]) - float(old_logp[i][t]))
    return value

  return common.token_mean(common.per_token(term, mask), mask)

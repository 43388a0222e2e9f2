"""λ-GRPO: a learned preference for length, from arXiv:2510.06870."""

import math

from tests.references import common, grpo

advantages = grpo.advantages


def length_weights(
  mask,  # [B, T] bool
  group_id,  # [B] int
  lam: float,
  *,
  rho: float = 1 / 9,
  h_min: float = 1e-3,
  eps: float = 1e-6,
) -> list[float]:  # [B]
  """f_i = G softmax_i(h_i^λ), h = max(1 + ρ z, h_min), z = (n − μ)/(σ + eps).

  Statistics (ddof 0), softmax and G are over the rows of a group that have
  tokens; the other rows get 0.
  """
  out = [0.0] * len(mask)
  present = [common.num_tokens(row) > 0 for row in mask]
  for rows in common.members(present, group_id):
    lengths = [float(common.num_tokens(mask[i])) for i in rows]
    z = common.standardized(lengths, 0, eps)
    power = [max(1.0 + rho * x, h_min) ** float(lam) for x in z]
    total = sum(math.exp(p - max(power)) for p in power)
    for i, p in zip(rows, power, strict=True):
      out[i] = len(rows) * math.exp(p - max(power)) / total
  return out


@common.with_kl_and_entropy(common.token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  group_id,  # [B] int
  lam: float = 0.0,  # [], learned
  rho: float = 1 / 9,
  h_min: float = 1e-3,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/N) Σ_i Σ_t [f_i clipped(r, A) + β k3] − c · mean H."""
  terms = common.token_clip(
    *(logp, old_logp, mask, advantages),
    *(clip_low, clip_high, dual_clip, ratio_cap, log_ratio_clamp),
  )
  f = length_weights(mask, group_id, lam, rho=rho, h_min=h_min)
  return common.token_mean([f[i] * row for i, row in enumerate(terms)], mask)

"""GSPO: ratio and clip per sequence, from arXiv:2507.18071."""

from tests.references import common, grpo

# Equation 6 of the paper: as in GRPO.
advantages = grpo.advantages


@common.with_kl_and_entropy(common.seq_mean_token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B]
  *,
  clip_low: float = 3e-4,
  clip_high: float = 4e-4,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/S) Σ_i [−min(s_i A_i, clip(s_i) A_i) + β mean_t k3] − c · mean H."""
  policy = 0.0
  for i in range(len(mask)):
    if common.num_tokens(mask[i]) == 0:
      continue
    ratio = common.sequence_ratio(
      logp[i], old_logp[i], mask[i], log_ratio_clamp
    )
    policy -= common.clipped_surrogate(
      ratio, advantages[i], clip_low, clip_high
    )
  policy /= max(common.num_rows(mask), 1)
  return policy

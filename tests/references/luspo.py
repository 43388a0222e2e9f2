"""LUSPO: GSPO with rows weighted by their length, from arXiv:2602.05261."""

from tests.references import common, grpo

# As in GRPO.
advantages = grpo.advantages


@common.with_kl_and_entropy(common.seq_mean_token_sum)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B]
  *,
  clip_low: float = 0.002,
  clip_high: float = 0.0025,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  log_ratio_clamp: float | None = 10.0,
) -> float:
  """(1/S) Σ_i [−n_i min(s_i A_i, clip(s_i) A_i) + β Σ_t k3] − c · mean H."""

  def term(i: int) -> float:
    ratio = common.sequence_ratio(
      logp[i], old_logp[i], mask[i], log_ratio_clamp
    )
    return -common.num_tokens(mask[i]) * common.clipped_surrogate(
      ratio, advantages[i], clip_low, clip_high, dual_clip, ratio_cap
    )

  return common.row_mean(term, mask)

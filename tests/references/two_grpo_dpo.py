"""2-GRPO plus DPO on the same pairs (arXiv:2510.00977, arXiv:2305.18290)."""

from tests.references import common, dpo, grpo

advantages = grpo.advantages


@common.with_kl_and_entropy(common.seq_mean_token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  ref_logp,  # [B, T]
  beta: float = 0.1,
  dpo_coef: float = 0.1,
  kind: str = "sigmoid",
  label_smoothing: float = 0.0,
  f_divergence: str = "reverse_kl",
  length_normalized: bool = False,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """The loss of 2-GRPO + dpo_coef · mean over pairs of −log σ(β d)."""
  terms = common.token_clip(
    *(logp, old_logp, mask, advantages),
    *(clip_low, clip_high, dual_clip, ratio_cap, log_ratio_clamp),
  )
  return common.seq_mean_token_mean(terms, mask) + dpo_coef * dpo.pair_loss(
    *(logp, ref_logp, mask, rewards, valid, group_id, beta),
    *(kind, label_smoothing, f_divergence, length_normalized),
  )

"""2-GRPO: GRPO with two completions per prompt, from arXiv:2510.00977."""

from tests.references import common, grpo, more_b

# Two different rewards give ±1/√2 (ddof 1), whatever lies between them.
advantages = grpo.advantages


def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  ref_logp=None,  # [B, T]
  kl_coef: float = 0.0,
  entropy=None,  # [B, T]
  entropy_coef: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/S) Σ_i (1/n_i) Σ_t [clipped(r, A) + β k3] − c · mean H."""
  return more_b.clipped_loss(
    common.seq_mean_token_mean,
    logp,
    old_logp,
    mask,
    advantages,
    clip_low=clip_low,
    clip_high=clip_high,
    dual_clip=dual_clip,
    ratio_cap=ratio_cap,
    ref_logp=ref_logp,
    kl_coef=kl_coef,
    entropy=entropy,
    entropy_coef=entropy_coef,
    log_ratio_clamp=log_ratio_clamp,
  )

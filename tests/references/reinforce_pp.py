"""REINFORCE++: returns whitened over the batch, from arXiv:2501.03262."""

import numpy as np

from tests.references import common, more_a


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int, not used
  *,
  mask,  # [B, T] bool
  token_rewards=None,  # [B, T]
  gamma: float = 1.0,
) -> np.ndarray:  # [B, T]
  """Return-to-go of the token rewards and R at the last token, whitened.

  G_t = r_t + γ G_t⁺ with t⁺ the next *trained* token, so a hole in the mask
  neither cuts nor discounts. Mean and variance are over the trained tokens of
  the valid rows; elsewhere 0.
  """
  del group_id
  keep = more_a.valid_tokens(mask, valid)
  returns = np.zeros(np.shape(mask))
  for i in range(len(mask)):
    later = None
    for t in reversed(range(len(mask[i]))):
      if not keep[i, t]:
        continue
      reward = 0.0 if token_rewards is None else float(token_rewards[i][t])
      if later is None:  # the last trained token
        later = reward + float(rewards[i])
      else:
        later = reward + gamma * later
      returns[i, t] = later
  return more_a.whiten(returns, keep)


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
  """(1/N) Σ_i Σ_t [−min(rA, clip(r) A) + β k3] − c · mean H."""
  terms = more_a.token_clip(
    logp,
    old_logp,
    mask,
    advantages,
    clip_low,
    clip_high,
    dual_clip,
    ratio_cap,
    log_ratio_clamp,
  )
  policy = common.token_mean(terms, mask)
  return policy + common.kl_and_entropy(
    common.token_mean,
    logp,
    mask,
    ref_logp,
    kl_coef,
    entropy,
    entropy_coef,
    log_ratio_clamp,
  )

"""DPO on the best and the worst row of each group, from arXiv:2305.18290."""

import numpy as np

from tests.references import common, more_b


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
) -> np.ndarray:  # [B]
  """+1 for the chosen row of each pair, −1 for the rejected, 0 otherwise."""
  return more_b.pair_advantages(rewards, valid, group_id, mask)


def pair_loss(
  logp, ref_logp, mask, rewards, valid, group_id, beta: float
) -> float:
  """Mean over pairs of −log σ(β [x_chosen − x_rejected]), x = Σ_t (ℓ − ℓ_ref).

  0 without pairs.
  """

  def score(i: int) -> float:
    return common.masked_sum(logp[i], mask[i]) - common.masked_sum(
      ref_logp[i], mask[i]
    )

  pairs = more_b.pairs(rewards, valid, group_id, mask)
  total = 0.0
  for best, worst in pairs:
    total += more_b.negative_log_sigmoid(beta * (score(best) - score(worst)))
  return total / max(len(pairs), 1)


def loss(
  logp,  # [B, T]
  old_logp,  # [B, T], not used
  mask,  # [B, T] bool
  advantages,  # [B], not used: the pairs come from the rewards
  *,
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  ref_logp,  # [B, T]
  beta: float = 0.1,
  kl_coef: float = 0.0,
  entropy=None,  # [B, T]
  entropy_coef: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """Mean over pairs of −log σ(β d) + β_kl · token mean k3 − c · mean H."""
  del old_logp, advantages
  policy = pair_loss(logp, ref_logp, mask, rewards, valid, group_id, beta)
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

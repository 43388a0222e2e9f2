"""Supervised fine-tuning: mean negative log-likelihood per token."""

import numpy as np

from tests.references import common


def advantages(rewards, valid, group_id) -> np.ndarray:  # each [B] -> [B]
  """1 on valid rows, 0 elsewhere; `loss` does not read it."""
  del rewards, group_id
  return np.array(valid, float)


@common.with_kl_and_entropy(common.token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T], not used
  mask,  # [B, T] bool
  advantages,  # [B], not used: every demonstration counts the same
  *,
  clip_low: float | None = None,  # not used: there is no ratio
  clip_high: float | None = None,  # not used
) -> float:
  """(1/N) Σ_i Σ_t [−ℓ + β k3] − c · mean H."""
  del old_logp, advantages, clip_low, clip_high
  return common.token_mean(
    common.per_token(lambda i, t: -float(logp[i][t]), mask), mask
  )

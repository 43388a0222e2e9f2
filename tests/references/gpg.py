"""GPG: rescaled centred rewards without a ratio, from arXiv:2504.02546."""

import numpy as np

from tests.references import common, dr_grpo


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  normalizer: float = 1.0,
) -> np.ndarray:  # [B]
  """A_i = α (R_i − μ_g) / normalizer, α = #valid / #{valid, R ≠ 0}.

  α is over the whole batch, and 1 when every reward is 0.
  """
  num_valid = sum(1 for ok in valid if ok)
  nonzero = sum(
    1 for r, ok in zip(rewards, valid, strict=True) if ok and float(r) != 0.0
  )
  alpha = num_valid / nonzero if nonzero else 1.0
  return alpha * dr_grpo.advantages(rewards, valid, group_id) / normalizer


@common.with_kl_and_entropy(common.token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T], not used
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
) -> float:
  """(1/N) Σ_i Σ_t [−A ℓ + β k3] − c · mean H."""
  del old_logp

  def term(i: int, t: int) -> float:
    return -common.advantage_at(advantages, i, t) * float(logp[i][t])

  return common.token_mean(common.per_token(term, mask), mask)

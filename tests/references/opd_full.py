"""On-policy distillation over the whole vocabulary, arXiv:2306.13649."""

import numpy as np

from tests.references import common


def advantages(rewards, valid, group_id) -> np.ndarray:  # each [B] -> [B]
  """1 on valid rows, 0 elsewhere; `loss` does not read it."""
  del rewards, group_id
  return np.array(valid, float)


@common.with_kl_and_entropy(common.token_mean)
def loss(
  logp,  # [B, T], read by the divergence from the reference only
  old_logp,  # [B, T], not used
  mask,  # [B, T] bool
  advantages,  # [B], not used
  *,
  ref_kl,  # [B, T], KL(student ‖ teacher) of the next token
) -> float:
  """(1/N) Σ_i Σ_t [KL(π ‖ π_teacher) + β k3] − c · mean H."""
  del old_logp, advantages
  return common.token_mean(ref_kl, mask)

"""CompactionRL of rollouts with one context, arXiv:2607.05378: PPO's.

What several contexts mean is in tests/ops/returns_test.py, by hand.
"""

import functools

import numpy as np

from tests.references import common, ppo, vc_ppo

# VAPO's, with another α.
advantages = functools.partial(ppo.advantages, length_adaptive_alpha=1.5)


# As in VC-PPO.
returns = vc_ppo.returns


@common.with_kl_and_entropy(common.token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  values,  # [B, T]
  old_values,  # [B, T]
  returns,  # [B, T]
  value_clip: float = 0.0,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  weight: str = "token",
) -> float:
  """PPO's, in which a context of n tokens weighs n, or as much as any other.

  The surrogate of w A, w > 0, is w times that of A.
  """
  scaled = np.array(advantages, float)
  if weight == "context":
    sizes = [common.num_tokens(row) for row in mask]
    mean = sum(sizes) / common.num_rows(mask)
    for i, size in enumerate(sizes):
      if size:
        scaled[i] *= mean / size
  return ppo.loss(
    *(logp, old_logp, mask, scaled),
    values=values,
    old_values=old_values,
    returns=returns,
    value_clip=value_clip,
    clip_low=clip_low,
    clip_high=clip_high,
  )

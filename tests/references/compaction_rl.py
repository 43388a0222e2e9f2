"""CompactionRL of rollouts with one context, arXiv:2607.05378: PPO's.

What several contexts mean is in tests/ops/returns_test.py, by hand.
"""

import numpy as np

from tests.references import common, ppo, vapo, vc_ppo


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
  old_values,  # [B, T]
  token_rewards=None,  # [B, T]
  length_adaptive_alpha: float = 1.5,
):  # [B, T]
  """VAPO's, with another α."""
  return vapo.advantages(
    rewards,
    valid,
    group_id,
    mask=mask,
    old_values=old_values,
    token_rewards=token_rewards,
    length_adaptive_alpha=length_adaptive_alpha,
  )


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

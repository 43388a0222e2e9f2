"""VAPO: PPO with a λ for each length, arXiv:2504.05118."""

import numpy as np

from tests.references import common, ppo, vc_ppo


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
  old_values,  # [B, T]
  token_rewards=None,  # [B, T]
  length_adaptive_alpha: float = 0.05,
):  # [B, T]
  """Whitened advantages with λ_i = clip(1 − 1/(α n_i), 0, 1)."""
  return ppo.advantages(
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
  correct,  # [B] bool
  positive_nll_coef: float = 0.1,
  values,  # [B, T]
  old_values,  # [B, T]
  returns,  # [B, T]
  value_clip: float = 0.2,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
) -> float:
  """PPO's, plus μ times the mean of −log π over tokens of right answers."""
  right = np.asarray(mask) & np.asarray(correct)[:, None]
  imitation = common.token_mean(-np.where(right, logp, 0.0), right)
  return positive_nll_coef * imitation + ppo.loss(
    *(logp, old_logp, mask, advantages),
    values=values,
    old_values=old_values,
    returns=returns,
    value_clip=value_clip,
    clip_low=clip_low,
    clip_high=clip_high,
  )

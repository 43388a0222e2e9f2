"""VAPO: PPO with a λ for each length, arXiv:2504.05118."""

import functools

import numpy as np

from tests.references import common, ppo, vc_ppo

# λ_i = clip(1 − 1/(α n_i), 0, 1).
advantages = functools.partial(ppo.advantages, length_adaptive_alpha=0.05)


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

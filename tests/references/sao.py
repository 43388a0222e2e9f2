"""SAO: a critic, single completions and a band of ratios, arXiv:2607.07508."""

import math

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
  length_adaptive_alpha: float = 1.5,
  gamma: float = 1.0,
) -> np.ndarray:  # [B, T]
  """Â with λ_i = 1 − 1/(α n_i), at least 0; not whitened."""
  del group_id
  lengths = [max(common.num_tokens(row), 1) for row in mask]
  lams = [max(0.0, 1.0 - 1.0 / (length_adaptive_alpha * n)) for n in lengths]
  return ppo.gae(rewards, valid, mask, old_values, token_rewards, gamma, lams)


# As in VC-PPO.
returns = vc_ppo.returns


@common.with_kl_and_entropy(common.token_mean)
def loss(
  logp,  # [B, T]
  behavior_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  values,  # [B, T]
  returns,  # [B, T]
  frozen_logp=None,  # [B, T]
  clip_low: float = 0.3,
  clip_high: float = 5.0,
) -> float:
  """−mean f(r) A log π with a constant f(r), plus the squared value error.

  f(r) = r where 1 − ε_low < r < 1 + ε_high, else 0.
  """
  frozen_logp = logp if frozen_logp is None else frozen_logp

  def token(i: int, t: int) -> float:
    ratio = math.exp(float(frozen_logp[i][t]) - float(behavior_logp[i][t]))
    if not 1 - clip_low < ratio < 1 + clip_high:
      ratio = 0.0
    return -ratio * common.advantage_at(advantages, i, t) * float(logp[i][t])

  def error(i: int, t: int) -> float:
    return 0.5 * (float(values[i][t]) - float(returns[i][t])) ** 2

  total = common.token_mean(common.per_token(token, mask), mask)
  total += common.token_mean(common.per_token(error, mask), mask)
  return total

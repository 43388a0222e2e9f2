"""PPO with a critic: arXiv:1707.06347; advantages of arXiv:1506.02438."""

import numpy as np

from tests.references import common


def gae(
  rewards, valid, mask, values, token_rewards, gamma, lam, beyond=None
) -> np.ndarray:
  """Â_t = δ_t + γ λ_i Â_{t⁺}, δ_t = r_t + γ V_{t⁺} − V_t; 0 where masked.

  t⁺ is the next trained token; beyond the last one Â is 0, and V is that of
  `beyond` [B], or 0. The reward of the row is paid at its last trained token.
  lam is [B].
  """
  out = np.zeros(np.shape(mask))
  for i in range(len(rewards)):
    next_value = 0.0 if beyond is None else float(beyond[i])
    next_advantage = 0.0
    reward = float(rewards[i]) if valid[i] else 0.0
    for t in reversed(range(len(mask[i]))):
      if not (valid[i] and mask[i][t]):
        continue
      if token_rewards is not None:
        reward += float(token_rewards[i][t])
      delta = reward + gamma * next_value - float(values[i][t])
      next_advantage = delta + gamma * float(lam[i]) * next_advantage
      next_value = float(values[i][t])
      out[i, t] = next_advantage
      reward = 0.0
  return out


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
  old_values,  # [B, T]
  token_rewards=None,  # [B, T]
  gamma: float = 1.0,
  lam: float = 0.95,
  length_adaptive_alpha: float = 0.0,
) -> np.ndarray:  # [B, T]
  """(Â − mean) / √(var + 1e-8) over all trained tokens, ddof 1.

  With α = length_adaptive_alpha > 0, λ_i = clip(1 − 1/(α n_i), 0, 1). With one
  token or none everything is 0.
  """
  del group_id
  lams = [lam] * len(rewards)
  if length_adaptive_alpha:
    for i in range(len(rewards)):
      length = max(common.num_tokens(mask[i]), 1)
      lams[i] = max(0.0, min(1.0, 1.0 - 1.0 / (length_adaptive_alpha * length)))
  raw = gae(rewards, valid, mask, old_values, token_rewards, gamma, lams)
  return common.whiten(raw, common.valid_tokens(mask, valid))


def returns(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
  old_values,  # [B, T]
  token_rewards=None,  # [B, T]
  gamma: float = 1.0,
  lam_critic: float = 0.95,
) -> np.ndarray:  # [B, T]
  """Â^{λ_critic}_t + V_t, what the critic learns; 0 where masked."""
  del group_id
  lams = [lam_critic] * len(rewards)
  out = gae(rewards, valid, mask, old_values, token_rewards, gamma, lams)
  return out + np.where(common.valid_tokens(mask, valid), old_values, 0.0)


def monte_carlo(rewards, valid, mask, token_rewards) -> np.ndarray:  # [B, T]
  """All rewards from each trained token on, undiscounted; 0 where masked."""
  out = np.zeros(np.shape(mask))
  for i, t in np.ndindex(out.shape):
    if valid[i] and mask[i][t]:
      out[i, t] = float(rewards[i])
      if token_rewards is not None:
        out[i, t] += common.masked_sum(token_rewards[i][t:], mask[i][t:])
  return out


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
  value_clip: float = 0.2,  # 0: not clipped
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/N) ΣΣ [clipped(r, Â) + β k3 + value error] − c · mean H.

  The value error is ½ max((v − R)², (clip(v, v_old ± c) − R)²).
  """

  def value_error(i: int, t: int) -> float:
    value, old = float(values[i][t]), float(old_values[i][t])
    error = (value - float(returns[i][t])) ** 2
    if value_clip:
      near = max(old - value_clip, min(old + value_clip, value))
      error = max(error, (near - float(returns[i][t])) ** 2)
    return 0.5 * error

  terms = common.token_clip(
    *(logp, old_logp, mask, advantages),
    *(clip_low, clip_high, dual_clip, ratio_cap, log_ratio_clamp),
  )
  return common.token_mean(terms + common.per_token(value_error, mask), mask)

"""VC-PPO: PPO with λ = 1 for the critic's targets, arXiv:2503.01491."""

from tests.references import ppo


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
  old_values,  # [B, T]
  token_rewards=None,  # [B, T]
  lam: float = 0.95,
):  # [B, T]
  """Whitened advantages with the policy's λ."""
  return ppo.advantages(
    rewards,
    valid,
    group_id,
    mask=mask,
    old_values=old_values,
    token_rewards=token_rewards,
    lam=lam,
  )


def returns(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
  token_rewards=None,  # [B, T]
  lam_critic: float = 1.0,
):  # [B, T]
  """The rewards from each trained token on: no value is in them."""
  assert lam_critic == 1
  return ppo.monte_carlo(rewards, valid, mask, token_rewards)


loss = ppo.loss

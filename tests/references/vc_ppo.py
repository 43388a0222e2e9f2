"""VC-PPO: PPO with λ = 1 for the critic's targets, arXiv:2503.01491."""

from tests.references import ppo

advantages = ppo.advantages


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

"""PPO plus DPO on the pairs of each group (arXiv:1707.06347, 2305.18290)."""

from tests.references import common, dpo, ppo

advantages = ppo.advantages
returns = ppo.returns


@common.with_kl_and_entropy(common.token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  values,  # [B, T]
  old_values,  # [B, T]
  returns,  # [B, T]
  ref_logp,  # [B, T]
  beta: float = 0.1,
  dpo_coef: float = 0.1,
  kind: str = "sigmoid",
  label_smoothing: float = 0.0,
  f_divergence: str = "reverse_kl",
  length_normalized: bool = False,
) -> float:
  """The loss of PPO + dpo_coef · mean over pairs of −log σ(β d)."""
  actor_and_critic = ppo.loss(
    *(logp, old_logp, mask, advantages),
    values=values,
    old_values=old_values,
    returns=returns,
  )
  return actor_and_critic + dpo_coef * dpo.pair_loss(
    *(logp, ref_logp, mask, rewards, valid, group_id, beta),
    *(kind, label_smoothing, f_divergence, length_normalized),
  )

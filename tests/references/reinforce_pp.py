"""REINFORCE++: returns whitened over the batch, from arXiv:2501.03262."""

import functools

import numpy as np

from tests.references import common, dapo


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int, not used
  *,
  mask,  # [B, T] bool
  token_rewards=None,  # [B, T]
  gamma: float = 1.0,
) -> np.ndarray:  # [B, T]
  """Return-to-go of the token rewards and R at the last token, whitened.

  G_t = r_t + γ G_t⁺ with t⁺ the next *trained* token, so a hole in the mask
  neither cuts nor discounts. Mean and variance are over the trained tokens of
  the valid rows; elsewhere 0.
  """
  del group_id
  keep = common.valid_tokens(mask, valid)
  returns = np.zeros(np.shape(mask))
  for i in range(len(mask)):
    later = None
    for t in reversed(range(len(mask[i]))):
      if not keep[i, t]:
        continue
      reward = 0.0 if token_rewards is None else float(token_rewards[i][t])
      if later is None:  # the last trained token
        later = reward + float(rewards[i])
      else:
        later = reward + gamma * later
      returns[i, t] = later
  return common.whiten(returns, keep)


# (1/N) Σ_i Σ_t [−min(rA, clip(r) A) + β k3] − c · mean H.
loss = functools.partial(dapo.loss, clip_high=0.2)

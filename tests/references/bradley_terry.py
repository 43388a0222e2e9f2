"""A reward model from pairs of preferences (Bradley and Terry, 1952)."""

import numpy as np

from tests.references import common


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
) -> np.ndarray:  # [B]
  """+1 for the better row of each pair, −1 for the worse, 0 otherwise."""
  return common.pair_advantages(rewards, valid, group_id, mask)


def loss(
  logp,  # [B, T], not used
  old_logp,  # [B, T], not used
  mask,  # [B, T] bool
  advantages,  # [B], not used: the pairs come from the rewards
  *,
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  values,  # [B, T]
  margin: float = 0.0,
  center_coef: float = 0.0,
) -> float:
  """Mean over pairs of −log σ(r_w − r_l − margin) + c (r_w + r_l)².

  The score r of a row is its value at the last trained token; 0 without pairs.
  """
  del logp, old_logp, advantages

  def score(i: int) -> float:
    last = max(t for t in range(len(mask[i])) if mask[i][t])
    return float(values[i][last])

  total = 0.0
  pairs = common.pairs(rewards, valid, group_id, mask)
  for best, worst in pairs:
    total += common.negative_log_sigmoid(score(best) - score(worst) - margin)
    total += center_coef * (score(best) + score(worst)) ** 2
  return total / max(len(pairs), 1)

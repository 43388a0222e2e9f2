"""Pass@k advantages: only the best of a group, from arXiv:2503.19595."""

import numpy as np

from tests.references import common, reinforce_pp


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
) -> np.ndarray:  # [B]
  """The best of a group gets R_(1) − R_(2), its lead over the second; others 0.

  A tie for the best gives 0, a lone row and a row that is not valid too.
  """
  out = np.zeros(len(rewards))
  for rows in common.members(valid, group_id):
    if len(rows) > 1:
      first, second = sorted(rows, key=lambda i: -float(rewards[i]))[:2]
      out[first] = float(rewards[first]) - float(rewards[second])
  return out


# (1/N) Σ_i Σ_t [−min(rA, clip(r) A) + β k3] − c · mean H, clip 0.2 / 0.2.
loss = reinforce_pp.loss

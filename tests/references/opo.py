"""OPO: the length-weighted baseline of a group, from arXiv:2505.23585."""

import numpy as np

from tests.references import common, reinforce


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
) -> np.ndarray:  # [B]
  """A_i = R_i − Σ_j n_j R_j / Σ_j n_j over the valid rows of the group.

  Equal rewards of the rows with tokens give those rows exactly 0. In a group
  without tokens the baseline is 0. Rows that are not valid get 0.
  """
  out = np.zeros(len(rewards))
  for i in range(len(rewards)):
    if not valid[i]:
      continue
    weighted = []
    for j in range(len(rewards)):
      if valid[j] and group_id[j] == group_id[i]:
        n = common.num_tokens(mask[j])
        if n > 0:
          weighted.append((n, float(rewards[j])))
    if not weighted:
      baseline = 0.0
    elif len({reward for _, reward in weighted}) == 1:
      baseline = weighted[0][1]
    else:
      baseline = sum(n * r for n, r in weighted) / sum(n for n, _ in weighted)
    out[i] = float(rewards[i]) - baseline
  return out


# (1/S) Σ_i Σ_t [−A ℓ + β k3] − c · mean H: there is no ratio.
loss = reinforce.loss

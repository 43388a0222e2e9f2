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
  for rows in common.members(valid, group_id):
    lengths = {i: common.num_tokens(mask[i]) for i in rows}
    values = {float(rewards[i]) for i in rows if lengths[i]}
    baseline = values.pop() if len(values) == 1 else 0.0
    if values:
      total = sum(n * float(rewards[i]) for i, n in lengths.items())
      baseline = total / sum(lengths.values())
    for i in rows:
      out[i] = float(rewards[i]) - baseline
  return out


# (1/S) Σ_i Σ_t [−A ℓ + β k3] − c · mean H: there is no ratio.
loss = reinforce.loss

"""ReMax: the greedy completion as baseline, from arXiv:2310.10505."""

import numpy as np

from tests.references import reinforce


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int, not used
  *,
  greedy_rewards,  # [B]
) -> np.ndarray:  # [B]
  """A_i = R_i − R_i^greedy; 0 where not valid."""
  del group_id
  return np.where(valid, np.subtract(rewards, greedy_rewards), 0.0)


# (1/S) Σ_i Σ_t [−A ℓ + β k3] − c · mean H: there is no ratio.
loss = reinforce.loss

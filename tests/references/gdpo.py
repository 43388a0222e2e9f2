"""GDPO: MO-GRPO, then standardised over the batch, from arXiv:2601.05242."""

import numpy as np

from tests.references import common, mo_grpo, two_grpo


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  components,  # [B, K], NaN: not applicable
  component_weights=None,  # [K]; None: 1 each
  ddof: int = 1,
  eps: float = 1e-6,
  batch_eps: float = 1e-4,
) -> np.ndarray:  # [B]
  """(S_i − mean S) / (std S + batch_eps) over valid rows, S as in MO-GRPO."""
  sums = mo_grpo.advantages(
    *(rewards, valid, group_id),
    components=components,
    component_weights=component_weights,
    ddof=ddof,
    eps=eps,
  )
  rows = [i for i in range(len(rewards)) if valid[i]]
  sums[rows] = common.standardized(list(sums[rows]), ddof, batch_eps)
  return sums


# Clip 0.2, the mean of the rows' token means.
loss = two_grpo.loss

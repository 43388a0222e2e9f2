"""MO-GRPO: every objective standardised by itself, from arXiv:2509.22047."""

import math

import numpy as np

from tests.references import common, two_grpo


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  components,  # [B, K], NaN: not applicable
  component_weights=None,  # [K]; None: 1 each
  ddof: int = 1,
  eps: float = 1e-6,
) -> np.ndarray:  # [B]
  """A_i = Σ_k w_k (r_ik − μ_gk) / (σ_gk + eps).

  A component that does not apply to a row adds 0 to it and is not in μ, σ. A
  component that is equal in all its rows of a group, or has one, adds 0.
  """
  out = np.zeros(len(rewards))
  for rows in common.members(valid, group_id):
    for k in range(np.shape(components)[1]):
      weight = 1.0 if component_weights is None else component_weights[k]
      scored = [i for i in rows if not math.isnan(components[i][k])]
      values = [float(components[i][k]) for i in scored]
      out[scored] += float(weight) * np.array(
        common.standardized(values, ddof, eps)
      )
  return out


# As GRPO, without divergence: clip 0.2, the mean of the rows' token means.
loss = two_grpo.loss

"""GRPO with process supervision, from arXiv:2402.03300, section 4.1.3."""

import numpy as np

from tests.references import common, grpo


def advantages(
  rewards,  # [B], not used
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  step_rewards,  # [B, T]
  step_mask,  # [B, T] bool, the last token of each step
  mask,  # [B, T] bool
  ddof: int = 1,
  eps: float = 1e-6,
) -> np.ndarray:  # [B, T]
  """A_it = Σ_{steps ending at or after t} (ρ − μ_g) / (σ_g + eps).

  μ_g, σ_g are over all steps of the group's valid rows. Equal step rewards,
  and a group with a single step, give exactly 0.
  """
  out = np.zeros(np.shape(mask))
  for rows in common.members(valid, group_id):
    steps = [at for at in np.ndindex(out.shape) if at[0] in rows]
    steps = [at for at in steps if step_mask[at[0]][at[1]]]
    values = [float(step_rewards[i][t]) for i, t in steps]
    scaled = common.standardized(values, ddof, eps)
    for (i, end), value in zip(steps, scaled, strict=True):
      for t in range(end + 1):
        if mask[i][t]:
          out[i, t] += value
  return out


loss = grpo.loss

"""GRPO with process supervision, from arXiv:2402.03300, section 4.1.3."""

import math

import numpy as np

from tests.references import grpo


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
  for i in range(len(rewards)):
    if not valid[i]:
      continue
    steps = []
    for j in range(len(rewards)):
      if valid[j] and group_id[j] == group_id[i]:
        for rho, ends in zip(step_rewards[j], step_mask[j], strict=True):
          if ends:
            steps.append(float(rho))
    if len(steps) < 2 or max(steps) == min(steps):
      continue
    mean = sum(steps) / len(steps)
    variance = sum((rho - mean) ** 2 for rho in steps) / (len(steps) - ddof)
    later = 0.0
    for t in reversed(range(len(mask[i]))):
      if step_mask[i][t]:
        rho = float(step_rewards[i][t])
        later += (rho - mean) / (math.sqrt(variance) + eps)
      if mask[i][t]:
        out[i, t] = later
  return out


loss = grpo.loss

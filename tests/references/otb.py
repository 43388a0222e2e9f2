"""The optimal token baseline: rows weighted by their score's energy."""

import math

import numpy as np

from tests.references import common, reinforce_pp


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  old_logp,  # [B, T]
  sum_pi_squared,  # [B, T]
  mask,  # [B, T] bool
  zero_tail: bool = False,
  eps: float = 1e-8,
) -> np.ndarray:  # [B, T]
  """A_it = G_it − b_gt on the trained tokens of valid rows, 0 elsewhere.

      w_t = 1 − 2 π_old(y_t) + Σ_v π_v²,   W_t = Σ_{s≤t} m_s w_s
      b_gt = Σ_j m_jt W_jt G_jt / (Σ_j m_jt W_jt + eps)

  With R at the last token and no discount, G_jt = R_j. With `zero_tail` there
  is no b at slots that come after the last of every other row of the group.
  """
  keep = common.valid_tokens(mask, valid)
  energy = np.zeros(np.shape(mask))
  for i in range(len(mask)):
    total = 0.0
    for t in range(len(mask[i])):
      if keep[i, t]:
        probability = math.exp(float(old_logp[i][t]))
        total += 1.0 - 2.0 * probability + float(sum_pi_squared[i][t])
        energy[i, t] = total
  out = np.zeros(np.shape(mask))
  for i in range(len(mask)):
    for t in range(len(mask[i])):
      if not keep[i, t]:
        continue
      weighted, weight = 0.0, 0.0
      for j in range(len(mask)):
        if keep[j, t] and group_id[j] == group_id[i]:
          weighted += energy[j, t] * float(rewards[j])
          weight += energy[j, t]
      baseline = weighted / (weight + eps)
      if zero_tail and not any(
        keep[j, t:].any()
        for j in range(len(mask))
        if j != i and group_id[j] == group_id[i]
      ):
        others = [j for j in range(len(mask)) if group_id[j] == group_id[i]]
        baseline = 0.0 if len(others) > 1 else baseline
      out[i, t] = float(rewards[i]) - baseline
  return out


# (1/N) Σ_i Σ_t [−min(rA, clip(r) A) + β k3] − c · mean H, clip 0.2 / 0.2.
loss = reinforce_pp.loss

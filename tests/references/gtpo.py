"""GTPO: rewards shaped by entropy per token, from arXiv:2508.04349."""

import numpy as np

from tests.references import common, dapo


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  behavior_entropy,  # [B, T]
  mask,  # [B, T] bool
  correct,  # [B] bool
  alpha1: float = 1.0,
  alpha2: float = 0.1,
  normalization: str = "joint",
  eps: float = 1e-6,
) -> np.ndarray:  # [B, T]
  """Shaped rewards of every token, standardised in the group (ddof 0).

  At slot t the right rows of the group that have a token there share
  α2 d_t by H, the wrong ones −α2 h_t by 1/(H + eps), on top of ±α1.
  """
  out = np.zeros(np.shape(mask))
  for rows in common.members(valid, group_id):
    for t in range(np.shape(mask)[1]):
      for side in (True, False):
        alive = [i for i in rows if mask[i][t] and bool(correct[i]) == side]
        entropies = [float(behavior_entropy[i][t]) for i in alive]
        shaped = common.shaped_rewards(entropies, side, alpha1, alpha2, eps)
        for i, value in zip(alive, shaped, strict=True):
          out[i, t] = value
    tokens = [(i, t) for i in rows for t in range(len(mask[i])) if mask[i][t]]
    scaled = common.normalized(
      [out[at] for at in tokens],
      [correct[i] for i, _ in tokens],
      normalization,
      eps,
    )
    for at, value in zip(tokens, scaled, strict=True):
      out[at] = value
  return out


# (1/N) Σ_i Σ_t [clipped(r, A) + β k3] − c · mean H, clip 0.2 / 0.28.
loss = dapo.loss

"""Dr. GRPO: no 1/σ and no 1/|y|, from the equations of arXiv:2503.20783."""

import numpy as np

from tests.references import common


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  singleton: str = "zero",
) -> np.ndarray:  # [B]
  """A_i = R_i − μ_g over the valid rows of the group; not valid: 0.

  Equal rewards give exactly 0. A lone row gets 0, or its reward with
  singleton="raw".
  """
  out = np.zeros(len(rewards))
  for rows in common.members(valid, group_id):
    values = [float(rewards[i]) for i in rows]
    if len(rows) > 1 or singleton != "raw":
      # A mean of equal numbers may be one digit off.
      mean = sum(values) / len(rows) if len({*values}) > 1 else values[0]
      values = [x - mean for x in values]
    out[rows] = values
  return out


def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  ref_logp=None,  # [B, T]
  kl_coef: float = 0.0,
  entropy=None,  # [B, T]
  entropy_coef: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
  budget: float | None = None,
) -> float:
  """(1/(S C)) Σ_i Σ_t [−min(rA, clip(r) A) + β k3] − c · mean H.

  C is the generation `budget` in tokens, T when not given.
  """

  def aggregate(x, mask) -> float:
    return common.seq_mean_token_sum_norm(x, mask, budget)

  terms = common.token_clip(
    *(logp, old_logp, mask, advantages),
    *(clip_low, clip_high, dual_clip, ratio_cap, log_ratio_clamp),
  )
  return aggregate(terms, mask) + common.kl_and_entropy(
    *(aggregate, logp, mask, ref_logp, kl_coef, entropy, entropy_coef),
    log_ratio_clamp,
  )

"""DPO on the best and the worst row of each group, from arXiv:2305.18290.

Hinge: arXiv:2305.10425; ipo: arXiv:2310.12036, Eq. 17; robust:
arXiv:2403.00409, Eq. 10; other divergences: arXiv:2309.16240, Table 1.
"""

import math

import numpy as np

from tests.references import common


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
) -> np.ndarray:  # [B]
  """+1 for the chosen row of each pair, −1 for the rejected, 0 otherwise."""
  return common.pair_advantages(rewards, valid, group_id, mask)


def pair_loss(
  logp,
  ref_logp,
  mask,
  rewards,
  valid,
  group_id,
  beta: float,
  kind: str = "sigmoid",
  label_smoothing: float = 0.0,
  f_divergence: str = "reverse_kl",
  length_normalized: bool = False,
) -> float:
  """Mean over pairs of −log σ(β [x_chosen − x_rejected]), x = Σ_t (ℓ − ℓ_ref).

  0 without pairs.
  """

  def score(i: int) -> float:
    x = common.masked_sum(logp[i], mask[i]) - common.masked_sum(
      ref_logp[i], mask[i]
    )
    if kind == "ipo" or length_normalized:
      x /= common.num_tokens(mask[i])
    if f_divergence == "forward_kl":
      return -math.exp(-x)
    if f_divergence == "js_divergence":
      return -common.negative_log_sigmoid(x)
    return x

  def of(d: float) -> float:
    right = common.negative_log_sigmoid(beta * d)
    wrong = common.negative_log_sigmoid(-beta * d)
    s = label_smoothing
    if kind == "hinge":
      return max(0.0, 1.0 - beta * d)
    if kind == "ipo":
      return (d - 1.0 / (2.0 * beta)) ** 2
    if kind == "robust":
      return ((1.0 - s) * right - s * wrong) / (1.0 - 2.0 * s)
    return (1.0 - s) * right + s * wrong

  pairs = common.pairs(rewards, valid, group_id, mask)
  total = 0.0
  for best, worst in pairs:
    total += of(score(best) - score(worst))
  return total / max(len(pairs), 1)


@common.with_kl_and_entropy(common.seq_mean_token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T], not used
  mask,  # [B, T] bool
  advantages,  # [B], not used: the pairs come from the rewards
  *,
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  ref_logp,  # [B, T]
  beta: float = 0.1,
  kind: str = "sigmoid",
  label_smoothing: float = 0.0,
  f_divergence: str = "reverse_kl",
  length_normalized: bool = False,
) -> float:
  """Mean over pairs of −log σ(β d) + β_kl mean_i mean_t k3 − c · mean H.

  KL and entropy are those of all rows of the mask.
  """
  del old_logp, advantages
  return pair_loss(
    logp,
    ref_logp,
    mask,
    rewards,
    valid,
    group_id,
    beta,
    kind,
    label_smoothing,
    f_divergence,
    length_normalized,
  )

"""GFPO: chosen completions of a group learn, from arXiv:2508.09726."""

import itertools

import numpy as np

from tests.references import common, dapo, grpo


def most_varied(rewards, num_kept: int) -> tuple[int, ...]:
  """Indices of the subset whose population variance is the largest.

  Of equal ones the first in the order of `itertools.combinations`.
  """
  subsets = list(
    itertools.combinations(range(len(rewards)), min(num_kept, len(rewards)))
  )
  variances = [float(np.var([rewards[i] for i in s])) for s in subsets]
  return subsets[variances.index(max(variances))]


def adaptive_kept(difficulty: float, past, num_kept: int, warmup: int) -> int:
  """Number of rows kept of a group with this mean reward, after others."""
  if len(past) < warmup or not len(past):
    return num_kept
  for share, quartile in ((1, 0.25), (1, 0.5), (0.75, 0.75)):
    if difficulty < np.quantile(past, quartile):
      return round(num_kept * share)
  return round(num_kept * 0.5)


def kept_rows(
  rewards,
  valid,
  group_id,
  lengths,
  num_kept,
  metric,
  efficiency_shift=False,
  past=(),
  adaptive_warmup=64,
) -> list[int]:
  """Indices of the kept rows of each group, ties by their order."""
  kept = []
  for group in sorted(set(np.asarray(group_id).tolist())):
    rows = [i for i in range(len(rewards)) if valid[i] and group_id[i] == group]
    if not rows:
      continue
    if metric == "max_variance":
      found = most_varied([float(rewards[i]) for i in rows], num_kept)
      kept += [rows[i] for i in found]
      continue
    least = min(float(rewards[i]) for i in rows) if efficiency_shift else 0.0

    def cost(i, least=least):
      if metric == "efficiency":
        return -(float(rewards[i]) - least) / max(lengths[i], 1)
      return lengths[i]

    most = num_kept
    if metric == "adaptive":
      difficulty = sum(float(rewards[i]) for i in rows) / len(rows)
      most = adaptive_kept(difficulty, past, num_kept, adaptive_warmup)
    kept += sorted(rows, key=cost)[:most]
  return kept


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
  num_kept: int = 8,
  metric: str = "length",
  efficiency_shift: bool = False,
  eps: float = 1e-6,
) -> np.ndarray:  # [B]
  """(R − μ_S) / (σ_S + eps) on the rows that are kept, ddof 0; else 0."""
  lengths = [common.num_tokens(row) for row in mask]
  kept = kept_rows(
    rewards, valid, group_id, lengths, num_kept, metric, efficiency_shift
  )
  is_kept = [i in kept for i in range(len(rewards))]
  return grpo.advantages(rewards, is_kept, group_id, ddof=0, eps=eps)


@common.with_kl_and_entropy(common.token_mean, kl_coef=0.001)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  kl_old_coef: float = 0.0,
  entropy_coef: float = 0.001,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/N) Σ_i Σ_t [−min(rA, clip(r) A) + β k3] − c · mean H, N of all rows.

  With `kl_old_coef` also k3 against the policy at the start of the update.
  """
  del entropy_coef  # Its default is the paper's.
  return dapo.loss(
    *(logp, old_logp, mask, advantages),
    clip_low=clip_low,
    clip_high=clip_high,
    ref_logp=old_logp,
    kl_coef=kl_old_coef,
    log_ratio_clamp=log_ratio_clamp,
  )

"""GFPO: the k best completions of a group learn, from arXiv:2508.09726."""

import math

import numpy as np

from tests.references import common, dapo


def kept_rows(rewards, valid, group_id, lengths, num_kept, metric) -> list[int]:
  """Indices of the k best rows of each group, ties by their order."""
  kept = []
  for group in sorted(set(np.asarray(group_id).tolist())):
    rows = [i for i in range(len(rewards)) if valid[i] and group_id[i] == group]

    def cost(i):
      if metric == "length":
        return lengths[i]
      return -float(rewards[i]) / max(lengths[i], 1)

    kept += sorted(rows, key=cost)[:num_kept]
  return kept


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
  num_kept: int = 8,
  metric: str = "length",
  eps: float = 1e-6,
) -> np.ndarray:  # [B]
  """(R − μ_S) / (σ_S + eps) on the rows that are kept, ddof 0; else 0."""
  lengths = [common.num_tokens(row) for row in mask]
  kept = kept_rows(rewards, valid, group_id, lengths, num_kept, metric)
  out = np.zeros(len(rewards))
  for i in kept:
    group = [float(rewards[j]) for j in kept if group_id[j] == group_id[i]]
    mean = sum(group) / len(group)
    variance = sum((r - mean) ** 2 for r in group) / len(group)
    if max(group) > min(group):
      out[i] = (float(rewards[i]) - mean) / (math.sqrt(variance) + eps)
  return out


def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B]
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  ref_logp=None,  # [B, T]
  kl_coef: float = 0.001,
  entropy=None,  # [B, T]
  entropy_coef: float = 0.001,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/N) Σ_i Σ_t [−min(rA, clip(r) A) + β k3] − c · mean H, N of all rows."""
  return dapo.loss(
    logp,
    old_logp,
    mask,
    advantages,
    clip_low=clip_low,
    clip_high=clip_high,
    ref_logp=ref_logp,
    kl_coef=kl_coef,
    entropy=entropy,
    entropy_coef=entropy_coef,
    log_ratio_clamp=log_ratio_clamp,
  )

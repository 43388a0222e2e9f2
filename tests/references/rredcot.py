"""RREDCoT: credits of segments and GRPO's loss, from arXiv:2606.06475."""

import functools
import itertools
import math

import numpy as np

from tests.references import grpo


def credits(utilities, reward) -> list[float]:
  """r_k = V̂(s_k) − V̂(s_{k−1}), and r_K = R − V̂(s_{K−1})."""
  known = [*utilities, reward]
  return [after - before for before, after in itertools.pairwise(known)]


def segments(segment_end, mask) -> list[list[int]]:
  """The trained slots of each segment of a row."""
  found = [[]]
  trained = [t for t in range(len(mask)) if mask[t]]
  for t in trained:
    found[-1].append(t)
    if segment_end[t] and t != trained[-1]:
      found.append([])
  return found if trained else []


def _standardized(x, values, eps):
  if len(values) < 2 or max(values) == min(values):
    return 0.0
  mean = sum(values) / len(values)
  variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
  return (x - mean) / (math.sqrt(variance) + eps)


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  prefix_utility,  # [B, T]
  segment_end,  # [B, T] bool
  mask,  # [B, T] bool
  mode: str = "mix",
  mix_weight: float = 0.5,
  advantage_eps: float = 0.01,
) -> np.ndarray:  # [B, T]
  """z(r), R − V̂ before the segment, or w A_GRPO + (1 − w) z(r)."""
  out = np.zeros(np.shape(mask))
  cut = [
    segments(ends, row) if ok else []
    for ends, row, ok in zip(segment_end, mask, valid, strict=True)
  ]
  found = [
    credits([prefix_utility[i][s[0]] for s in cut[i]], float(rewards[i]))
    if cut[i]
    else []
    for i in range(len(rewards))
  ]
  for i, rows in enumerate(cut):
    group = [
      j for j in range(len(rewards)) if valid[j] and group_id[j] == group_id[i]
    ]
    of_group = [r for j in group for r in found[j]]
    of_rows = [float(rewards[j]) for j in group]
    for segment, r in zip(rows, found[i], strict=True):
      z = _standardized(r, of_group, advantage_eps)
      whole = _standardized(float(rewards[i]), of_rows, advantage_eps)
      for t in segment:
        out[i, t] = {
          "rudder": z,
          "return": float(rewards[i]) - float(prefix_utility[i][t]),
          "mix": mix_weight * whole + (1 - mix_weight) * z,
        }[mode]
  return out


# As GRPO without divergence, with an advantage for each token.
loss = functools.partial(grpo.loss, kl_coef=0.0)

"""SPO: one completion per prompt against a tracked baseline (2509.13232)."""

import functools

import numpy as np

from tests.references import common, dapo


def advantages(
  rewards,  # [B]
  valid,  # [B] bool
  group_id,  # [B] int, not used
  *,
  expected,  # [B]
) -> np.ndarray:  # [B]
  """R_i − φ_i minus its mean, over its sample deviation + 1e-8; 0: unscored."""
  del group_id
  rows = [i for i in range(len(rewards)) if valid[i]]
  gaps = [float(rewards[i]) - float(expected[i]) for i in rows]
  out = np.zeros(len(rewards))
  out[rows] = common.standardized(gaps, 1, 1e-8)
  return out


# (1/N) Σ_i Σ_t [−min(rA, clip(r) A) + β k3] − c · mean H, clip 0.2 / 0.28.
loss = functools.partial(dapo.loss, dual_clip=10.0)

"""DAPO: higher upper clip, token mean, from arXiv:2503.14476."""

import numpy as np

from tests.references import common, grpo

# Equation 9 of the paper: as in GRPO.
advantages = grpo.advantages


@common.with_kl_and_entropy(common.token_mean)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """(1/N) Σ_i Σ_t [−min(rA, clip(r) A) + β k3] − c · mean H."""
  terms = common.token_clip(
    *(logp, old_logp, mask, advantages),
    *(clip_low, clip_high, dual_clip, ratio_cap, log_ratio_clamp),
  )
  return common.token_mean(terms, mask)


def soft_overlong(length: int, max_len: int, cache: int) -> float:
  """Penalty in [−1, 0] of one completion; lengths in tokens.

  0 up to max_len − cache, linear down to −1 at max_len, −1 beyond.
  """
  if length <= max_len - cache:
    return 0.0
  if length <= max_len:
    return ((max_len - cache) - length) / cache
  return -1.0


def overlong_filter(mask, terminated) -> np.ndarray:  # [B, T], [B] -> [B, T]
  """The mask without the rows that the budget cut off."""
  return np.array(mask, bool) & np.array(terminated, bool)[:, None]


def live_groups(rewards, valid, group_id) -> np.ndarray:  # [B] bool
  """True on valid rows whose group has two different valid rewards.

  The other rows carry no signal; dynamic sampling drops them.
  """
  out = np.zeros(len(rewards), bool)
  for rows in common.members(valid, group_id):
    out[rows] = len({float(rewards[i]) for i in rows}) > 1
  return out

"""GAGPO: states of turns are the critic, arXiv:2605.13217."""

import math

import numpy as np

from tests.references import common


def actions_of(row_turn, row_mask) -> list[list[int]]:  # each [T]
  """The slots of each action of a row: trained tokens of the same turn."""
  found: dict[int, list[int]] = {}
  for t in range(len(row_mask)):
    if row_mask[t]:
      found.setdefault(int(row_turn[t]), []).append(t)
  return [found[turn] for turn in sorted(found)]


def advantages(
  rewards,  # [B], not used
  valid,  # [B] bool
  group_id,  # [B] int
  *,
  mask,  # [B, T] bool
  turn_rewards,  # [B, T]
  turn,  # [B, T] int
  state_id,  # [B, T] int
  gamma: float = 0.95,
  lam: float = 0.9,
) -> np.ndarray:  # [B, T]
  """Â of every action at its tokens, standardised over a group's actions."""
  del rewards
  visits: dict[tuple[int, int], list[float]] = {}
  rows = []
  for i in range(len(mask)):
    actions = actions_of(turn[i], mask[i]) if valid[i] else []
    paid = [sum(float(turn_rewards[i][t]) for t in a) for a in actions]
    states = [(int(group_id[i]), int(state_id[i][a[0]])) for a in actions]
    future = 0.0
    for state, reward in reversed(list(zip(states, paid, strict=True))):
      future = reward + gamma * future
      visits.setdefault(state, []).append(future)
    rows.append((actions, paid, states))
  value = {state: sum(x) / len(x) for state, x in visits.items()}

  raw: dict[int, list[tuple[int, list[int], float]]] = {}
  for i, (actions, paid, states) in enumerate(rows):
    advantage = after = 0.0
    for n in reversed(range(len(actions))):
      delta = paid[n] + gamma * after - value[states[n]]
      advantage = delta + gamma * lam * advantage
      after = value[states[n]]
      raw.setdefault(int(group_id[i]), []).append((i, actions[n], advantage))
  out = np.zeros(np.shape(mask))
  for entries in raw.values():
    scaled = common.standardized([x for *_, x in entries], 1, 1e-6)
    for (i, action, _), x in zip(entries, scaled, strict=True):
      out[i, action] = x
  return out


@common.with_kl_and_entropy(common.token_mean, kl_coef=0.01)
def loss(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  *,
  turn,  # [B, T] int
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual_clip: float = 0.0,
  ratio_cap: float = 0.0,
  log_ratio_clamp: float | None = 20.0,
) -> float:
  """Mean over actions of the clipped surrogate of their mean ratios."""
  total, count = 0.0, 0
  for i in range(len(mask)):
    for action in actions_of(turn[i], mask[i]):
      gaps = [float(logp[i][t]) - float(old_logp[i][t]) for t in action]
      ratio = math.exp(common.clamp(sum(gaps) / len(gaps), log_ratio_clamp))
      advantage = common.advantage_at(advantages, i, action[0])
      total -= common.clipped_surrogate(
        ratio, advantage, clip_low, clip_high, dual_clip, ratio_cap
      )
      count += 1
  return total / max(count, 1)

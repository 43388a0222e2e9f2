"""GiGPO: groups of episodes, and of actions in a state, arXiv:2505.10978."""

import functools

import numpy as np

from tests.references import common, gagpo, grpo


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
  omega: float = 1.0,
  normalize: bool = True,
) -> np.ndarray:  # [B, T]
  """A^E_i + ω A^S_iτ at the tokens of every action."""
  del rewards
  outcomes: dict[int, list[tuple[int, float]]] = {}
  anchored: dict[tuple[int, int], list[tuple[int, list[int], float]]] = {}
  played = {}
  for i in range(len(mask)):
    actions = gagpo.actions_of(turn[i], mask[i]) if valid[i] else []
    if not actions:
      continue
    played[i] = actions
    group = int(group_id[i])
    paid = [sum(float(turn_rewards[i][t]) for t in a) for a in actions]
    outcomes.setdefault(group, []).append((i, sum(paid)))
    for n, action in enumerate(actions):
      to_go = sum(gamma ** (m - n) * paid[m] for m in range(n, len(paid)))
      state = group, int(state_id[i][action[0]])
      anchored.setdefault(state, []).append((i, action, to_go))

  out = np.zeros(np.shape(mask))
  for episodes in outcomes.values():
    relative = _relative([x for _, x in episodes], normalize)
    for (i, _), x in zip(episodes, relative, strict=True):
      for action in played[i]:
        out[i, action] = x
  for visits in anchored.values():
    relative = _relative([x for *_, x in visits], normalize)
    for (i, action, _), x in zip(visits, relative, strict=True):
      out[i, action] += omega * x
  return out


def _relative(values: list[float], normalize: bool) -> list[float]:
  """(x − μ) / (σ + eps), or x − μ; a lone value gives 0."""
  if normalize:
    return common.standardized(values, 1, 1e-6)
  mean = sum(values) / len(values)
  return [x - mean for x in values]


# As GRPO, with another divergence.
loss = functools.partial(grpo.loss, kl_coef=0.01)

"""Advantages of rollouts in several contexts, each a row, as plain loops.

CompactionRL, arXiv:2607.05378, Eq. 14 and 15, the other meanings of the end of
a context, and rewards that are split among them. A context is a list of its
trained tokens here; which are neighbours is looked up, not computed.
"""

import numpy as np

from tests.references import common


def lambdas(mask, trace_id, alpha: float, unit: str) -> list[float]:  # [B]
  """λ = 1 − 1 / (α l), at least 0; l of the "context" or of its "trace"."""
  found = []
  for i in range(len(mask)):
    length = 0
    for j in range(len(mask)):
      counts = j == i if unit == "context" else trace_id[j] == trace_id[i]
      if counts:
        length += common.num_tokens(mask[j])
    found.append(max(0.0, 1.0 - 1.0 / (alpha * max(length, 1))))
  return found


def advantages(
  outcome,  # [B]
  mask,  # [B, T] bool
  values,  # [B, T]
  trace_id,  # [B] int
  order,  # [B] int
  *,
  token_rewards=None,  # [B, T]
  gamma: float,
  lams,  # [B]
  boundary: str,
  reward: str = "terminal",
  beyond=None,  # [B]
) -> tuple[np.ndarray, np.ndarray]:  # [B, T], [B, T]
  """Advantages, and the targets of a critic; 0 where masked.

  A rollout is gone through from its last token to its first. What stands at
  the end of a context is written out below, once for each boundary.
  """
  found = np.zeros(np.shape(mask))
  targets = np.zeros(np.shape(mask))
  for name in sorted(set(map(int, trace_id))):
    rows = [i for i in range(len(mask)) if trace_id[i] == name]
    rows = [i for i in rows if common.num_tokens(mask[i])]
    rows.sort(key=lambda i: order[i])
    num_later = 0
    following = None  # The first trained token after this context.
    for i in reversed(rows):
      is_last = i == rows[-1]
      pays_all = boundary in ("outcome", "compaction_rl")
      if reward == "split":
        paid = float(outcome[i]) / len(rows)
      else:
        paid = float(outcome[i]) if pays_all or is_last else 0.0
      next_value = next_advantage = 0.0
      if is_last and beyond is not None:  # Of a rollout that was cut off.
        next_value = float(beyond[i])
      if following is not None and not pays_all:
        next_value = float(values[following])
        if boundary == "chain":
          next_advantage = found[following]
      tokens = [t for t in range(len(mask[i])) if mask[i][t]]
      for t in reversed(tokens):
        here = paid if t == tokens[-1] else 0.0
        if token_rewards is not None:
          here += float(token_rewards[i][t])
        error = here + gamma * next_value - float(values[i][t])
        next_advantage = error + gamma * float(lams[i]) * next_advantage
        next_value = float(values[i][t])
        found[i, t] = next_advantage
        targets[i, t] = next_advantage + next_value
      if boundary in ("compaction_rl", "compaction_rl_bootstrap"):
        for t in tokens:  # Eq. 14.
          found[i, t] *= (gamma * float(lams[i])) ** num_later
      num_later += len(tokens)
      following = (i, tokens[0])
  return found, targets

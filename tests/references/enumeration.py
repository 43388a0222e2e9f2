"""Every completion of a tiny tabular policy: exact objective and gradient.

The policy is a table of logits, one row per prefix of completion tokens:

    row 0              the empty prefix
    row 1 + a          prefix (a)
    row 1 + V + aV + b prefix (a, b)

so a budget of T tokens needs Σ_{t<T} V^t rows. Rows whose prefix contains the
end token are never reached; their gradient is 0.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tests.references import common


class Completion(NamedTuple):
  tokens: np.ndarray  # [T] int, 0 where masked
  mask: np.ndarray  # [T] bool, up to and including the end token
  prob: float  # π(y); 1 when summed over all completions


def num_prefixes(num_symbols: int, num_slots: int) -> int:
  """Rows of the table: Σ_{t<T} V^t."""
  return sum(num_symbols**t for t in range(num_slots))


def prefix_index(prefix: Sequence[int], num_symbols: int) -> int:
  """Row of the table that holds the logits after `prefix`."""
  index = 0
  for token in prefix:
    index = index * num_symbols + int(token)
  return num_prefixes(num_symbols, len(prefix)) + index


def enumerate_completions(
  logits: np.ndarray,  # [rows, V]
  num_slots: int,
  end_token: int | None,
) -> list[Completion]:
  """All completions of at most T tokens, in lexicographic order.

  A completion stops after its end token, or after T tokens without one; with
  `end_token` None all V^T completions have T tokens.
  """
  num_symbols = np.shape(logits)[1]
  log_probs = common.log_softmax(logits)
  completions = []
  for tokens in itertools.product(range(num_symbols), repeat=num_slots):
    length = num_slots
    if end_token in tokens:
      length = tokens.index(end_token) + 1
    if any(tokens[length:]):  # the same completion with other padding
      continue
    log_prob = 0.0
    for t in range(length):
      row = prefix_index(tokens[:t], num_symbols)
      log_prob += log_probs[row, tokens[t]]
    completions.append(
      Completion(
        tokens=np.array(tokens),
        mask=np.array([t < length for t in range(num_slots)]),
        prob=math.exp(log_prob),
      )
    )
  return completions


def token_logp(
  logits: np.ndarray,  # [rows, V]
  tokens,  # [B, T]
  mask,  # [B, T]
) -> np.ndarray:  # [B, T]
  """log π(y_t | y_<t) of given completions, 0 where masked."""
  num_symbols = np.shape(logits)[1]
  log_probs = common.log_softmax(logits)
  return common.per_token(
    lambda i, t: log_probs[
      prefix_index(tokens[i][:t], num_symbols), tokens[i][t]
    ],
    mask,
  )


def objective(
  logits: np.ndarray,  # [rows, V]
  num_slots: int,
  end_token: int | None,
  rewards,  # one for each of `enumerate_completions`, in its order
) -> float:
  """J = Σ_y π(y) R(y)."""
  completions = enumerate_completions(logits, num_slots, end_token)
  total = 0.0
  for completion, reward in zip(completions, rewards, strict=True):
    total += completion.prob * float(reward)
  return total


def objective_gradient(
  logits: np.ndarray,  # [rows, V]
  num_slots: int,
  end_token: int | None,
  rewards,  # one for each of `enumerate_completions`, in its order
) -> np.ndarray:  # [rows, V]
  """∂J/∂logits = Σ_y π(y) R(y) ∇ log π(y).

  ∂ log π(y) / ∂z_{s,v} = Σ_{t: prefix s} (1[y_t = v] − π(v | s)).
  """
  num_symbols = np.shape(logits)[1]
  probs = np.exp(common.log_softmax(logits))
  gradient = np.zeros(np.shape(logits))
  completions = enumerate_completions(logits, num_slots, end_token)
  for completion, reward in zip(completions, rewards, strict=True):
    weight = completion.prob * float(reward)
    for t in range(num_slots):
      if not completion.mask[t]:
        continue
      row = prefix_index(completion.tokens[:t], num_symbols)
      for v in range(num_symbols):
        chosen = 1.0 if completion.tokens[t] == v else 0.0
        gradient[row, v] += weight * (chosen - probs[row, v])
  return gradient

"""The pieces that every reference loss is written with, as plain loops.

Scalars in, scalars out wherever the equation is about one token; positions
where `mask` is False are never read, so they may hold NaN or infinities. All
arithmetic is float64. Nothing here shares code with `grpo_jax`.

Log-probabilities, entropies and divergences are in nats. A log-ratio is
limited to [−c, c] before it is exponentiated; c = None turns that off.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np

# --- masks -------------------------------------------------------------------


def masked_sum(x, mask) -> float:  # x [T], mask [T]
  """Σ_t m_t x_t, reading only where m_t is true."""
  total = 0.0
  for value, keep in zip(x, mask, strict=True):
    if keep:
      total += float(value)
  return total


def masked_mean(x, mask) -> float:  # x [T], mask [T]
  """Mean of x over the mask; 0 when the mask is empty."""
  return masked_sum(x, mask) / max(num_tokens(mask), 1)


def num_tokens(mask) -> int:  # mask [T]
  """Number of true entries of one row of a mask."""
  return sum(1 for keep in mask if keep)


def num_rows(mask) -> int:  # mask [B, T]
  """Number of rows with at least one token: S of the sequence means."""
  return sum(1 for row in mask if num_tokens(row) > 0)


# --- ratios ------------------------------------------------------------------


def clamp(x: float, bound: float | None) -> float:
  """x limited to [−bound, bound]; unchanged when bound is None."""
  if bound is None:
    return x
  return max(-bound, min(bound, x))


def token_ratio(
  logp: float, old_logp: float, log_ratio_clamp: float | None
) -> float:
  """r = exp(ℓ − ℓ_old) of one token."""
  return math.exp(clamp(float(logp) - float(old_logp), log_ratio_clamp))


def sequence_ratio(
  logp,  # [T]
  old_logp,  # [T]
  mask,  # [T]
  log_ratio_clamp: float | None,
) -> float:
  """s = exp((1/n) Σ_t m (ℓ − ℓ_old)) of one row; 1 for a row without tokens."""
  total = 0.0
  for t in range(len(mask)):
    if mask[t]:
      total += float(logp[t]) - float(old_logp[t])
  mean = total / max(num_tokens(mask), 1)
  return math.exp(clamp(mean, log_ratio_clamp))


# --- surrogates and divergences ----------------------------------------------


def clipped_surrogate(
  ratio: float,
  advantage: float,
  clip_low: float,
  clip_high: float,
  dual_clip: float | None = None,
) -> float:
  """min(r A, clip(r, 1 − ε_low, 1 + ε_high) A): to be *maximised*.

  With `dual_clip` c > 1 a negative advantage contributes at least c A, so that
  a huge ratio cannot make the loss arbitrarily large (arXiv:1912.09729).
  """
  advantage = float(advantage)
  clipped = max(1.0 - clip_low, min(1.0 + clip_high, ratio))
  value = min(ratio * advantage, clipped * advantage)
  if dual_clip is not None and advantage < 0:
    value = max(value, dual_clip * advantage)
  return value


def kl_k1(logp: float, ref_logp: float) -> float:
  """k1 = u with u = ℓ − ℓ_ref."""
  return float(logp) - float(ref_logp)


def kl_k2(logp: float, ref_logp: float) -> float:
  """k2 = u² / 2 with u = ℓ − ℓ_ref."""
  return 0.5 * (float(logp) - float(ref_logp)) ** 2


def kl_k3(
  logp: float, ref_logp: float, log_ratio_clamp: float | None = 20.0
) -> float:
  """k3 = e^{−u} − 1 + u ≥ 0 with u = ℓ − ℓ_ref limited to ±clamp."""
  u = clamp(float(logp) - float(ref_logp), log_ratio_clamp)
  return math.expm1(-u) + u


# --- aggregations: [B, T] of per-token losses to a scalar ---------------------


def seq_mean_token_mean(x, mask) -> float:  # x [B, T], mask [B, T]
  """(1/S) Σ_i (1/n_i) Σ_t m x, S counting rows with tokens. GRPO."""
  total = sum(masked_mean(x[i], mask[i]) for i in range(len(mask)))
  return total / max(num_rows(mask), 1)


def token_mean(x, mask) -> float:  # x [B, T], mask [B, T]
  """(1/N) Σ_i Σ_t m x. DAPO."""
  total = sum(masked_sum(x[i], mask[i]) for i in range(len(mask)))
  return total / max(sum(num_tokens(row) for row in mask), 1)


def seq_mean_token_sum(x, mask) -> float:  # x [B, T], mask [B, T]
  """(1/S) Σ_i Σ_t m x, S counting rows with tokens. REINFORCE."""
  total = sum(masked_sum(x[i], mask[i]) for i in range(len(mask)))
  return total / max(num_rows(mask), 1)


def seq_mean_token_sum_norm(x, mask, budget: float | None = None) -> float:
  """(1/(S C)) Σ_i Σ_t m x; C is `budget`, or T when not given. Dr. GRPO."""
  if budget is None:
    budget = np.shape(mask)[1]
  return seq_mean_token_sum(x, mask) / budget


# --- a whole objective -------------------------------------------------------


def per_token(
  term: Callable[[int, int], float],
  mask,  # [B, T]
) -> np.ndarray:  # [B, T]
  """term(i, t) at every unmasked position, 0 elsewhere."""
  num_sequences, num_slots = np.shape(mask)
  out = np.zeros((num_sequences, num_slots))
  for i in range(num_sequences):
    for t in range(num_slots):
      if mask[i][t]:
        out[i, t] = term(i, t)
  return out


def advantage_at(advantages, i: int, t: int) -> float:
  """A_it of advantages given per row [B] or per token [B, T]."""
  if np.ndim(advantages) == 1:
    return float(advantages[i])
  return float(advantages[i][t])


def kl_and_entropy(
  aggregate: Callable[..., float],
  logp,  # [B, T]
  mask,  # [B, T]
  ref_logp,  # [B, T] or None
  kl_coef: float,
  entropy,  # [B, T] or None
  entropy_coef: float,
  log_ratio_clamp: float | None,
) -> float:
  """β · aggregate(k3) − c · token_mean(H), what a loss adds to its policy term.

  Raises:
    ValueError: if a coefficient is not 0 and its array is missing.
  """
  total = 0.0
  if kl_coef:
    if ref_logp is None:
      raise ValueError(
        f"reference loss: kl_coef is {kl_coef} but ref_logp is None; pass "
        "ref_logp [B, T] or kl_coef=0.0"
      )
    k3 = per_token(
      lambda i, t: kl_k3(logp[i][t], ref_logp[i][t], log_ratio_clamp), mask
    )
    total += kl_coef * aggregate(k3, mask)
  if entropy_coef:
    if entropy is None:
      raise ValueError(
        f"reference loss: entropy_coef is {entropy_coef} but entropy is "
        "None; pass entropy [B, T] or entropy_coef=0.0"
      )
    total -= entropy_coef * token_mean(entropy, mask)
  return total


# --- logits ------------------------------------------------------------------


def log_softmax(logits) -> np.ndarray:  # [..., V] -> [..., V]
  """z_v − log Σ_w e^{z_w}, for each vector of logits; −inf stays −inf."""
  logits = np.asarray(logits, np.float64)
  out = np.empty_like(logits)
  for index in np.ndindex(logits.shape[:-1]):
    top = max(float(z) for z in logits[index])
    normalizer = math.log(sum(math.exp(z - top) for z in logits[index]))
    for v, z in enumerate(logits[index]):
      out[(*index, v)] = float(z) - top - normalizer
  return out


def entropy_from_logits(logits) -> np.ndarray:  # [..., V] -> [...]
  """H = −Σ_v p_v log p_v; a symbol of probability 0 contributes 0."""
  log_probs = log_softmax(logits)
  out = np.zeros(log_probs.shape[:-1])
  for index in np.ndindex(out.shape):
    for log_p in log_probs[index]:
      if log_p > -math.inf:
        out[index] -= math.exp(log_p) * log_p
  return out


# --- groups ------------------------------------------------------------------


def group_rewards(rewards, valid, group_id, group) -> list[float]:
  """Rewards of the valid rows of one group, in row order."""
  members = []
  for reward, ok, g in zip(rewards, valid, group_id, strict=True):
    if ok and g == group:
      members.append(float(reward))
  return members


# --- derivatives -------------------------------------------------------------


def finite_difference(
  f: Callable[[np.ndarray], float], x: np.ndarray, eps: float = 1e-6
) -> np.ndarray:  # the shape of x
  """Central differences of a scalar function, one entry of x at a time.

  The error is about eps² |f'''| / 6 + 1e-16 |f| / eps. Keep x away from the
  kinks of f (a ratio at a clip boundary) by more than eps.
  """
  x = np.array(x, np.float64)
  gradient = np.zeros_like(x)
  for index in itertools.product(*(range(size) for size in x.shape)):
    centre = x[index]
    x[index] = centre + eps
    above = f(x)
    x[index] = centre - eps
    below = f(x)
    x[index] = centre
    gradient[index] = (above - below) / (2.0 * eps)
  return gradient

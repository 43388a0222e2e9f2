"""The pieces that every reference loss is written with, as plain loops.

Scalars in, scalars out wherever the equation is about one token; positions
where `mask` is False are never read, so they may hold NaN or infinities. All
arithmetic is float64. Nothing here shares code with `grpo_jax`.

Log-probabilities, entropies and divergences are in nats. A log-ratio is
limited to [−c, c] before it is exponentiated; c = None turns that off.

`frozen_logp` of a loss is what a stop_gradient sees: a loss that holds part of
itself constant reads that part from `frozen_logp`, which is `logp` unless
given. Its value is therefore that of the equation, and finite differences over
`logp` at fixed `frozen_logp` are its gradient.
"""

import functools
import inspect
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


def trajectory_ratio(
  logp,  # [T]
  old_logp,  # [T]
  mask,  # [T]
  log_ratio_clamp: float | None,
) -> float:
  """w = exp(Σ_t m (ℓ − ℓ_old)) of one row, the sum limited to ±clamp."""
  total = 0.0
  for t in range(len(mask)):
    if mask[t]:
      total += float(logp[t]) - float(old_logp[t])
  return math.exp(clamp(total, log_ratio_clamp))


# --- surrogates and divergences ----------------------------------------------


def clipped_surrogate(
  ratio: float,
  advantage: float,
  clip_low: float,
  clip_high: float,
  dual_clip: float | None = None,
  ratio_cap: float = 0.0,
) -> float:
  """min(min(r, cap) A, clip(r, 1 − ε_low, 1 + ε_high) A): to be *maximised*.

  With `dual_clip` c > 1 a negative advantage contributes at least c A, so that
  a huge ratio cannot make the loss arbitrarily large (arXiv:1912.09729). The
  cap must exceed 1 + ε_high. Both are off when 0.
  """
  advantage = float(advantage)
  clipped = max(1.0 - clip_low, min(1.0 + clip_high, ratio))
  capped = min(ratio, ratio_cap) if ratio_cap else ratio
  value = min(capped * advantage, clipped * advantage)
  if dual_clip and advantage < 0:
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


def row_mean(
  term: Callable[[int], float],
  mask,  # [B, T]
) -> float:
  """(1/S) Σ_i term(i) over the S rows with tokens; 0 without any."""
  total = 0.0
  for i in range(len(mask)):
    if num_tokens(mask[i]) > 0:
      total += term(i)
  return total / max(num_rows(mask), 1)


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


def token_clip(
  logp,  # [B, T]
  old_logp,  # [B, T]
  mask,  # [B, T] bool
  advantages,  # [B] or [B, T]
  clip_low: float,
  clip_high: float,
  dual_clip: float,
  ratio_cap: float,
  log_ratio_clamp: float | None = 20.0,
) -> np.ndarray:  # [B, T]
  """Minus the clipped surrogate of every trained token's own ratio."""

  def term(i: int, t: int) -> float:
    return -clipped_surrogate(
      token_ratio(logp[i][t], old_logp[i][t], log_ratio_clamp),
      advantage_at(advantages, i, t),
      *(clip_low, clip_high, dual_clip, ratio_cap),
    )

  return per_token(term, mask)


def with_kl_and_entropy(aggregate: Callable[..., float], kl_coef: float = 0.0):
  """Decorates the policy term of a loss, to which it adds KL and entropy.

  The loss has these parameters beside those of its policy term.
  """
  added = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
    for name, default in {
      "ref_logp": None,  # [B, T]
      "kl_coef": kl_coef,
      "entropy": None,  # [B, T]
      "entropy_coef": 0.0,
      "log_ratio_clamp": 20.0,
    }.items()
  ]

  def decorated(policy: Callable[..., float]) -> Callable[..., float]:
    own = inspect.signature(policy).parameters
    signature = inspect.Signature(
      [*own.values(), *(p for p in added if p.name not in own)]
    )

    @functools.wraps(policy)
    def loss(*args, **kwargs) -> float:
      bound = signature.bind(*args, **kwargs)
      bound.apply_defaults()
      given = bound.arguments
      return policy(**{name: given[name] for name in own}) + kl_and_entropy(
        aggregate,
        given["logp"],
        given["mask"],
        **{parameter.name: given[parameter.name] for parameter in added},
      )

    loss.__signature__ = signature
    return loss

  return decorated


def kl_and_entropy(
  aggregate: Callable[..., float],
  logp,  # [B, T]
  mask,  # [B, T]
  ref_logp,  # [B, T] or None
  kl_coef: float,
  entropy,  # [B, T] or None
  entropy_coef: float,
  log_ratio_clamp: float | None,
  kl: Callable[[float, float, float | None], float] = kl_k3,
) -> float:
  """β · aggregate(KL) − c · token_mean(H), what a loss adds to its policy term.

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
    values = per_token(
      lambda i, t: kl(logp[i][t], ref_logp[i][t], log_ratio_clamp), mask
    )
    total += kl_coef * aggregate(values, mask)
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


# --- statistics --------------------------------------------------------------


def negative_log_sigmoid(x: float) -> float:
  """−log σ(x) = log(1 + e^{−x}), without overflow."""
  if x >= 0:
    return math.log1p(math.exp(-x))
  return -x + math.log1p(math.exp(x))


def standardized(values: list[float], ddof: int, eps: float) -> list[float]:
  """(x − μ) / (σ + eps); equal values and a lone value give exactly 0."""
  if len(values) <= 1 or max(values) == min(values):
    return [0.0] * len(values)
  mean = sum(values) / len(values)
  variance = sum((x - mean) ** 2 for x in values) / (len(values) - ddof)
  return [(x - mean) / (math.sqrt(variance) + eps) for x in values]


def members(valid, group_id) -> list[list[int]]:  # each [B]
  """The valid rows of every group, in row order."""
  groups: dict[int, list[int]] = {}
  for i in range(len(valid)):
    if valid[i]:
      groups.setdefault(int(group_id[i]), []).append(i)
  return list(groups.values())


def covariance(old_logp, mask, advantages) -> np.ndarray:  # [B, T]
  """(A − mean A) (ℓ_old − mean ℓ_old), means over tokens; 0 where masked."""
  all_advantages = per_token(lambda i, t: advantage_at(advantages, i, t), mask)
  mean_advantage = token_mean(all_advantages, mask)
  mean_logp = token_mean(old_logp, mask)
  return per_token(
    lambda i, t: (
      (all_advantages[i, t] - mean_advantage)
      * (float(old_logp[i][t]) - mean_logp)
    ),
    mask,
  )


def covariance_count(mask, cov_fraction: float) -> int:  # mask [B, T]
  """max(1, ⌊fraction · N⌋) tokens, and none of none."""
  total = sum(num_tokens(row) for row in mask)
  return min(total, max(1, math.floor(cov_fraction * total)))


def whiten(
  x,  # [B, T]
  mask,  # [B, T]
  eps: float = 1e-8,
) -> np.ndarray:  # [B, T]
  """(x − mean) / √(var + eps) over the mask, var with ddof 1; 0 elsewhere.

  Fewer than two entries, and equal entries, give exactly 0.
  """
  out = np.zeros(np.shape(mask))
  entries = []
  for row, keep in zip(x, mask, strict=True):
    entries += [float(v) for v, k in zip(row, keep, strict=True) if k]
  if len(entries) < 2 or max(entries) == min(entries):
    return out
  mean = sum(entries) / len(entries)
  variance = sum((v - mean) ** 2 for v in entries) / (len(entries) - 1)
  for i in range(len(mask)):
    for t in range(len(mask[i])):
      if mask[i][t]:
        out[i, t] = (float(x[i][t]) - mean) / math.sqrt(variance + eps)
  return out


def valid_tokens(mask, valid) -> np.ndarray:  # [B, T], [B] -> [B, T] bool
  """The mask without the rows that are not valid."""
  out = np.zeros(np.shape(mask), bool)
  for i in range(len(valid)):
    for t in range(np.shape(mask)[1]):
      out[i, t] = bool(mask[i][t]) and bool(valid[i])
  return out


# --- entropy-shaped rewards --------------------------------------------------


def shaped_rewards(
  entropies: list[float],
  correct: bool,
  alpha1: float,
  alpha2: float,
  eps: float,
) -> list[float]:
  """Shaped rewards of those rows of one group that are right, or wrong.

  Right: α1 + α2 d H_i / Σ_k H_k. Wrong: −α1 − α2 d (1/H_i) / Σ_k (1/H_k), with
  1/H read as 1/(H + eps). d is their number. If no right row has any entropy
  the shares are equal.
  """
  if correct:
    shares = entropies if sum(entropies) > 0 else [1.0] * len(entropies)
    sign = 1.0
  else:
    shares = [1.0 / (h + eps) for h in entropies]
    sign = -1.0
  total = sum(shares)
  return [
    sign * (alpha1 + alpha2 * len(shares) * share / total) for share in shares
  ]


def normalized(
  values: list[float], correct: list[bool], normalization: str, eps: float
) -> list[float]:
  """Standardises the values of one group (ddof 0) together or by side.

  Raises:
    ValueError: if normalization is not "joint", "split" or "none".
  """
  if normalization == "none":
    return list(values)
  if normalization == "joint":
    return standardized(values, 0, eps)
  if normalization != "split":
    raise ValueError(
      f"reference loss: normalization is {normalization!r}; pass 'joint', "
      "'split' or 'none'"
    )
  out = [0.0] * len(values)
  for side in (True, False):
    at = [j for j in range(len(values)) if bool(correct[j]) == side]
    scaled = standardized([values[j] for j in at], 0, eps)
    for j, value in zip(at, scaled, strict=True):
      out[j] = value
  return out


# --- pairs -------------------------------------------------------------------


def pairs(rewards, valid, group_id, mask) -> list[tuple[int, int]]:
  """(argmax R, argmin R) of every group where they differ; first on ties.

  Rows that are not valid or have no token are in no pair.
  """
  out = []
  for rows in members(valid, group_id):
    rows = [i for i in rows if num_tokens(mask[i]) > 0]
    if not rows:
      continue
    best = max(rows, key=lambda i: float(rewards[i]))
    worst = min(rows, key=lambda i: float(rewards[i]))
    if float(rewards[best]) > float(rewards[worst]):
      out.append((best, worst))
  return out


def pair_advantages(rewards, valid, group_id, mask) -> np.ndarray:  # [B]
  """+1 on the better row of each pair, −1 on the worse, 0 on the others."""
  out = np.zeros(len(rewards))
  for best, worst in pairs(rewards, valid, group_id, mask):
    out[best] = 1.0
    out[worst] = -1.0
  return out


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

"""The loss of a critic, and metrics of values and of probabilities."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import masked
from grpo_jax.types import Weighted

_NUM_BINS = 10  # Bins of the calibration error.


def value_loss(
  values: jax.Array,  # [B, T]
  returns: jax.Array,  # [B, T]
  old_values: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  clip: float | None = None,
) -> jax.Array:  # [B, T]
  """The squared error of a critic, pessimistic about large moves.

      ½ max( (V − R)², (V_old + clip(V − V_old, −c, c) − R)² )

  Args:
    values: V of the critic being trained, for the state before each token.
    returns: R, constants.
    old_values: V_old at the start of the update; constants.
    mask: True on trained tokens.
    clip: c, in units of the return, > 0; None for the plain error.

  Returns:
    Errors per token, not aggregated; 0 where masked. The gradient is 0 where V
    has left the range and moving back would not help.

  Source: Schulman et al., "Proximal Policy Optimization Algorithms",
  arXiv:1707.06347 (code); Ouyang et al., "InstructGPT", arXiv:2203.02155.
  """
  chex.assert_equal_shape([values, returns, old_values, mask])
  values = masked.select(values, mask)
  returns = masked.select(jax.lax.stop_gradient(returns), mask)
  error = jnp.square(values - returns)
  if clip is not None:
    old = masked.select(jax.lax.stop_gradient(old_values), mask)
    near = jnp.clip(values, old - clip, old + clip)
    error = jnp.maximum(error, jnp.square(near - returns))
  return 0.5 * error


def calibration_error(
  values: jax.Array,  # [B, T]
  returns: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # []
  """The expected calibration error of values against returns.

      Σ_k (n_k / N) |mean of V in bin k − mean of R in bin k|

  over 10 equal parts of the range of V.

  Returns:
    A number ≥ 0 in units of the return; 0 if the returns that follow any value
    have it as their mean. 0 without trained tokens. A metric: no gradient.

  Source: Naeini et al., "Obtaining Well Calibrated Probabilities Using
  Bayesian Binning", AAAI 2015 (expected calibration error).
  """
  chex.assert_equal_shape([values, returns, mask])
  values, returns = jax.lax.stop_gradient((values, returns))
  low = jnp.where(mask, values, jnp.inf).min()
  high = jnp.where(mask, values, -jnp.inf).max()
  width = jnp.where(high > low, high - low, 1.0)
  place = masked.select((values - low) / width * _NUM_BINS, mask)
  bins = jnp.clip(place.astype(jnp.int32), 0, _NUM_BINS - 1)
  gaps = jax.ops.segment_sum(
    masked.select(values - returns, mask).ravel(), bins.ravel(), _NUM_BINS
  )
  return jnp.abs(gaps).sum() / jnp.maximum(mask.sum(), 1)


def explained_variance(
  values: jax.Array,  # [B, T]
  returns: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # []
  """The explained variance of returns, 1 − Var(R − V) / Var(R).

  Returns:
    At most 1 (perfect up to a constant); 0 for values no better than a
    constant, and for constant returns. A metric: no gradient.
  """
  chex.assert_equal_shape([values, returns, mask])
  values, returns = jax.lax.stop_gradient((values, returns))

  def variance(x):
    centered = masked.select(x - masked.mean(x, mask), mask)
    return masked.mean(jnp.square(centered), mask)

  total = variance(returns)
  residual = variance(returns - values)
  # Compares extremes and not the variance: the mean of equal numbers may be
  # rounded.
  differ = masked.maximum(returns, mask) > -masked.maximum(-returns, mask)
  return jnp.where(differ, 1.0 - residual / jnp.where(differ, total, 1.0), 0.0)


NUM_BINS = 10


def gaps(
  probability: jax.Array,  # [...]
  right: jax.Array,  # [...]
  mask: jax.Array,  # [...] bool
) -> Weighted:
  """Signed gaps of an expected calibration error, which can be added up.

      total_k = Σ_{i in bin k} (p_i − right_i),   weight = N
      ECE     = Σ_k (n_k / N) |mean of p in bin k − mean of right in bin k|
              = Σ_k |total_k| / weight

  over 10 equal parts of [0, 1].

  Args:
    probability: p, in [0, 1].
    right: Outcome: 0, 1, or between them for a tie.
    mask: True on entries that count.

  Returns:
    Totals [10] and a weight []; a metric: no gradient. `mean` computes the
    error, after totals and weights of several batches were added.

  Source: Naeini et al., "Obtaining Well Calibrated Probabilities Using
  Bayesian Binning", AAAI 2015; Guo et al., "On Calibration of Modern Neural
  Networks", arXiv:1706.04599, Eq. 3.
  """
  chex.assert_equal_shape([probability, right, mask])
  probability, right = jax.lax.stop_gradient((probability, right))
  place = (masked.select(probability, mask) * NUM_BINS).astype(jnp.int32)
  bins = jnp.clip(place, 0, NUM_BINS - 1)
  distance = masked.select(probability - right, mask)
  total = jax.ops.segment_sum(distance.ravel(), bins.ravel(), NUM_BINS)
  return Weighted(total, mask.sum().astype(total.dtype))


def mean(x: Weighted) -> jax.Array:  # []
  """The total over the weight; for totals in bins, the sum of their sizes.

  Returns:
    The mean, or the calibration error of `gaps`; NaN if the weight is 0.
  """
  total = x.total if x.total.ndim == 0 else jnp.abs(x.total).sum()
  some = x.weight > 0
  return jnp.where(some, total / jnp.where(some, x.weight, 1), jnp.nan)

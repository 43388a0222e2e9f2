"""How often what is said with a probability is right."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import masked
from grpo_jax.types import Weighted

NUM_BINS = 10


def gaps(
  probability: jax.Array,  # [...]
  right: jax.Array,  # [...]
  mask: jax.Array,  # [...] bool
) -> Weighted:
  """What an expected calibration error is made of, to be added up.

      total_k = Σ_{i in bin k} (p_i − right_i),   weight = N
      ECE     = Σ_k (n_k / N) |mean of p in bin k − mean of right in bin k|
              = Σ_k |total_k| / weight

  over 10 equal parts of [0, 1].

  Args:
    probability: p, in [0, 1].
    right: What happened: 0, 1 or between them, as a tie of two.
    mask: True on what counts.

  Returns:
    Totals [10] and a weight []; a metric: no gradient. `error` makes the
    number of them, after those of several batches were added.

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
  """A mean, or of totals in bins the sum of their sizes, over the weight.

  Returns:
    NaN where nothing was counted.
  """
  total = x.total if x.total.ndim == 0 else jnp.abs(x.total).sum()
  some = x.weight > 0
  return jnp.where(some, total / jnp.where(some, x.weight, 1), jnp.nan)

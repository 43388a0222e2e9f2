"""Logit filters: functions [B, V] -> [B, V] with -inf outside the kept set.

Each keeps the most likely token of a row. A threshold decides, so tokens that
tie with the least likely kept one are kept too: the result does not depend on
the order of ids, and `top_k` may keep more than k.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def temperature(logits: jax.Array, value: float) -> jax.Array:  # [B, V]
  """Logits over a positive temperature; below 1 sharpens."""
  return logits / value


def top_k(logits: jax.Array, k: int) -> jax.Array:  # [B, V]
  """Keeps the k most likely tokens; all of them if k ≥ V."""
  largest, _ = lax.top_k(logits, min(k, logits.shape[-1]))  # [B, k]
  return jnp.where(logits >= largest[:, -1:], logits, -jnp.inf)


def top_p(
  logits: jax.Array,  # [B, V]
  p: float | jax.Array,  # or [B, 1]
) -> jax.Array:  # [B, V]
  """Keeps the likeliest tokens until the mass before the next one reaches p.

  The smallest set with mass of at least p, up to ties and rounding. At p = 1
  all tokens are kept, also those beyond which the sum rounds to 1.

  Source: Holtzman et al., "The Curious Case of Neural Text Degeneration",
  arXiv:1904.09751, Section 3.1.
  """
  descending = -jnp.sort(-logits, axis=-1)  # [B, V]
  probs = jax.nn.softmax(descending, axis=-1)
  mass_before = jnp.cumsum(probs, axis=-1) - probs
  # The first token has no mass before it, up to rounding: keep it regardless.
  kept = (mass_before < p).at[:, 0].set(True)
  threshold = jnp.where(kept, descending, jnp.inf).min(axis=-1, keepdims=True)
  threshold = jnp.where(jnp.asarray(p) < 1, threshold, -jnp.inf)
  return jnp.where(logits >= threshold, logits, -jnp.inf)


def min_p(logits: jax.Array, p: float) -> jax.Array:  # [B, V]
  """Keeps tokens with at least p times the probability of the most likely.

  Source: Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and
  Coherent LLM Outputs", arXiv:2407.01082.
  """
  threshold = logits.max(axis=-1, keepdims=True) + jnp.log(p)
  return jnp.where(logits >= threshold, logits, -jnp.inf)

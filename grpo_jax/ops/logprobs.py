"""From logits to log-probabilities and entropies of tokens.

The one place where a token meets the logits that predict it. Everything is at
least float32: a log-prob near -1 rounds by up to 4e-3 in bfloat16, which is
more than the clip range of sequence-level objectives.
"""

from __future__ import annotations

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from jax import lax


def _scaled_and_shifted(
  logits: jax.Array,  # [..., V]
  temperature: float | jax.Array,
) -> tuple[jax.Array, jax.Array]:  # [..., V], [...]
  """Logits over temperature with maximum 0, and their log-sum-exp."""
  if isinstance(temperature, (int, float)) and temperature <= 0:
    raise ValueError(
      f"logprobs: temperature is {temperature}, but it divides the logits and"
      " must be positive; use 1.0 for tokens that were chosen greedily."
    )
  # Upcast before anything else: the rounding of bfloat16 cannot be undone.
  scaled = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  scaled = scaled / temperature
  # Log-probs and entropies do not change with a shift, so the maximum needs no
  # gradient; with it gone exp cannot overflow and the sum is at least 1.
  shifted = scaled - lax.stop_gradient(scaled.max(axis=-1, keepdims=True))
  return shifted, jnp.log(jnp.exp(shifted).sum(axis=-1))


def token_logprobs(
  logits: jax.Array,  # [..., V]
  tokens: jax.Array,  # [...] int
  temperature: float | jax.Array = 1.0,
) -> jax.Array:  # [...]
  """Log-probability of each token under softmax(logits / temperature).

      log p(y) = z_y − log Σ_v exp(z_v),   z = logits / temperature

  Args:
    logits: Unnormalised; -inf where a token was filtered out.
    tokens: Ids in [0, V).
    temperature: Positive.

  Returns:
    Nats, float32 (float64 for float64 logits); -inf for a token whose logit
    is -inf.

  Raises:
    ValueError: If `temperature` is a Python number that is not positive.
  """
  chex.assert_equal_shape_prefix([logits, tokens], tokens.ndim)
  chex.assert_rank(logits, tokens.ndim + 1)
  shifted, log_sum = _scaled_and_shifted(logits, temperature)
  # A select instead of a gather: it fuses into the sum, its gradient is a
  # select too (not a scatter, slow on CPU and TPU), and it stays local when
  # the vocabulary is sharded.
  chosen = tokens[..., None] == jnp.arange(logits.shape[-1])  # [..., V]
  return jnp.where(chosen, shifted, 0.0).sum(axis=-1) - log_sum


def entropy_from_logits(
  logits: jax.Array,  # [..., V]
  temperature: float | jax.Array = 1.0,
) -> jax.Array:  # [...]
  """Entropy of softmax(logits / temperature).

      H = log Σ_v exp(z_v) − Σ_v p_v z_v

  Args:
    logits: Unnormalised; -inf where a token was filtered out (it then
      contributes 0, with a gradient of 0).
    temperature: Positive.

  Returns:
    Nats, in [0, log V].

  Raises:
    ValueError: If `temperature` is a Python number that is not positive.
  """
  shifted, log_sum = _scaled_and_shifted(logits, temperature)
  kept = jnp.isfinite(shifted)
  # Masked before the product as well: 0 · (-inf) is NaN, and so would be the
  # gradient of a product that is only discarded afterwards.
  finite = jnp.where(kept, shifted, 0.0)
  probs = jnp.where(kept, jnp.exp(finite - log_sum[..., None]), 0.0)
  return log_sum - (probs * finite).sum(axis=-1)


def token_outputs(
  head: Callable[[jax.Array], jax.Array],
  h: jax.Array,  # [B, T, D]
  tokens: jax.Array,  # [B, T] int
  *,
  temperature: float | jax.Array,
  with_entropy: bool,
  chunk_tokens: int = 4096,
) -> tuple[jax.Array, jax.Array | None]:  # [B, T], [B, T]
  """Log-probs and entropies of tokens from the states that predict them.

  With more than `chunk_tokens` tokens the head runs over a few positions of
  every row at a time, and again in the backward pass, so that the logits
  [B, T, V] never exist whole. Positions are split and rows are not, because
  rows are what a mesh shards.

  Args:
    head: States [..., D] to logits [..., V].
    h: `h[:, t]` predicts `tokens[:, t]`.
    tokens: Ids in [0, V).
    temperature: Positive.
    with_entropy: Whether to compute entropies.
    chunk_tokens: Tokens of the batch whose logits may exist at once; at least
      one position of every row is.

  Returns:
    Log-probs, and entropies or None; nats.

  Raises:
    ValueError: If `temperature` is a Python number that is not positive.
  """
  chex.assert_rank([h, tokens], [3, 2])
  chex.assert_equal_shape_prefix([h, tokens], 2)

  def outputs(h, tokens):
    logits = head(h)
    logp = token_logprobs(logits, tokens, temperature)
    if not with_entropy:
      return logp, None
    return logp, entropy_from_logits(logits, temperature)

  num_rows, num_slots, width = h.shape
  if num_rows * num_slots <= chunk_tokens:
    return outputs(h, tokens)

  size = max(1, chunk_tokens // num_rows)
  num_chunks = -(-num_slots // size)
  padding = num_chunks * size - num_slots
  h = jnp.pad(h, ((0, 0), (0, padding), (0, 0)))
  tokens = jnp.pad(tokens, ((0, 0), (0, padding)))
  h = h.reshape(num_rows, num_chunks, size, width)
  tokens = tokens.reshape(num_rows, num_chunks, size)
  chunked = lax.map(
    lambda chunk: jax.checkpoint(outputs)(*chunk),
    (jnp.moveaxis(h, 1, 0), jnp.moveaxis(tokens, 1, 0)),
  )  # each [num_chunks, B, size]

  def joined(x):  # [num_chunks, B, size] -> [B, T]
    x = jnp.moveaxis(x, 0, 1).reshape(num_rows, num_chunks * size)
    return x[:, :num_slots]

  return jax.tree.map(joined, chunked)

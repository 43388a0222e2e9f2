"""Equations of Llama 4 beside those of other transformers.

Three of four layers turn queries and keys by positions, norm them without
scales, and see only the tokens of their own chunk (`attention.views`). The
other layers see all tokens, do not turn, and multiply queries of long contexts
by a temperature. An expert reads its input multiplied by its weight:

    y = shared(x) + Σ_j expert_{e_j}(σ(r_{e_j} · x) x)

Source: Meta AI, "The Llama 4 herd", 2025; the equations are those of
`transformers` 5.24 (models/llama4). Deviation: a temperature there counts the
padding on the left of a row, and here tokens.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.models import experts
from grpo_jax.models.architecture import Llama4Config, TransformerConfig
from grpo_jax.ops import masked


def temperature(
  config: Llama4Config,
  positions: jax.Array,  # [B, L, 1]
) -> jax.Array:  # [B, L, 1]
  """Factor of queries that positions do not turn, at least float32."""
  lengths = ((positions + 1) // config.temperature_len).astype(jnp.float32)
  return 1 + config.temperature * jnp.log1p(lengths)


def queries_and_keys(
  config: TransformerConfig,
  q: jax.Array,  # [B, L, C, R, K]
  k: jax.Array,  # [B, L, C, K]
  rope: tuple[jax.Array, ...],  # Of `blocks.rotary`.
) -> tuple[jax.Array, jax.Array]:
  """Norms queries and keys if positions turn them; else scales the queries."""
  assert config.llama4 is not None
  *_, factors, turns = rope

  def normed(x):
    wide = masked.wide(x)
    mean_square = jnp.square(wide).mean(axis=-1, keepdims=True)
    return (wide * lax.rsqrt(mean_square + config.norm_eps)).astype(x.dtype)

  near, far = (q, k), (q, k)
  if config.llama4.head_norm:
    near = normed(q), normed(k)
  if config.llama4.temperature:
    far = (masked.wide(q) * factors[:, :, None, None]).astype(q.dtype), k
  return tuple(  # type: ignore[return-value]
    jnp.where(turns, x, y) for x, y in zip(near, far, strict=True)
  )


def mix(
  x: jax.Array,  # [N, D]
  routed: experts.Routed,
  kernels: experts.Kernels,
  gated: experts.Gated,
  form: str,
) -> jax.Array:  # [N, D]
  """Outputs of experts for inputs that are multiplied by the weights."""
  weights = routed.weights.astype(x.dtype)
  inputs = (weights[..., None] * x[:, None]).reshape(-1, x.shape[-1])
  ids = routed.ids.reshape(-1, 1)  # Each input has one expert.
  ones = jnp.ones(ids.shape, routed.weights.dtype)
  y = experts.mix(inputs, ids, ones, kernels, gated, form)
  return y.reshape(*weights.shape, -1).sum(axis=1)

"""Hyper-connections: a token has n streams X [n, D] instead of one vector.

A part F of a layer, attention or the MLP, reads a sum of the streams and is
added to each of them. Meanwhile the streams are mixed:

    X' = Bᵀ X + c F(aᵀ X)ᵀ,      a, c ∈ R^n,  B ∈ R^{n × n}

The three are made of the streams, with x̂ = vec(X) / rms(vec(X)):

    a = σ(s_1 W_1 x̂ + b_1) + ε,    c = 2 σ(s_2 W_2 x̂ + b_2),
    B = P(softmax_rows(s_3 W_3 x̂ + b_3) + ε).

P divides the columns of a matrix by their sums, then some more times its rows
and its columns (Sinkhorn and Knopp). So all sums are nearly 1, and mixing makes
no stream larger, however many layers there are. Each sum is increased by ε.

Before the first layer all streams are the embedding. After the last layer a
sum of them, with an a of its own, is what the final norm reads.

Source: Xie et al., "mHC: Manifold-Constrained Hyper-Connections",
arXiv:2512.24880, Section 4; Zhu et al., "Hyper-Connections", arXiv:2409.19606.
The factors, ε and the order of the divisions are those of `transformers` 5.24
(models/deepseek_v4).
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.ops import masked


def doubly_stochastic(
  x: jax.Array,  # [..., n, n], positive
  steps: int,
  eps: float,
) -> jax.Array:  # [..., n, n]
  """P of the module's docstring, with `steps` divisions of the columns."""

  def divided(x, axis):
    return x / (x.sum(axis=axis, keepdims=True) + eps)

  def step(_, x):
    return divided(divided(x, -1), -2)

  return lax.fori_loop(0, steps - 1, step, divided(x, -2))


def summed(
  a: jax.Array,  # [..., n]
  streams: jax.Array,  # [..., n, D]
) -> jax.Array:  # [..., D]
  """aᵀ X, in the dtype of the streams."""
  return (a[..., None] * streams).sum(axis=-2).astype(streams.dtype)


def added(
  streams: jax.Array,  # [..., n, D]
  y: jax.Array,  # [..., D]
  c: jax.Array,  # [..., n]
  b: jax.Array,  # [..., n, n]
) -> jax.Array:  # [..., n, D]
  """Bᵀ X + c yᵀ, in the dtype of the streams."""
  c, b = c.astype(streams.dtype), b.astype(streams.dtype)
  mixed = jnp.einsum("...jk,...jd->...kd", b, streams)
  return c[..., None] * y[..., None, :] + mixed


class HyperConnection(nn.Module):
  """Makes a, c and B; with `only_sum` a alone. All are at least float32."""

  config: TransformerConfig
  only_sum: bool = False

  @nn.compact
  def __call__(self, streams: jax.Array):  # [..., n, D]
    config = self.config
    sizes = config.deepseek4
    assert sizes is not None
    n = sizes.num_streams
    widths = (n,) if self.only_sum else (n, n, n * n)

    def parameter(name, start, *shape):
      return self.param(name, start, shape, config.param_dtype)

    small = nn.initializers.normal(0.02)
    total = sum(widths)
    weight = parameter("weight", small, n * config.width, total)
    bias = parameter("bias", nn.initializers.zeros, total)
    scale = parameter("scale", nn.initializers.ones, len(widths))
    weight, bias, scale = masked.wide((weight, bias, scale))
    x = masked.wide(streams.reshape(*streams.shape[:-2], -1))
    mean_square = jnp.square(x).mean(axis=-1, keepdims=True)
    x = x * lax.rsqrt(mean_square + config.norm_eps)
    # Not with the default precision of a TPU: the products decide for all
    # later layers.
    x = jnp.matmul(x, weight, precision=lax.Precision.HIGHEST)
    ends = [sum(widths[: i + 1]) for i in range(len(widths) - 1)]
    parts = [
      s * part + b
      for s, part, b in zip(
        scale,
        jnp.split(x, ends, axis=-1),
        jnp.split(bias, ends),
        strict=True,
      )
    ]
    a = nn.sigmoid(parts[0]) + sizes.stream_eps
    if self.only_sum:
      return a
    b = parts[2].reshape(*a.shape, n)
    b = nn.softmax(b, axis=-1) + sizes.stream_eps
    b = doubly_stochastic(b, sizes.sinkhorn_steps, sizes.stream_eps)
    return a, 2 * nn.sigmoid(parts[1]), b

"""A decoder-only transformer of the Llama / Qwen family, as a `Policy`.

RMSNorm, rotary positions, grouped-query attention, SwiGLU. Flax describes one
block; the layers are one stacked parameter tree. The training pass scans over
the stack (one layer is compiled once), the decode step walks it in Python
(see `_decode`). `P` prompts, `B` rows, `S` prompt and `T` completion slots,
`L = S + T`, `D` width, `H` query heads, `C` key/value heads, `R = H / C`
queries per key, `K` head width.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.types import Policy, PyTree


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Sizes and switches of a transformer.

  Attributes:
    vocab_size: Number of token ids.
    width: Width of the residual stream.
    num_layers: Number of blocks.
    num_heads: Query heads.
    num_kv_heads: Key and value heads; divides `num_heads`.
    mlp_width: Width inside the SwiGLU.
    head_dim: Width of a head, even; `width // num_heads` if None.
    rope_theta: Base of the rotary wavelengths.
    norm_eps: Added to mean squares before the root.
    qk_norm: RMSNorm on queries and keys, per head (Qwen3).
    qkv_bias: Biases on queries, keys and values (Qwen2).
    tied_embeddings: Whether the head is the transposed embedding table.
    remat: Recompute blocks in the backward pass instead of storing them.
    dtype: Of activations and matmul operands. Norm statistics, softmax and
      logits are at least float32.
    param_dtype: Of the parameters.
  """

  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  mlp_width: int
  head_dim: int | None = None
  rope_theta: float = 10_000.0
  norm_eps: float = 1e-6
  qk_norm: bool = False
  qkv_bias: bool = False
  tied_embeddings: bool = True
  remat: bool = False
  dtype: str = "float32"
  param_dtype: str = "float32"

  def __post_init__(self):
    for name in (
      "vocab_size",
      "width",
      "num_layers",
      "num_heads",
      "num_kv_heads",
      "mlp_width",
    ):
      if getattr(self, name) < 1:
        raise ValueError(
          f"TransformerConfig: {name} is {getattr(self, name)}, but must be at"
          " least 1."
        )
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"TransformerConfig: {self.num_heads} query heads do not split over"
        f" {self.num_kv_heads} key/value heads; make num_heads a multiple of"
        " num_kv_heads."
      )
    if self.head_dim is None:
      if self.width % self.num_heads:
        raise ValueError(
          f"TransformerConfig: width {self.width} does not split into"
          f" {self.num_heads} heads; change one, or set head_dim."
        )
      object.__setattr__(self, "head_dim", self.width // self.num_heads)
    if self.head_dim < 2 or self.head_dim % 2:
      raise ValueError(
        f"TransformerConfig: head_dim is {self.head_dim}, but rotary positions"
        " turn pairs of channels; make it even and positive."
      )
    for name in ("dtype", "param_dtype"):
      if getattr(self, name) not in ("float64", "float32", "bfloat16"):
        raise ValueError(
          f"TransformerConfig: {name} is {getattr(self, name)!r}; use"
          " 'float32', 'bfloat16' or (tests) 'float64'."
        )

  @property
  def queries_per_key(self) -> int:
    return self.num_heads // self.num_kv_heads


def _at_least_float32(x: jax.Array) -> jax.Array:
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


class RMSNorm(nn.Module):
  """x / sqrt(mean(x²) + ε) · scale over the last axis."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [..., D] -> [..., D]
    scale = self.param(
      "scale", nn.initializers.ones, x.shape[-1:], self.config.param_dtype
    )
    # float32: in bfloat16 the mean square has 8 bits.
    wide = _at_least_float32(x)
    mean_square = jnp.square(wide).mean(axis=-1, keepdims=True)
    wide = wide * lax.rsqrt(mean_square + self.config.norm_eps)
    return (wide * scale).astype(self.config.dtype)


class Attention(nn.Module):
  """Projections of grouped-query attention; `attend` is the part between.

  The fused kernel is [D, C, R + 2, K]: for each key/value head its R queries,
  its key and its value, so that a mesh can split C and keep a head together.
  """

  config: TransformerConfig

  def setup(self):
    config = self.config
    dense = functools.partial(
      nn.DenseGeneral, dtype=config.dtype, param_dtype=config.param_dtype
    )
    self.qkv = dense(
      (config.num_kv_heads, config.queries_per_key + 2, config.head_dim),
      use_bias=config.qkv_bias,
    )
    self.out = dense(config.width, axis=(-3, -2, -1), use_bias=False)
    if config.qk_norm:
      self.query_norm = RMSNorm(config)
      self.key_norm = RMSNorm(config)

  def project(self, x, rope):  # x [B, L, D], rope 2 · [B, L, K / 2]
    """Queries [B, L, C, R, K], keys and values [B, L, C, K], rotated."""
    qkv = self.qkv(x)  # [B, L, C, R + 2, K]
    q, k, v = qkv[..., :-2, :], qkv[..., -2:-1, :], qkv[..., -1, :]
    if self.config.qk_norm:
      q, k = self.query_norm(q), self.key_norm(k)
    return rotate(q, rope), rotate(k, rope)[..., 0, :], v


class MLP(nn.Module):
  """down(silu(gate(x)) · up(x))."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [..., D] -> [..., D]
    config = self.config
    dense = functools.partial(
      nn.Dense,
      use_bias=False,
      dtype=config.dtype,
      param_dtype=config.param_dtype,
    )
    gate = dense(config.mlp_width, name="gate")(x)
    up = dense(config.mlp_width, name="up")(x)
    return dense(config.width, name="down")(nn.silu(gate) * up)


class Block(nn.Module):
  """One layer, in two halves around the attention product."""

  config: TransformerConfig

  def setup(self):
    self.attention_norm = RMSNorm(self.config)
    self.attention = Attention(self.config)
    self.mlp_norm = RMSNorm(self.config)
    self.mlp = MLP(self.config)

  def project(self, x, rope):
    return self.attention.project(self.attention_norm(x), rope)

  def finish(self, x, attended):  # x [B, L, D], attended [B, L, C, R, K]
    x = x + self.attention.out(attended)
    return x + self.mlp(self.mlp_norm(x))

  def __call__(self, x, rope, mask):  # mask [B, L, L]
    q, k, v = self.project(x, rope)
    return self.finish(x, attend(q, k, v, mask)), (k, v)

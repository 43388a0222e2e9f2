"""Parts of vision towers that families share: sizes, norms, blocks.

A tower is a transformer without a causal mask over the patches of images. `P`
prompts, `N` places for patches of `F` numbers, `H` heads of width `K`, `D`
width of the tower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from grpo_jax.models.architecture import TowerConfig
from grpo_jax.ops import masked
from grpo_jax.types import Images

_BLOCK = 512  # Queries whose scores exist at a time.
# Function that turns queries and keys [P, N, H, K] by their positions.
Turn = Callable[[jax.Array], jax.Array]


class TowerOutputs(NamedTuple):
  """Features of the images of P prompts, for a language model.

  Attributes:
    features: One vector for each placeholder; vectors behind the last merged
      patch belong to empty places, and are not read.
    deep: Vectors that are added to the residual stream after the first layers
      of the language model, one array for each layer; often none.
  """

  features: jax.Array  # [P, N / merge², width of the language model]
  deep: tuple[jax.Array, ...] = ()


class VisionRMSNorm(nn.Module):
  """x / sqrt(mean(x²) + ε) · scale over the last axis (Qwen2.5-VL)."""

  eps: float
  dtype: str
  param_dtype: str

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [..., D] -> [..., D]
    shape = x.shape[-1:]
    scale = self.param("scale", nn.initializers.ones, shape, self.param_dtype)
    wide = masked.wide(x)
    mean_square = jnp.square(wide).mean(axis=-1, keepdims=True)
    y = wide * jax.lax.rsqrt(mean_square + self.eps) * masked.wide(scale)
    return y.astype(self.dtype)


class LayerNorm(nn.Module):
  """(x − mean) / sqrt(variance + ε) · scale + bias over the last axis."""

  eps: float
  dtype: str
  param_dtype: str

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [..., D] -> [..., D]
    shape = x.shape[-1:]
    scale = self.param("scale", nn.initializers.ones, shape, self.param_dtype)
    bias = self.param("bias", nn.initializers.zeros, shape, self.param_dtype)
    wide = masked.wide(x)  # As in the norms of the language model.
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(variance + self.eps)
    y = normed * masked.wide(scale) + masked.wide(bias)
    return y.astype(self.dtype)


def norm(tower: TowerConfig, dtype: str, param_dtype: str, name: str | None):
  """The norm module of a family: RMSNorm in Qwen2.5-VL, else LayerNorm."""
  kind = VisionRMSNorm if tower.kind == "qwen2_5_vl" else LayerNorm
  return kind(tower.norm_eps, dtype, param_dtype, name=name)


def visible(images: Images) -> jax.Array:  # [P, N, N] bool
  """Mask by which a patch sees the patches of its own image."""
  of_query, of_key = images.image[:, :, None], images.image[:, None, :]
  return (of_query == of_key) & (of_key >= 0)


def attend(
  q: jax.Array,  # [P, N, H, K]
  k: jax.Array,  # [P, N, H, K]
  v: jax.Array,  # [P, N, H, K]
  mask: jax.Array,  # [P, N, N] bool
) -> jax.Array:  # [P, N, H, K]
  """Softmax attention; a patch that sees no patch gets a finite result.

  Many queries are taken `_BLOCK` at a time, and the backward pass recomputes
  the scores of a block: the scores of all queries, P · H · N² numbers, would be
  the largest array of a run.
  """
  num_blocks = q.shape[1] // _BLOCK
  if num_blocks < 2 or q.shape[1] % _BLOCK:
    return _attend(q, k, v, mask)

  def blocks(x):  # [P, N, ...] -> [blocks, P, N / blocks, ...]
    x = x.reshape(x.shape[0], num_blocks, _BLOCK, *x.shape[2:])
    return jnp.moveaxis(x, 1, 0)

  of_block = jax.checkpoint(lambda of: _attend(of[0], k, v, of[1]))
  outputs = jax.lax.map(of_block, (blocks(q), blocks(mask)))
  return jnp.moveaxis(outputs, 0, 1).reshape(q.shape)


def _attend(q, k, v, mask):
  scores = jnp.einsum("pnhk,pmhk->phnm", q, k)
  scores = masked.wide(scores) * q.shape[-1] ** -0.5
  # Not -inf: an empty place sees no patch, and its row would be NaN.
  scores = jnp.where(mask[:, None], scores, jnp.finfo(scores.dtype).min)
  weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  return jnp.einsum("phnm,pmhk->pnhk", weights, v)


class VisionAttention(nn.Module):
  """Multi-head attention with biases; kernels are laid out as in `blocks.py`.

  The fused kernel is [D, H, 3, K]: query, key and value of each head.
  """

  tower: TowerConfig
  dtype: str
  param_dtype: str

  @nn.compact
  def __call__(
    self,
    x: jax.Array,  # [P, N, D]
    mask: jax.Array,  # [P, N, N] bool
    turn: Turn = lambda x: x,
  ) -> jax.Array:  # [P, N, D]
    tower = self.tower
    dense = functools.partial(
      nn.DenseGeneral, dtype=self.dtype, param_dtype=self.param_dtype
    )
    qkv = dense((tower.num_heads, 3, tower.head_width), name="qkv")(x)
    q, k, v = (qkv[..., i, :] for i in range(3))  # [P, N, H, K]
    attended = attend(turn(q), turn(k), v, mask)
    out = dense(tower.width, axis=(-3, -2, -1), name="out")
    return out(attended[..., None, :])


class VisionMLP(nn.Module):
  """down(gelu(up(x))) with biases, and the tanh form of gelu.

  In Qwen2-VL, gelu(x) is x · σ(1.702 x). In Qwen2.5-VL the MLP is
  down(silu(gate(x)) · up(x)), also with biases.
  """

  tower: TowerConfig
  dtype: str
  param_dtype: str

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [..., D] -> [..., D]
    dense = functools.partial(
      nn.Dense, dtype=self.dtype, param_dtype=self.param_dtype
    )
    inner = dense(self.tower.mlp_width, name="up")(x)
    if self.tower.kind == "qwen2_5_vl":
      inner = nn.silu(dense(self.tower.mlp_width, name="gate")(x)) * inner
    elif self.tower.kind == "qwen2_vl":
      inner = inner * nn.sigmoid(1.702 * inner)
    else:
      inner = nn.gelu(inner)
    return dense(self.tower.width, name="down")(inner)


class VisionBlock(nn.Module):
  """One layer of a tower: attention and MLP, each after a norm."""

  tower: TowerConfig
  dtype: str
  param_dtype: str

  @nn.compact
  def __call__(
    self,
    x: jax.Array,  # [P, N, D]
    mask: jax.Array,  # [P, N, N] bool
    turn: Turn = lambda x: x,
  ) -> jax.Array:  # [P, N, D]
    of = self.tower, self.dtype, self.param_dtype
    attention = VisionAttention(*of, name="attention")
    x = x + attention(norm(*of, name="attention_norm")(x), mask, turn)
    return x + VisionMLP(*of, name="mlp")(norm(*of, name="mlp_norm")(x))

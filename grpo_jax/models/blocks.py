"""One block of a transformer: norms, projections, MLP or experts, positions.

Flax describes the block; `transformer.py` has the stack of them, and the
letters of the shapes.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.models import experts
from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.ops import masked


def _on_rows(dense, x: jax.Array, num_axes: int = 1) -> jax.Array:
  """Applies `dense` to the last axes of x [B, L, ...] as one tall matrix.

  With two row axes XLA:CPU transposes the activations, on one core, before
  every weight gradient: a third of a training step (width 256, 4 layers).
  """
  rows = x.shape[:-num_axes]
  y = dense(x.reshape(-1, *x.shape[-num_axes:]))
  return y.reshape(*rows, *y.shape[1:])


class RMSNorm(nn.Module):
  """x / sqrt(mean(x²) + ε) · scale over the last `num_axes` axes."""

  config: TransformerConfig
  num_axes: int = 1

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [..., D] -> [..., D]
    config = self.config
    start = (
      nn.initializers.zeros if config.norm_plus_one else nn.initializers.ones
    )
    scale = self.param(
      "scale", start, x.shape[-self.num_axes :], config.param_dtype
    )
    # float32: in bfloat16 the mean square has 8 bits.
    wide, scale = masked.wide(x), masked.wide(scale)
    axes = tuple(range(-self.num_axes, 0))
    mean_square = jnp.square(wide).mean(axis=axes, keepdims=True)
    wide = wide * lax.rsqrt(mean_square + config.norm_eps)
    return (wide * (scale + config.norm_plus_one)).astype(config.dtype)


def residual_init(config: TransformerConfig) -> nn.initializers.Initializer:
  """Small, so that a block starts near the identity.

  With Flax's default the blocks drown the embedding, and which token stood
  there is learnt late: 500 supervised steps on two-digit addition ended at a
  loss of 1.06 nats with it and at 0.32 with this.

  Source: Radford et al., "Language Models are Unsupervised Multitask
  Learners", 2019, Section 2.3 (the factor for the depth).
  """
  return nn.initializers.normal(0.02 / (2 * config.num_layers) ** 0.5)


class Attention(nn.Module):
  """Projections of grouped-query attention; `attention.py` has the rest.

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
      (config.num_kv_heads, config.queries_per_key + 2, config.head_width),
      use_bias=config.qkv_bias,
    )
    self.out = dense(
      config.width,
      axis=(-3, -2, -1),
      use_bias=False,
      kernel_init=residual_init(config),
    )
    if config.qk_norm != "none":
      # Queries are [..., C, R, K], keys [..., C, 1, K].
      num_axes = 1 if config.qk_norm == "head" else 3
      self.query_norm = RMSNorm(config, num_axes)
      self.key_norm = RMSNorm(config, num_axes)

  def project(self, x, rope):  # x [B, L, D], rope 2 · [B, L, K / 2]
    """Queries [B, L, C, R, K], keys [B, C, K, L] and values [B, C, L, K]."""
    qkv = _on_rows(self.qkv, x)  # [B, L, C, R + 2, K]
    q, k, v = qkv[..., :-2, :], qkv[..., -2:-1, :], qkv[..., -1, :]
    if self.config.qk_norm != "none":
      q, k = self.query_norm(q), self.key_norm(k)
    k = rotate(k, rope)[..., 0, :]
    return rotate(q, rope), jnp.moveaxis(k, 1, -1), jnp.moveaxis(v, 1, 2)


class MLP(nn.Module):
  """down(activation(gate(x)) · up(x))."""

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
    down = dense(config.width, name="down", kernel_init=residual_init(config))
    return down(_activation(config)(gate) * up)


def _activation(config: TransformerConfig):
  return nn.silu if config.activation == "silu" else nn.gelu


class ExpertKernels(nn.Module):
  """The parameters of the experts; the first axis counts them."""

  config: TransformerConfig

  @nn.compact
  def __call__(self) -> experts.Kernels:
    config = self.config
    count, width, inner = (
      config.num_experts,
      config.width,
      config.expert_width,
    )
    each = nn.initializers.lecun_normal(batch_axis=0)
    kernels = (
      self.param(name, start, shape, config.param_dtype).astype(config.dtype)
      for name, start, shape in (
        ("gate", each, (count, width, inner)),
        ("up", each, (count, width, inner)),
        ("down", residual_init(config), (count, inner, width)),
      )
    )
    return experts.Kernels(*kernels)


class MoE(nn.Module):
  """A router and the experts among which it chooses for each token."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x, kept=None, bias=None):  # [N, D], [N, k], [E]
    config = self.config
    # Near-ties decide which experts run, and bfloat16 makes many of them; so
    # does a float32 product at the default precision of a TPU.
    router = nn.Dense(
      config.num_experts,
      use_bias=False,
      dtype=jnp.promote_types(config.dtype, jnp.float32),
      param_dtype=config.param_dtype,
      precision=lax.Precision.HIGHEST,
      kernel_init=nn.initializers.normal(0.02),
      name="router",
    )
    routed = experts.route(
      router(x), config.experts_per_token, config.norm_topk, kept, bias
    )
    y = experts.mix(
      x.astype(config.dtype),
      routed.ids,
      routed.weights,
      ExpertKernels(config, name="experts")(),
      _activation(config),
      config.experts,
    )
    return y, (routed.probs, routed.ids)


class RouterInputs(NamedTuple):
  """What a layer's router is told, each None where there is nothing to tell.

  In `_forward` and `_decode` with an axis of layers, which comes first.
  """

  kept: jax.Array | None = None  # [B, L, k] int32
  bias: jax.Array | None = None  # [E]


class Block(nn.Module):
  """One layer: on whole sequences, or one token further with a cache."""

  config: TransformerConfig

  def setup(self):
    config = self.config
    self.attention = Attention(config)
    mlp: Any = MoE if config.num_experts else MLP
    self.mlp = mlp(config)
    if config.pre_norm:
      self.attention_norm = RMSNorm(config)
      self.mlp_norm = RMSNorm(config)
    if config.post_norm:
      self.attention_post_norm = RMSNorm(config)
      self.mlp_post_norm = RMSNorm(config)

  def _project(self, x, rope):
    x = self.attention_norm(x) if self.config.pre_norm else x
    return self.attention.project(x, rope)

  def _finish(self, x, attended, router):  # [B, L, D], [B, L, C, R, K]
    config = self.config
    y = _on_rows(self.attention.out, attended, num_axes=3)
    x = x + (self.attention_post_norm(y) if config.post_norm else y)
    y = self.mlp_norm(x) if config.pre_norm else x
    routed = None
    if config.num_experts:
      y, routed = self._mix(y, router)
    else:
      y = _on_rows(self.mlp, y)
    return x + (self.mlp_post_norm(y) if config.post_norm else y), routed

  def _mix(self, x, router):  # [B, L, D]
    rows = x.shape[:-1]
    kept = router.kept
    if kept is not None:
      kept = kept.reshape(-1, kept.shape[-1])
    y, routed = self.mlp(x.reshape(-1, x.shape[-1]), kept, router.bias)
    return jax.tree.map(lambda z: z.reshape(*rows, -1), (y, routed))

  def __call__(self, x, rope, attend, router, before=None):
    """On whole sequences, where `attend` takes queries, keys and values.

    With `before`, keys [B, C, K, S - 1] and values [B, C, S - 1, K] of what
    rows continue, on what comes after those.

    Returns:
      The new x [B, L, D]; keys [B, C, K, L] and values [B, C, L, K]; the
      router's probabilities [B, L, E] and choices [B, L, k], or None.
    """
    q, k, v = self._project(x, rope)
    if before is None:
      attended = attend(q, k, v)
    else:
      # One softmax over joined keys. Two blocks of scores, with the prompt's
      # in one product for all its rows, took 7.4 ms and not 9.6 in a gradient
      # of 8 rows of 128 tokens after 63 (2 % of the update), and 8.2 and not
      # 6.6 for 64 tokens after 15.
      attended = attend(
        q,
        jnp.concatenate([before[0], k], axis=-1),
        jnp.concatenate([before[1], v], axis=-2),
      )
    x, routed = self._finish(x, attended, router)
    return x, (k, v), routed

  def decode(self, x, rope, attend, router):  # [B, 1, D]
    """The same for one token, which `attend` also writes to a cache."""
    attended, cache = attend(*self._project(x, rope))
    x, routed = self._finish(x, attended, router)
    return x, cache, routed


def _frequencies(config: TransformerConfig, dtype) -> jax.Array:  # [K / 2]
  """Radians per token of each pair of channels, scaled for long contexts."""
  half = config.head_width // 2
  plain = config.rope_theta ** (-jnp.arange(half, dtype=dtype) / half)
  if config.rope_scaling == "none":
    return plain
  scaled = plain / config.rope_factor
  if config.rope_scaling == "linear":
    return scaled
  # Llama 3: only what turns less than once in the original context is scaled,
  # with a ramp between its two bounds.
  turns = config.rope_original_len * plain / (2 * jnp.pi)
  low, high = config.rope_low_freq, config.rope_high_freq
  share = jnp.clip((turns - low) / (high - low), 0, 1)
  return share * plain + (1 - share) * scaled


def rotary(
  config: TransformerConfig,
  positions: jax.Array,  # [B, L]
) -> tuple[jax.Array, jax.Array]:  # 2 · [B, L, K / 2]
  """Cosines and sines of position · frequency, at least float32."""
  dtype = jnp.promote_types(config.dtype, jnp.float32)
  angles = positions[..., None].astype(dtype) * _frequencies(config, dtype)
  return jnp.cos(angles), jnp.sin(angles)


def rotate(x, rope):  # x [B, L, C, R, K], rope 2 · [B, L, K / 2]
  """Turns channel pairs (i, i + K / 2), as Llama and Qwen do."""
  cos, sin = (table[:, :, None, None, :] for table in rope)
  first, second = jnp.split(masked.wide(x), 2, axis=-1)
  turned = (first * cos - second * sin, second * cos + first * sin)
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)

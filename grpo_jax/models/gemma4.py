"""One block of Gemma 4, and the inputs of its layers.

With norms n_i, and h the residual stream of a token, a layer is

    h ← h + n_2(attention(n_1(h)))
    h ← h + n_4(mlp(n_3(h)))      or  h + n_4(n_5(mlp(n_3(h))) + n_7(experts))
    h ← h + n_8(W_out(gelu(W_in h) ⊙ p_l))
    h ← s_l h

p_l is the layer's input, of the token and of its embedding e (width D):

    p_l = (n(W_l e / √D) + √w · table_l[token]) / √2        (width w)

The experts read n_6(h), and their router h / rms(h) · scale / √D; a weight is
multiplied by a scale of its expert. Values have a norm without scales.

Some layers slide. Full layers have another head width and number of key heads,
turn only the first pairs of channels, and may use keys before their norm as
values. The last layers have no keys of their own: they read those of the last
layer of their kind before them.

Source: `transformers` 5.24, models/gemma4; Google DeepMind, "Gemma 3n" and
"Gemma 4", 2025 and 2026.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.models import blocks, experts
from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.models.blocks import RMSNorm
from grpo_jax.types import PyTree


def init_inputs(config: TransformerConfig, key: jax.Array) -> PyTree:
  """Parameters of the layers' inputs; {} if they have none."""
  assert config.gemma4 is not None
  width, dtype = config.gemma4.input_width, config.param_dtype
  if not width:
    return {}
  table_key, kernel_key = jax.random.split(key)
  inner = config.num_layers * width
  draw = nn.initializers.normal(width**-0.5)
  table = draw(table_key, (config.gemma4.input_vocab, inner), dtype)
  kernel = nn.initializers.lecun_normal()(
    kernel_key, (config.width, inner), dtype
  )
  return {
    "layer_inputs": {
      "embed": {"embedding": table},
      "projection": {"kernel": kernel},
      "norm": {"scale": jnp.ones(width, dtype)},
    }
  }


def inputs_of_layers(
  config: TransformerConfig,
  params: PyTree,
  x: jax.Array,  # [B, L, D]
  rows: jax.Array,  # [B, L, layers · w]
) -> jax.Array:  # [layers, B, L, w]
  """The inputs p of all layers.

  Args:
    config: The transformer's config.
    params: Parameters of `init_inputs`.
    x: Embeddings of the tokens.
    rows: The tokens' rows of the table of `init_inputs`.
  """
  assert config.gemma4 is not None
  width = config.gemma4.input_width
  shape = *x.shape[:-1], config.num_layers, width
  kernel = params["projection"]["kernel"].astype(config.dtype)
  projected = (x @ kernel) * jnp.asarray(config.width**-0.5, x.dtype)
  normed: Any = RMSNorm(config).apply(
    {"params": params["norm"]}, projected.reshape(shape)
  )
  rows = rows.reshape(shape) * jnp.asarray(width**0.5, x.dtype)
  return jnp.moveaxis((normed + rows) * jnp.asarray(2**-0.5, x.dtype), -2, 0)


class Gemma4Attention(nn.Module):
  """Projections of attention; `stack` says which ones a layer has."""

  config: TransformerConfig
  stack: str

  def setup(self):
    config = self.config
    assert config.gemma4 is not None
    heads, width = config.num_kv_heads, config.head_width
    dense = blocks.without_bias(config, nn.DenseGeneral)
    if self.has_queries_apart:
      self.query_heads = dense((config.num_heads, width))
      if not self.is_shared:
        self.key_heads = dense((heads, width))
    else:
      self.qkv = dense((heads, config.queries_per_key + 2, width))
    self.query_norm = RMSNorm(config)
    if not self.is_shared:
      self.key_norm = RMSNorm(config)
      self.value_norm = RMSNorm(blocks.without_scale(config))
    self.out = dense(
      config.width,
      axis=(-3, -2, -1),
      kernel_init=blocks.residual_init(config),
    )

  @property
  def is_shared(self) -> bool:
    """Returns True if keys and values are those of another layer."""
    return self.stack.startswith("shared")

  @property
  def has_queries_apart(self) -> bool:
    """Returns True if the kernel of queries is not fused with that of keys."""
    assert self.config.gemma4 is not None
    values_are_keys = self.config.gemma4.values_are_keys
    return self.is_shared or (values_are_keys and "full" in self.stack)

  def project(self, x, rope):  # x [B, L, D]
    """Queries [B, L, C, R, K], keys [B, C, K, L], values [B, C, L, K].

    Keys and values are None in a layer that reads those of another.
    """
    config = self.config
    if not self.has_queries_apart:
      qkv = blocks.on_rows(self.qkv, x)
      q, k, v = qkv[..., :-2, :], qkv[..., -2, :], qkv[..., -1, :]
    else:
      q = blocks.on_rows(self.query_heads, x)  # [B, L, H, K]
      q = q.reshape(*x.shape[:-1], config.num_kv_heads, -1, config.head_width)
      if self.is_shared:
        return blocks.rotate(self.query_norm(q), rope), None, None
      k = v = blocks.on_rows(self.key_heads, x)
    q = blocks.rotate(self.query_norm(q), rope)
    k = blocks.rotate(self.key_norm(k)[..., None, :], rope)[..., 0, :]
    return q, jnp.moveaxis(k, 1, -1), jnp.moveaxis(self.value_norm(v), 1, 2)


class Gemma4MLP(nn.Module):
  """An MLP, and the experts beside it."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x, h, router):  # [N, D], [N, D]
    """Output for the normed x, with experts that read the residual stream h.

    Returns:
      The output [N, D]; probabilities [N, E] and choices [N, k], or None.
    """
    config = self.config
    dense = blocks.without_bias(config)
    gated = blocks.gated(config)
    hidden = gated(
      dense(config.mlp_width, name="gate")(x),
      dense(config.mlp_width, name="up")(x),
    )
    small = blocks.residual_init(config)
    y = dense(config.width, name="down", kernel_init=small)(hidden)
    if not config.num_experts:
      return y, None
    wide = jnp.promote_types(config.dtype, jnp.float32)
    scores = nn.Dense(
      config.num_experts,
      use_bias=False,
      dtype=wide,
      param_dtype=config.param_dtype,
      precision=lax.Precision.HIGHEST,
      kernel_init=nn.initializers.normal(0.02),
      name="router",
    )(RMSNorm(config, name="router_norm")(h) * config.width**-0.5)
    choices = router.choices
    if choices is not None:
      choices = choices.reshape(-1, choices.shape[-1])
    routed = experts.route(scores, config.experts_per_token, True, choices)
    scale = self.param(
      "expert_scale",
      nn.initializers.ones,
      (config.num_experts,),
      config.param_dtype,
    )
    mixed = experts.mix(
      RMSNorm(config, name="experts_norm")(h),
      routed.ids,
      routed.weights * scale.astype(wide)[routed.ids],
      blocks.ExpertKernels(config, name="experts")(),
      gated,
      config.experts,
    )
    y = RMSNorm(config, name="dense_post_norm")(y)
    y = y + RMSNorm(config, name="experts_post_norm")(mixed)
    return y, (routed.probs, routed.ids)


class Gemma4Inputs(nn.Module):
  """W_out(gelu(W_in h) ⊙ p), for the input p of a layer."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x, extra):  # [B, L, D], [B, L, w]
    config = self.config
    dense = blocks.without_bias(config)
    hidden = blocks.gated(config)(dense(extra.shape[-1], name="gate")(x), extra)
    small = blocks.residual_init(config)
    return dense(config.width, name="down", kernel_init=small)(hidden)


class Gemma4Block(nn.Module):
  """One layer, for whole sequences or for tokens that continue a cache.

  `stack` is the name of the stack that has the layer.
  """

  config: TransformerConfig
  stack: str

  def setup(self):
    config = self.config
    assert config.gemma4 is not None
    self.attention = Gemma4Attention(config, self.stack)
    self.mlp = Gemma4MLP(config)
    self.attention_norm = RMSNorm(config)
    self.attention_post_norm = RMSNorm(config)
    self.mlp_norm = RMSNorm(config)
    self.mlp_post_norm = RMSNorm(config)
    if config.gemma4.input_width:
      self.inputs = Gemma4Inputs(config)
      self.inputs_norm = RMSNorm(config)

  def _finish(self, x, attended, router, of_layer):
    extra, scale = of_layer
    y = blocks.on_rows(self.attention.out, attended, num_axes=3)
    x = x + self.attention_post_norm(y)
    normed, own = (z.reshape(-1, z.shape[-1]) for z in (self.mlp_norm(x), x))
    y, routed = jax.tree.map(
      lambda z: z.reshape(*x.shape[:-1], -1), self.mlp(normed, own, router)
    )
    x = x + self.mlp_post_norm(y)
    if extra is not None:
      x = x + self.inputs_norm(self.inputs(x, extra))
    return x * scale.astype(x.dtype), routed

  def __call__(self, x, rope, attend, router, before, of_layer):
    """Runs the block on whole sequences, or on the ends of sequences.

    Args:
      x, rope, attend, router: As `blocks.Block` takes them.
      before: Keys and values of the tokens that the rows continue, or None;
        in a layer that reads those of another, all of them.
      of_layer: Input [B, L, w] of the layer, or None, and its scale [1].

    Returns:
      The results of `blocks.Block`, with None instead of the keys and values of
      another layer; and the keys and values of all tokens.
    """
    q, k, v = self.attention.project(self.attention_norm(x), rope)
    kv: Any = (k, v)
    keys, values = k, v
    if k is None:
      kv, (keys, values) = None, before
    elif before is not None:
      keys = jnp.concatenate([before[0], k], axis=-1)
      values = jnp.concatenate([before[1], v], axis=-2)
    x, routed = self._finish(x, attend(q, keys, values), router, of_layer)
    return x, kv, routed, (keys, values)

  def decode(self, x, rope, attend, router, of_layer):  # [B, L, D]
    """Runs the block on tokens that `attend` also writes to the cache."""
    q, k, v = self.attention.project(self.attention_norm(x), rope)
    attended, cache = attend(q, k, v)
    x, routed = self._finish(x, attended, router, of_layer)
    return x, cache, routed

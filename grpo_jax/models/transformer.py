"""A decoder-only transformer whose families are switches, as a `Policy`.

RMSNorm, rotary positions, grouped-query attention, a gated MLP or a mixture of
such experts; where the norms stand, what is capped or windowed and how
positions are scaled is in `TransformerConfig`, and `families.py` says how each
family sets it. Flax
describes one block; the layers are one stacked parameter tree. The training
pass scans over the stack (one layer is compiled once), the decode step walks it
in Python (see `_decode`). `P` prompts, `B` rows, `S` prompt and `T` completion
slots, `L = S + T`, `D` width, `H` query heads, `C` key/value heads, `R = H / C`
queries per key, `K` head width; `E` experts of width `F`, of which a token
takes `k`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax import ranges
from grpo_jax.models import attention, experts, paged
from grpo_jax.ops import masked
from grpo_jax.types import Policy, PyTree, RouterOutputs

# What the backward pass finds of a block. Temporary MiB of a gradient with 4
# layers, width 256, MLP 768, 4 heads, 64 rows of 175 tokens, float32: none
# 1791, dots 715, full 458.
_REMAT = {
  "none": jax.checkpoint_policies.everything_saveable,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "full": jax.checkpoint_policies.nothing_saveable,
}


# What a run decides, and not the checkpoint that it starts from.
FIELDS_OF_A_RUN = (
  "dtype",
  "param_dtype",
  "attention",
  "decode_attention",
  "experts",
  "remat",
  "cache_dtype",
)

# What the numbers of an architecture may be; checked before anything of their
# size is made, or counted through.
_WIDTH, _MANY = ranges.Range(1, 2**20), ranges.Range(1, 2**16)
RANGES = {
  "width": _WIDTH,
  "num_layers": ranges.Range(1, 4096),
  "num_heads": _MANY,
  "num_kv_heads": _MANY,
  "mlp_width": _WIDTH,
  "head_dim": _MANY,
  "rope_theta": ranges.Range(1, ranges.MAX_FLOAT),
  "norm_eps": ranges.Range(ranges.MIN_FLOAT, 1),
  "attention_scale": ranges.POSITIVE,
  "attention_softcap": ranges.POSITIVE,
  "final_softcap": ranges.POSITIVE,
  "sliding_window": ranges.SIZE,
  "local_rope_theta": ranges.Range(1, ranges.MAX_FLOAT),
  "rope_factor": ranges.POSITIVE,
  "rope_low_freq": ranges.POSITIVE,
  "rope_high_freq": ranges.POSITIVE,
  "rope_original_len": ranges.SIZE,
  "num_experts": ranges.Range(0, 2**16),
  "experts_per_token": _MANY,
  "expert_width": _WIDTH,
  "vocab_size": ranges.Range(1, 2**24),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
  """Sizes and switches of a transformer for any vocabulary.

  Attributes:
    width: Width of the residual stream.
    num_layers: Number of blocks.
    num_heads: Query heads.
    num_kv_heads: Key and value heads; divides `num_heads`.
    mlp_width: Width inside the SwiGLU; unused with experts.
    head_dim: Width of a head, even; None for `width / num_heads`.
    rope_theta: Base of the rotary wavelengths.
    norm_eps: Added to mean squares before the root.
    qk_norm: RMSNorm on queries and keys: "head" over each head (Qwen3),
      "projection" over all heads of a token (OLMo-2), or "none".
    qkv_bias: Biases on queries, keys and values (Qwen2).
    tied_embeddings: Whether the head is the transposed embedding table.
    pre_norm, post_norm: Norms before, and after, attention and MLP. Gemma has
      both, OLMo-2 only those after.
    norm_plus_one: Norms multiply by 1 + scale (Gemma).
    scale_embeddings: Multiply embeddings by √width (Gemma).
    activation: Of the gate: "silu", or "gelu" in its tanh form (Gemma).
    attention_scale: Factor of the scores; None for head_dim^−½.
    attention_softcap, final_softcap: c · tanh(x / c) on scores, and on logits
      (Gemma 2); None for no cap.
    sliding_window: Tokens that a sliding layer sees, itself included; None
      for no sliding layers.
    sliding_layers: Whether each layer slides; empty: all do.
    local_rope_theta: Base for sliding layers, without scaling (Gemma 3); None
      for `rope_theta` in all.
    rope_scaling: "none", "linear" (positions over the factor) or "llama3"
      (long wavelengths only).
    rope_factor: Of the scaling.
    rope_low_freq, rope_high_freq, rope_original_len: Llama 3's bounds, in
      wavelengths per original context, and that context, tokens.
    num_experts: Experts in the place of each layer's MLP; 0 for none.
    experts_per_token: How many of them a token takes.
    expert_width: Width inside an expert's SwiGLU.
    norm_topk: Whether the weights of a token's experts add up to 1
      (Qwen3-MoE), or are their shares of the distribution over all (OLMoE).
    router_bias: Whether frozen biases, which start at 0, are added to the
      routers' probabilities for the choice of experts (DeepSeek-V3).
    attention: Form of attention in whole sequences, "plain", "splash" (TPU)
      or "cudnn" (GPU); "auto" for the one that the backend is best at.
    decode_attention: Form of attention in a decode step: "plain", or "paged"
      (TPU; see `paged.py`).
    experts: Form in which experts are computed, "dense", "blocked", "ragged"
      or "megablox" (TPU); "auto" for the one that the backend is best at.
    remat: What the backward pass recomputes of a block instead of keeping it:
      "none", "dots" (all but the products with weights) or "full".
    cache_dtype: How keys and values are held while sampling: "model" (in
      `dtype`), "bfloat16", or "int8" with a scale for each token and head.
      The update never reads them, so its ratios stay what they are; the
      sampler's log-probs are those of the model that reads rounded ones.
    dtype: Of activations and matmul operands. Norm statistics, softmax and
      logits are at least float32.
    param_dtype: Of the parameters.
  """

  width: int = 128
  num_layers: int = 2
  num_heads: int = 4
  num_kv_heads: int = 2
  mlp_width: int = 384
  head_dim: int | None = None
  rope_theta: float = 10_000.0
  norm_eps: float = 1e-6
  qk_norm: str = "none"
  qkv_bias: bool = False
  tied_embeddings: bool = True
  pre_norm: bool = True
  post_norm: bool = False
  norm_plus_one: bool = False
  scale_embeddings: bool = False
  activation: str = "silu"
  attention_scale: float | None = None
  attention_softcap: float | None = None
  final_softcap: float | None = None
  sliding_window: int | None = None
  sliding_layers: tuple[bool, ...] = ()
  local_rope_theta: float | None = None
  rope_scaling: str = "none"
  rope_factor: float = 1.0
  rope_low_freq: float = 1.0
  rope_high_freq: float = 4.0
  rope_original_len: int = 8192
  num_experts: int = 0
  experts_per_token: int = 2
  expert_width: int = 128
  norm_topk: bool = True
  router_bias: bool = False
  attention: str = "auto"
  decode_attention: str = "plain"
  experts: str = "auto"
  remat: str = "none"
  cache_dtype: str = "model"
  dtype: str = "float32"
  param_dtype: str = "float32"

  def __post_init__(self):
    for name, allowed in RANGES.items():
      value = getattr(self, name, None)  # The vocabulary comes later.
      if value is not None and value not in allowed:
        raise ValueError(f"model: {name} is {value}, but must be {allowed}.")
    if not self.rope_low_freq < self.rope_high_freq:
      raise ValueError(
        f"model: rope_low_freq is {self.rope_low_freq} and rope_high_freq"
        f" {self.rope_high_freq}, but the bounds of the scaled wavelengths must"
        " differ; make rope_high_freq the larger one."
      )
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"model: {self.num_heads} query heads do not split over"
        f" {self.num_kv_heads} key/value heads; make num_heads a multiple of"
        " num_kv_heads."
      )
    if self.head_dim is None and self.width % self.num_heads:
      raise ValueError(
        f"model: width {self.width} does not split into"
        f" {self.num_heads} heads; change one, or set head_dim."
      )
    if self.head_width < 2 or self.head_width % 2:
      raise ValueError(
        f"model: heads are {self.head_width} wide, but rotary"
        " positions turn pairs of channels; make head_dim even and positive."
      )
    for name, known in (
      ("qk_norm", ("none", "head", "projection")),
      ("activation", ("silu", "gelu")),
      ("rope_scaling", ("none", "linear", "llama3")),
      ("attention", attention.FORMS),
      ("decode_attention", paged.FORMS),
      ("experts", experts.FORMS),
      ("remat", tuple(_REMAT)),
      ("cache_dtype", attention.CACHE_DTYPES),
    ):
      if getattr(self, name) not in known:
        raise ValueError(
          f"model: {name} is {getattr(self, name)!r}; use one of"
          f" {', '.join(known)}."
        )
    if not (self.pre_norm or self.post_norm):
      raise ValueError(
        "model: pre_norm and post_norm are both False; blocks"
        " without any norm do not train. Set one."
      )
    if self.sliding_layers and len(self.sliding_layers) != self.num_layers:
      raise ValueError(
        f"model: sliding_layers has {len(self.sliding_layers)}"
        f" entries for {self.num_layers} layers; give one for each, or none."
      )
    if self.router_bias and not self.num_experts:
      raise ValueError(
        "model: num_experts is 0; use 0 for a model without experts (and"
        " without router_bias), or their number."
      )
    if self.num_experts and self.experts_per_token > self.num_experts:
      raise ValueError(
        f"model: experts_per_token is {self.experts_per_token}, but there are"
        f" {self.num_experts} experts to take them from; raise num_experts."
      )
    for name in ("dtype", "param_dtype"):
      if getattr(self, name) not in ("float64", "float32", "bfloat16"):
        raise ValueError(
          f"model: {name} is {getattr(self, name)!r}; use"
          " 'float32', 'bfloat16' or (tests) 'float64'."
        )

  @property
  def head_width(self) -> int:  # K
    if self.head_dim is None:
      return self.width // self.num_heads
    return self.head_dim

  @property
  def queries_per_key(self) -> int:  # R
    return self.num_heads // self.num_kv_heads

  def slides(self, layer: int) -> bool:
    """Whether a layer sees the last `sliding_window` tokens only."""
    if self.sliding_window is None:
      return False
    return self.sliding_layers[layer] if self.sliding_layers else True


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(Architecture):
  """An architecture for a vocabulary of `vocab_size` token ids."""

  vocab_size: int


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


class Prefix(NamedTuple):
  """What decoding reads of prompts; of completions, a cache of such layers.

  Keys are stored transposed, so that both products of a decode step read the
  cache in the order in which it lies. Milliseconds per step on 2 CPU cores (4
  layers, width 256, 4 heads, 2 key/value heads, 64 rows; keys / values):

  | slots | C K S / C S K | C K S both | C S K both | S C K both |
  |-------|---------------|------------|------------|------------|
  |   192 |            14 |         18 |         17 |         24 |
  |   512 |            26 |         36 |         39 |         55 |
  |   513 |            27 |         38 |         80 |         55 |

  With one array per layer and the layers unrolled a step at 192 slots takes 14
  ms, with one stacked array 14 (26 in another round), 19 with a scan that
  carries the stack, 25 with a scan that consumes and rebuilds it.

  Attributes:
    layers: Rotated keys [P, C, K, S] and values [P, C, S, K] of each layer, as
      `attention.held` gives them; or pages of both, as `paged.held` does.
    mask: True on slots that hold a token.
  """

  layers: tuple[PyTree, ...]
  mask: jax.Array  # [P, S] bool


def _embed(config, trained, tokens):  # [B, L] -> [B, L, D]
  # Masked slots may hold any number: indexing clamps, and nobody sees them.
  x = trained["embed"]["embedding"][tokens].astype(config.dtype)
  if config.scale_embeddings:
    x = x * jnp.asarray(config.width**0.5, config.dtype)
  return x


def _forward(
  config, params, tokens, mask, *, hold=None, kept=None, prefix=None
):
  """Runs the stack on tokens [B, L] at the end of slots with mask [B, M].

  The slots before them are there if the keys and values in them are given:
  `prefix`, of the prompts, stacked over layers.

  Returns:
    The residual stream [B, L, D]; hold(keys, values), stacked over layers, or
    None; what `Block` says of routing, stacked over layers, or None.
  """
  num_before = mask.shape[1] - tokens.shape[1]
  positions = _positions(mask)  # [B, M]
  attend = attention.over_sequences(config, mask, positions, num_before)
  ropes = _ropes(config, positions[:, num_before:])
  block = Block(config)

  def layer(x, inputs):
    params, slides, router, before = inputs
    # Two sets of angles, of which each layer takes one.
    rope = jax.tree.map(
      lambda near, far: near if near is far else jnp.where(slides, near, far),
      *ropes,
    )
    outputs: Any = block.apply(
      {"params": params}, x, rope, attend(slides), router, before
    )
    x, kv, routed = outputs
    return x, (None if hold is None else hold(*kv), routed)

  if config.remat != "none":
    layer = jax.checkpoint(
      layer, prevent_cse=False, policy=_REMAT[config.remat]
    )
  x = _embed(config, params["trained"], tokens)
  slides = jnp.array([config.slides(i) for i in range(config.num_layers)])
  router = RouterInputs(kept, params["frozen"].get("router_bias"))
  layers = params["trained"]["layers"]
  x, (kv, routed) = lax.scan(layer, x, (layers, slides, router, prefix))
  return x, kv, routed


def _positions(mask):  # [B, L] bool -> [B, L]
  """Number of tokens before each one; left padding has position 0."""
  return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


def _ropes(config, positions):  # [B, L]
  """Angles of a sliding layer, and of one that sees everything."""
  far = rotary(config, positions)
  if config.sliding_window is None or config.local_rope_theta is None:
    return far, far
  local = dataclasses.replace(
    config, rope_theta=config.local_rope_theta, rope_scaling="none"
  )
  return rotary(local, positions), far


def _final_norm(config, trained, x):
  return RMSNorm(config).apply({"params": trained["final_norm"]}, x)


def _init(config: TransformerConfig, key: jax.Array) -> PyTree:
  embed_key, layers_key, head_key = jax.random.split(key, 3)
  block = Block(config)
  x = jnp.zeros((1, 1, config.width), config.dtype)
  rope = rotary(config, jnp.zeros((1, 1), jnp.int32))
  mask = jnp.ones((1, 1, 1), bool)
  attend = functools.partial(attention.plain, config, mask=mask)
  small = nn.initializers.normal(0.02)
  trained = {
    "embed": {
      # Unit-size logits through the tied head, and large enough beside
      # what the blocks add to the residual stream.
      "embedding": nn.initializers.normal(config.width**-0.5)(
        embed_key, (config.vocab_size, config.width), config.param_dtype
      )
    },
    "layers": jax.vmap(
      lambda k: block.init(k, x, rope, attend, RouterInputs())["params"]
    )(jax.random.split(layers_key, config.num_layers)),
    "final_norm": RMSNorm(config).init(key, x)["params"],
  }
  if not config.tied_embeddings:
    trained["head"] = {
      "kernel": small(
        head_key, (config.width, config.vocab_size), config.param_dtype
      )
    }
  frozen = {}
  if config.router_bias:
    shape = (config.num_layers, config.num_experts)
    frozen["router_bias"] = jnp.zeros(shape, jnp.float32)
  return {"trained": trained, "frozen": frozen}


def _layers_last(x):  # [layers, B, L, ...] -> [B, L, layers, ...]
  return jnp.moveaxis(x, 0, 2)


def _check_extras(config, extras):
  """Raises ValueError if these extra inputs are none of this model's."""
  if not extras:
    return
  if not config.num_experts or set(extras) != {"prompt_routing", "routing"}:
    raise ValueError(
      f"transformer: received the extra inputs {sorted(extras)}, but it reads"
      " tokens only, or with num_experts > 0 also the experts to keep"
      " (prompt_routing and routing); pass None, or use a model that takes"
      " them."
    )


def _prefix(config, params, prompt_tokens, prompt_mask, extras=None):
  """Keys and values of all but the last token of each prompt, or None.

  The last one is run with each row, which costs one token, and gives every
  state from which a completion token is predicted in one piece.
  """
  if prompt_tokens.shape[1] == 1 or not attention.continues(config):
    return None
  _check_extras(config, extras)
  kept = None
  if extras:
    kept = jnp.moveaxis(extras["prompt_routing"][:, :-1], 2, 0)
  _, kv, _ = _forward(
    config,
    params,
    prompt_tokens[:, :-1],
    prompt_mask[:, :-1],
    hold=lambda k, v: (k, v),
    kept=kept,
  )
  return kv


def _hidden(
  config,
  params,
  prompt_tokens,  # [P, S]
  prompt_mask,  # [P, S]
  tokens,  # [B, T]
  completion_mask,  # [B, T]
  prompt_index,  # [B]
  extras=None,
  prefix=None,
):
  _check_extras(config, extras)
  last = prompt_tokens.shape[1] - 1
  first = 0 if prefix is None else last  # Of the slots that are run.

  def joined(of_prompts, of_rows):  # [B, S + T - 1, ...]
    if prefix is None:
      of_prompts = of_prompts[prompt_index]
    # The last completion token predicts nothing that is asked for.
    return jnp.concatenate([of_prompts, of_rows[:, :-1]], axis=1)

  kept = None
  if extras:
    kept = joined(extras["prompt_routing"], extras["routing"])
    kept = jnp.moveaxis(kept[:, first:], 2, 0)  # [layers, B, L, k]
  x, _, routed = _forward(
    config,
    params,
    joined(prompt_tokens, tokens)[:, first:],
    joined(prompt_mask, completion_mask),
    kept=kept,
    prefix=prefix,
  )
  aux = None
  if routed is not None:
    aux = RouterOutputs(*(_layers_last(z)[:, last - first :] for z in routed))
  return _final_norm(config, params["trained"], x[:, last - first :]), aux


@jax.custom_vjp
def _projected(h, kernel):  # [..., D], [D, V], of one dtype -> [..., V]
  # Sums in float32 cost nothing on an accelerator and spare the logits the
  # rounding to bfloat16.
  wide = jnp.promote_types(h.dtype, jnp.float32)
  return jnp.matmul(h, kernel, preferred_element_type=wide)


def _projected_forward(h, kernel):
  return _projected(h, kernel), (h, kernel)


def _projected_backward(saved, d_logits):
  # Rounded, as all gradients of activations are: with float32 on one side both
  # products would be products in float32, which units for bfloat16 do not do.
  _, pull_back = jax.vjp(jnp.matmul, *saved)
  return pull_back(d_logits.astype(saved[0].dtype))


_projected.defvjp(_projected_forward, _projected_backward)


def _head(config, params, h):  # [..., D] -> [..., V]
  trained = params["trained"]
  if config.tied_embeddings:
    kernel = trained["embed"]["embedding"].T
  else:
    kernel = trained["head"]["kernel"]
  logits = _projected(h, kernel.astype(config.dtype))
  if config.final_softcap is not None:
    logits = attention.capped(logits, config.final_softcap)
  return logits


def _prefill(config, params, prompt_tokens, prompt_mask):  # [P, S]
  hold: Callable = functools.partial(attention.held, config)
  if config.decode_attention == "paged":
    hold = functools.partial(paged.held, config, prompt_mask)
  x, kv, routed = _forward(
    config, params, prompt_tokens, prompt_mask, hold=hold
  )
  h = _final_norm(config, params["trained"], x[:, -1])  # [P, D]
  layers = tuple(_layer(kv, i) for i in range(config.num_layers))
  prefix = Prefix(layers, prompt_mask)
  return h, prefix, None if routed is None else _layers_last(routed[1])


def _weights(config, params):
  """Parameters with a tree for each layer, and kernels in the model's dtype.

  In the loop a slice of a stack is a copy: a step of 64 rows took 11.8 ms and
  not 8.3 (4 layers, width 256, on a CPU). Kernels would be rounded in every
  step, and a mesh that gathers them here gathers half the bytes.
  """

  def rounded(path, leaf):
    *_, module, name = (str(getattr(key, "key", key)) for key in path)
    is_kernel = name in ("kernel", "embedding") or module == "experts"
    if module == "router" or not is_kernel:
      return leaf  # Read as it is, at least in float32.
    return leaf.astype(config.dtype)

  trained = jax.tree_util.tree_map_with_path(rounded, params["trained"])
  layers = tuple(_layer(trained["layers"], i) for i in range(config.num_layers))
  return {**params, "trained": {**trained, "layers": layers}}


def _allocate(config, num_rows, num_slots, prefix=None):
  if config.decode_attention == "paged":
    return paged.allocate(num_rows, num_slots, prefix)
  keys = num_rows, config.num_kv_heads, config.head_width, num_slots
  values = num_rows, config.num_kv_heads, num_slots, config.head_width
  # Shapes only: the compiler would work for seconds to find scales of zeros.
  layer = jax.eval_shape(
    functools.partial(attention.held, config),
    jax.ShapeDtypeStruct(keys, config.dtype),
    jax.ShapeDtypeStruct(values, config.dtype),
  )
  return tuple(
    jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), layer)
    for _ in range(config.num_layers)
  )


def _admit(config, prefix, cache, num_rows):
  if config.decode_attention == "paged":
    return paged.admit(prefix, cache, num_rows)
  return cache


def _attends(config, positions, t, slot, prefix, cache):
  """For each layer: (q, k, v of one token) -> (attended, its cache)."""
  if config.decode_attention == "paged":
    length = prefix.mask.sum(axis=1)
    windows = None, config.sliding_window
    return [
      functools.partial(
        paged.attend,
        config,
        length,
        t,
        pages.shape[1],
        windows[config.slides(layer)],
        cache=cache[layer],
      )
      for layer, pages in enumerate(prefix.layers)
    ]
  num_slots = jax.tree.leaves(cache)[0].shape[-1]
  share = len(t) // len(prefix.mask)
  of_prompt, prompt_mask = (
    jnp.repeat(x, share, axis=0) for x in (_positions(prefix.mask), prefix.mask)
  )  # [B, S]
  age = (slot - jnp.arange(num_slots)) % num_slots  # [T], in tokens.
  visible = jnp.concatenate([prompt_mask, age <= t[:, None]], axis=1)
  of_key = jnp.concatenate([of_prompt, positions - age], axis=1)  # [B, S + T]
  near, far = attention.views(
    config, visible[:, None], positions[:, :, None], of_key
  )
  return [
    functools.partial(
      attention.ring,
      config,
      prefix.layers[layer],
      cache[layer],
      slot,
      near if config.slides(layer) else far,
    )
    for layer in range(config.num_layers)
  ]


def _decode(config, weights, tokens, t, slot, prefix, cache):  # [B], [B], []
  trained = weights["trained"]
  length = prefix.mask.sum(axis=1)
  share = len(tokens) // len(length)
  positions = (jnp.repeat(length, share) + t)[:, None]  # [B, 1]
  near, far = _ropes(config, positions)
  attends = _attends(config, positions, t, slot, prefix, cache)
  block = Block(config)
  x = _embed(config, trained, tokens[:, None])  # [B, 1, D]
  layers: list[Any] = []
  chosen: list[Any] = []
  bias = weights["frozen"].get("router_bias")
  for layer, attend in enumerate(attends):
    outputs: Any = block.apply(
      {"params": trained["layers"][layer]},
      x,
      near if config.slides(layer) else far,
      attend,
      RouterInputs(bias=None if bias is None else bias[layer]),
      method="decode",
    )
    x, extended, routed = outputs
    layers.append(extended)
    if routed is not None:
      chosen.append(routed[1][:, 0])  # [B, k]
  h = _final_norm(config, trained, x[:, 0])  # [B, D]
  return h, tuple(layers), jnp.stack(chosen, axis=1) if chosen else None


def _layer(stacked, index):
  return jax.tree.map(lambda leaf: leaf[index], stacked)


def transformer_policy(config: TransformerConfig) -> Policy:
  """The functions of a transformer; see `Policy` for their contract.

  Args:
    config: Sizes.

  Returns:
    A policy whose parameters are all trained, but for the biases of routers.
    Layers are stacked: every leaf under "layers" has a leading axis of
    `num_layers`. With experts, `hidden` returns `RouterOutputs`, and takes
    `extras` with the experts to keep: "prompt_routing" and "routing", as
    `Rollout` has them.
  """
  return Policy(
    init=functools.partial(_init, config),
    hidden=functools.partial(_hidden, config),
    prefix=functools.partial(_prefix, config),
    head=functools.partial(_head, config),
    prefill=functools.partial(_prefill, config),
    weights=functools.partial(_weights, config),
    allocate=functools.partial(_allocate, config),
    admit=functools.partial(_admit, config),
    decode=functools.partial(_decode, config),
    num_experts=config.num_experts,
    only_head=() if config.tied_embeddings else ("head",),
  )

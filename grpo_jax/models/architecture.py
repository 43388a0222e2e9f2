"""Sizes and switches of a transformer, and the prefix that decoding reads.

Nothing is computed here. The modules that compute (`attention.py`, `paged.py`,
`blocks.py` and `transformer.py`) import this module, and it imports none of
them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from grpo_jax import ranges

if TYPE_CHECKING:  # Settings read this file, without JAX.
  import jax

  from grpo_jax.types import PyTree

# Fields that a run decides, and not the checkpoint from which the run starts.
FIELDS_OF_A_RUN = (
  "dtype",
  "param_dtype",
  "attention",
  "decode_attention",
  "experts",
  "remat",
  "split_positions",
  "prefill_chunk",
  "cache_dtype",
  "long_context",
)

# Values of the fields of these names.
ATTENTION_FORMS = ("auto", "plain", "splash", "cudnn")
DECODE_FORMS = ("plain", "paged")
EXPERT_FORMS = ("auto", "dense", "blocked", "ragged", "megablox")
REMAT_FORMS = ("none", "dots", "full")
CACHE_DTYPES = ("model", "bfloat16", "int8")

_CHOICES = {
  "qk_norm": ("none", "head", "projection"),
  "norm": ("rms", "plain", "layer"),
  "activation": ("silu", "gelu", "clamped", "bounded", "relu2"),
  "rope_scaling": ("none", "linear", "llama3", "yarn", "longrope"),
  "router_scores": ("softmax", "sigmoid", "sqrtsoftplus"),
  "attention": ATTENTION_FORMS,
  "decode_attention": DECODE_FORMS,
  "experts": EXPERT_FORMS,
  "remat": REMAT_FORMS,
  "cache_dtype": CACHE_DTYPES,
}


# Ranges of the numbers of an architecture. They are checked before an array of
# such a size is made, and before anything is counted through.
_WIDTH, _MANY = ranges.Range(1, 2**20), ranges.Range(1, 2**16)
LORA_RANKS = ranges.Range(1, 2**16)
CRITIC_TRUNKS = ("own", "shared")
# Formats in which a sampler may read trained kernels; "model": unchanged.
SAMPLED_DTYPES = ("model", "int8", "float8_e4m3fn")
TOWER_KINDS = ("siglip", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
TOWER_RANGES = {
  "width": _WIDTH,
  "num_layers": ranges.Range(1, 4096),
  "num_heads": _MANY,
  "mlp_width": _WIDTH,
  "patch_size": ranges.Range(1, 4096),
  "channels": ranges.Range(1, 4096),
  "merge": ranges.Range(1, 64),
  "side": ranges.Range(1, 2**12),
  "frames": ranges.Range(1, 64),
  "window": ranges.Range(0, 2**12),
  "norm_eps": ranges.Range(ranges.MIN_FLOAT, 1),
}
DELTA_RANGES = {
  "period": ranges.Range(2, 4096),
  "num_key_heads": _MANY,
  "num_value_heads": _MANY,
  "key_width": _MANY,
  "value_width": _MANY,
  "num_taps": ranges.Range(2, 64),
}
INDEXER_RANGES = {"num_heads": _MANY, "head_dim": _MANY, "top_k": _MANY}
RANGES = {
  "width": _WIDTH,
  "num_layers": ranges.Range(1, 4096),
  "num_heads": _MANY,
  "num_kv_heads": _MANY,
  "mlp_width": _WIDTH,
  "head_dim": _MANY,
  "rope_theta": ranges.Range(1, ranges.MAX_FLOAT),
  "norm_eps": ranges.Range(ranges.MIN_FLOAT, 1),
  "embedding_scale": ranges.POSITIVE,
  "residual_scale": ranges.POSITIVE,
  "logit_scale": ranges.POSITIVE,
  "attention_scale": ranges.POSITIVE,
  "attention_softcap": ranges.POSITIVE,
  "final_softcap": ranges.POSITIVE,
  "sliding_window": ranges.SIZE,
  "local_rope_theta": ranges.Range(1, ranges.MAX_FLOAT),
  "rope_factor": ranges.POSITIVE,
  "rope_low_freq": ranges.POSITIVE,
  "rope_high_freq": ranges.POSITIVE,
  "rope_original_len": ranges.SIZE,
  "rope_amplitude": ranges.POSITIVE,
  "query_scaling": ranges.NOT_NEGATIVE,
  "learned_positions": ranges.Range(0, 2**20),
  "rotary_width": ranges.Range(0, 2**16),
  "latent_width": ranges.Range(0, 2**20),
  "query_latent_width": ranges.Range(0, 2**20),
  "value_dim": _MANY,
  "num_experts": ranges.Range(0, 2**16),
  "experts_per_token": _MANY,
  "expert_width": _WIDTH,
  "shared_width": ranges.Range(0, 2**20),
  "num_dense_layers": ranges.Range(0, 4096),
  "router_groups": _MANY,
  "groups_per_token": _MANY,
  "router_scale": ranges.POSITIVE,
  "swiglu_limit": ranges.POSITIVE,
  "swiglu_slope": ranges.POSITIVE,
  "prefill_chunk": ranges.Range(0, 2**20),
  "vocab_size": ranges.Range(1, 2**24),
}


def _check_ranges(
  config: Any, where: str, allowed: Mapping[str, ranges.Range]
) -> None:
  """Raises ValueError unless each field is in its range."""
  for name, numbers in allowed.items():
    if (value := getattr(config, name)) not in numbers:
      raise ValueError(f"{where}: {name} is {value}, but must be {numbers}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TowerConfig:
  """Sizes of a vision tower.

  Attributes:
    kind: The family; see `vision_towers.py`.
    width: Width of the residual stream.
    num_layers: Number of blocks.
    num_heads: Heads of attention; they divide the width.
    mlp_width: Width inside the MLP.
    patch_size: Rows and columns of pixels of a patch.
    channels: Numbers of a pixel.
    merge: Rows and columns of patches that become one token of the language
      model.
    side: Rows and columns of the table of learned positions.
    norm_eps: Added to variances, or mean squares, before the root.
    frames: Frames of a patch; a tower that also reads videos treats an image
      as so many equal frames (2 in Qwen's).
    window: Rows and columns of tokens of a window; patches see only their own
      window, except in `full_layers` (Qwen2.5-VL). 0 for no windows.
    full_layers: Layers without windows, counted from 0.
    deep_layers: Layers whose outputs also become features, one for each of the
      first layers of the language model (Qwen3-VL).
  """

  kind: str = "siglip"
  width: int = 64
  num_layers: int = 2
  num_heads: int = 4
  mlp_width: int = 128
  patch_size: int = 14
  channels: int = 3
  merge: int = 2
  side: int = 16
  norm_eps: float = 1e-6
  frames: int = 1
  window: int = 0
  full_layers: tuple[int, ...] = ()
  deep_layers: tuple[int, ...] = ()

  def __post_init__(self):
    if self.kind not in TOWER_KINDS:
      raise ValueError(
        f"tower: kind is {self.kind!r}; use one of {', '.join(TOWER_KINDS)}."
      )
    _check_ranges(self, "tower", TOWER_RANGES)
    if self.width % self.num_heads:
      raise ValueError(
        f"tower: width {self.width} does not split into {self.num_heads}"
        " heads; change width or num_heads."
      )
    for name in ("full_layers", "deep_layers"):
      layers = getattr(self, name)
      if list(layers) != sorted({*layers} & {*range(self.num_layers)}):
        raise ValueError(
          f"tower: {name} is {layers}; needs layers from 0 to"
          f" {self.num_layers - 1}, each once and in their order."
        )
    if self.kind != "siglip" and self.head_width % 4:
      raise ValueError(
        f"tower: heads are {self.head_width} wide, and kind {self.kind!r} turns"
        " pairs of channels by rows and as many by columns; make the width of"
        " a head a multiple of 4."
      )
    lacks = {
      "frames": self.frames > 1 and self.kind == "siglip",
      "window": self.window > 0 and self.kind != "qwen2_5_vl",
      "full_layers": bool(self.full_layers) and not self.window,
      "deep_layers": bool(self.deep_layers) and self.kind != "qwen3_vl",
    }
    if wrong := [name for name, is_wrong in lacks.items() if is_wrong]:
      raise ValueError(
        f"tower: {', '.join(wrong)} is set, which kind {self.kind!r} with"
        f" window {self.window} has not; leave it out."
      )

  @property
  def patch_width(self) -> int:  # F
    """Numbers of a patch."""
    return math.prod(self.patch_shape)

  @property
  def patch_shape(self) -> tuple[int, ...]:
    """Channels, frames if a patch has several, rows and columns of pixels.

    The numbers of a patch are in this order, the last axis fastest.
    """
    frames = () if self.kind == "siglip" else (self.frames,)
    return (self.channels, *frames, self.patch_size, self.patch_size)

  @property
  def head_width(self) -> int:  # K
    """Width of a head."""
    return self.width // self.num_heads

  @property
  def patches_per_token(self) -> int:
    """Number of patches that become one token."""
    return self.merge**2


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaConfig:
  """Sizes of layers with the gated delta rule; see `delta.py`.

  Attributes:
    period: The last of so many layers has attention, and the others the rule.
    num_key_heads: Heads of queries and keys.
    num_value_heads: Heads of values, each with a state; a multiple of
      `num_key_heads`.
    key_width: Width of a head's keys and queries.
    value_width: Width of a head's values.
    num_taps: Tokens that the convolution sees, the newest included.
  """

  period: int = 4
  num_key_heads: int = 2
  num_value_heads: int = 4
  key_width: int = 16
  value_width: int = 16
  num_taps: int = 4

  def __post_init__(self):
    _check_ranges(self, "delta", DELTA_RANGES)
    if self.num_value_heads % self.num_key_heads:
      raise ValueError(
        f"delta: {self.num_value_heads} heads of values do not split over"
        f" {self.num_key_heads} of keys; make num_value_heads a multiple of"
        " num_key_heads."
      )

  @property
  def values_per_key(self) -> int:  # R
    """Number of heads of values that share a key."""
    return self.num_value_heads // self.num_key_heads

  @property
  def channels(self) -> int:  # M
    """Channels of the convolution that belong to a head of keys."""
    return 2 * self.key_width + self.values_per_key * self.value_width


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama4Config:
  """Switches that only Llama 4 has.

  With this record a layer that slides sees its own chunk of `sliding_window`
  positions, and not the last ones; and the inputs of an expert are multiplied
  by its weight, not its outputs.

  Attributes:
    head_norm: Whether queries and keys that positions turn have a norm without
      scales.
    temperature, temperature_len: a and n of the factor
      1 + a ln(1 + ⌊(position + 1) / n⌋) of queries in layers whose queries
      positions do not turn; a = 0 for none.
    dense_layers: Layers with an MLP instead of experts, `num_dense_layers` of
      them, counted from 0.
  """

  head_norm: bool = True
  temperature: float = 0.0
  temperature_len: int = 8192
  dense_layers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma4Config:
  """Sizes and switches that only Gemma 4 has; see `gemma4.py`.

  A layer that does not slide is "full"; `head_dim` and `num_kv_heads` are those
  of the other layers.

  Attributes:
    full_head_dim, full_kv_heads: The same of full layers.
    full_turned: Channels of a head of a full layer that positions turn, of
      which one half is in the first half of the head.
    values_are_keys: Whether full layers use keys before their norm as values.
    num_shared_layers: Number of last layers that read the keys and values of
      the last layer of their kind before them.
    shared_mlp_width: Width inside the MLP of these layers.
    input_width: Width of the input of each layer; 0 for none.
    input_vocab: Rows of the table of these inputs.
  """

  full_head_dim: int
  full_kv_heads: int
  full_turned: int
  values_are_keys: bool = False
  num_shared_layers: int = 0
  shared_mlp_width: int = 1
  input_width: int = 0
  input_vocab: int = 1


_LLAMA4_RANGES = {
  "temperature": ranges.NOT_NEGATIVE,
  "temperature_len": ranges.SIZE,
}
_GEMMA4_RANGES = {
  "full_head_dim": _MANY,
  "full_kv_heads": _MANY,
  "full_turned": ranges.Range(0, 2**16),
  "num_shared_layers": ranges.Range(0, 4096),
  "shared_mlp_width": _WIDTH,
  "input_width": ranges.Range(0, 2**20),
  "input_vocab": ranges.Range(1, 2**24),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexerConfig:
  """Sizes of the indexers of sparse attention; see `indexer.py`.

  Attributes:
    num_heads: Index heads.
    head_dim: Width of an index head; at least the channels that positions turn.
    top_k: Most tokens that a query sees.
    interleaved: Whether neighbouring channels of an index head are a pair
      (GLM-5), and not those half of the turned width apart (DeepSeek-V3.2).
  """

  num_heads: int = 64
  head_dim: int = 128
  top_k: int = 2048
  interleaved: bool = False

  def __post_init__(self):
    _check_ranges(self, "indexer", INDEXER_RANGES)


_DEEPSEEK4_KINDS = ("sliding", "heavy", "sparse")
DEEPSEEK4_RANGES = {
  "query_width": _WIDTH,
  "heavy_window": ranges.SIZE,
  "sparse_window": ranges.SIZE,
  "num_groups": _MANY,
  "group_width": _WIDTH,
  "num_hash_layers": ranges.Range(0, 4096),
  "num_streams": ranges.Range(1, 64),
  "sinkhorn_steps": ranges.Range(1, 4096),
  "stream_eps": ranges.Range(0, 1),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deepseek4Config:
  """Sizes and switches that only DeepSeek-V4 has; see `deepseek4.py`.

  Attributes:
    kinds: Kind of each layer's attention, "sliding", "heavy" or "sparse".
    query_width: Width of the vector from which queries are made.
    heavy_window, sparse_window: Tokens of a compressed window.
    indexer: The indexers that choose windows in sparse layers; pairs of
      channels are those of other heads, whatever `interleaved` says.
    num_groups, group_width: Number of groups of heads, and the channels to
      which the results of each are projected.
    num_hash_layers: First layers in which token ids choose the experts.
    num_streams: Residual streams of a token; see `hyper.py`.
    sinkhorn_steps: Divisions of the columns of a mixture of streams.
    stream_eps: The ε of `hyper.py`.
  """

  kinds: tuple[str, ...]
  query_width: int
  heavy_window: int = 128
  sparse_window: int = 4
  indexer: IndexerConfig = IndexerConfig(top_k=512, interleaved=True)
  num_groups: int = 8
  group_width: int = 1024
  num_hash_layers: int = 0
  num_streams: int = 4
  sinkhorn_steps: int = 20
  stream_eps: float = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
  """Sizes and switches of a transformer for any vocabulary.

  Attributes:
    width: Width of the residual stream.
    num_layers: Number of blocks.
    num_heads: Query heads.
    num_kv_heads: Key and value heads; divides `num_heads`.
    mlp_width: Width inside the MLP; in a mixture, of the layers without
      experts.
    head_dim: Width of a head, even; None for `width / num_heads`.
    learned_positions: Rows of a table of positions, which are added to
      embeddings (GPT-2); no sequence may be longer. 0 for no table.
    rope_theta: Base of the rotary wavelengths.
    norm_eps: Added to mean squares before the root.
    qk_norm: RMSNorm on queries and keys: "head" over each head (Qwen3),
      "projection" over all heads of a token (OLMo-2), or "none".
    qkv_bias: Biases on queries, keys and values (Qwen2).
    out_bias: A bias on the output of attention (gpt-oss).
    attention_sinks: A score of each head that belongs to no key and takes a
      share of the weights (gpt-oss).
    latent_width: Width of the latent vector of a token, from which keys and
      values of all heads are made (DeepSeek's MLA; see `blocks.py`); 0 for
      keys and values without a latent vector.
    query_latent_width: The same for queries; 0 for queries made directly.
    value_dim: Width of a value with `latent_width`; None for `head_dim`.
    tied_embeddings: Whether the head is the transposed embedding table.
    pre_norm, post_norm: Norms before, and after, attention and MLP. Gemma has
      both, OLMo-2 only those after.
    norm_plus_one: Norms multiply by 1 + scale (Gemma).
    embedding_scale: Factor of embeddings, rounded to `dtype` (√width in Gemma).
    residual_scale: Factor of what attention and MLP add to the residual stream
      (Granite).
    logit_scale: Factor of logits, before their cap (Granite).
    norm: Kind of the norms: RMSNorm with scales, "rms", or without, "plain"
      (nanochat); or "layer", LayerNorm with scales and biases (GPT-2).
    embedding_norm: A "plain" norm of embeddings (nanochat).
    activation: Activation of the gate: "silu", or "gelu" in its tanh form
      (Gemma), "relu2", max(gate, 0)² (nanochat), or "clamped" (gpt-oss):
      gate · σ(a · gate) · (up + 1), where gate and up are clamped to a limit;
      or "bounded", "silu" with gate and up clamped likewise (DeepSeek-V4).
    gate: Whether an MLP is down(activation(gate(x)) · up(x)), and not
      down(activation(up(x))) (nanochat).
    mlp_bias: Biases in the MLP (GPT-2).
    swiglu_limit: Bound of gate and up of "clamped" and "bounded".
    swiglu_slope: Slope a of the gate x·sigmoid(a·x) of "clamped".
    attention_scale: Factor of the scores; None for head_dim^−½.
    attention_softcap, final_softcap: c · tanh(x / c) on scores, and on logits
      (Gemma 2); None for no cap.
    sliding_window: Tokens that a sliding layer sees, itself included; None
      for no sliding layers.
    sliding_layers: Whether each layer slides; empty: all do.
    local_rope_theta: Base for sliding layers, without scaling (Gemma 3,
      OLMo 3); None for `rope_theta`, scaled, in all.
    rope_scaling: "none", "linear" (positions over the factor), "llama3" or
      "yarn" (long wavelengths only), or "longrope" (each by its own factor).
    rope_factor: The factor of the scaling.
    rope_low_freq, rope_high_freq, rope_original_len: Bounds of Llama 3 and
      YaRN, in wavelengths per original context, and that context, tokens.
    rope_truncate: Whether YaRN's bounds are rounded to whole channels.
    rope_amplitude: Factor of cosines and sines (YaRN, LongRoPE).
    rope_short_factors, rope_long_factors: LongRoPE's factors, one for each
      wavelength, in the original context and beyond it.
    long_context: Whether the long factors are used, for sequences of any
      length. A run decides once, so that a token's log-prob does not depend on
      how long its sequence becomes.
    query_scaling: β of the factor 1 + β ln(1 + ⌊position / rope_original_len⌋)
      of queries (Ministral 3); 0 for none.
    rotary_width: Channels of a head that positions turn, the first ones, or
      with `latent_width` the last ones; None for all, and with
      `learned_positions` 0 for none.
    rotary_layers: Whether positions turn queries and keys of each layer
      (SmolLM3 has layers without); empty: of all.
    rotary_interleaved: Whether neighbouring channels are a pair (GLM-4,
      DeepSeek), and not those half of the width apart.
    rope_sections: Numbers of pairs of channels that are turned by the time, the
      row and the column of a token of an image (Qwen's M-RoPE); all three of a
      text token are its position. Empty: one position turns all pairs.
    rope_sections_mixed: Whether rows and columns take every third pair in turn
      (Qwen3-VL), and not one range after the other (Qwen2.5-VL).
    num_experts: Experts that replace the MLP of each layer; 0 for none.
    experts_per_token: Number of experts that a token takes.
    expert_width: Width inside an expert's SwiGLU.
    num_dense_layers: Number of the first layers of a mixture that have an MLP
      instead of experts (DeepSeek).
    shared_width: Width of an MLP beside the experts, which every token takes;
      0 for none.
    expert_biases: Whether routers and experts have biases (gpt-oss).
    router_scores: Function of a router's logits: "softmax" over all experts,
      or of each "sigmoid" (DeepSeek-V3) or the root of its softplus,
      "sqrtsoftplus" (DeepSeek-V4).
    router_groups, groups_per_token: Number of groups of neighbouring experts,
      and the number of groups from which a token takes its experts. The best
      groups are those with the largest sums of their two largest scores.
    router_scale: Factor of the weights.
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
    remat: Activations of a block that the backward pass recomputes instead of
      keeping them: "none"; "dots" (all but products with weights and kernels
      of attention), which is as fast and takes half the memory; or "full".
    split_positions: Whether the devices along `tensor` share the positions of
      the residual stream between two blocks, for long completions; else each
      device holds all positions. Sequences that do not divide stay whole.
    prefill_chunk: Tokens of a prompt that are run at a time before sampling,
      for long prompts; 0: all at once. The activations inside a layer then
      exist for so many tokens; keys and values are kept for all. Each chunk is
      compiled. Not with attention "cudnn" or images.
    cache_dtype: Format of keys and values while sampling: "model" (in
      `dtype`), "bfloat16", or "int8" with a scale for each token and head.
      The update never reads the cache, so its ratios do not change; the
      sampler's log-probs are those of a model that reads rounded keys and
      values.
    dtype: Dtype of activations and matmul operands. Norm statistics, softmax
      and logits are at least float32.
    param_dtype: The dtype of the parameters.
  """

  width: int = 128
  num_layers: int = 2
  num_heads: int = 4
  num_kv_heads: int = 2
  mlp_width: int = 384
  head_dim: int | None = None
  learned_positions: int = 0
  rope_theta: float = 10_000.0
  norm_eps: float = 1e-6
  qk_norm: str = "none"
  qkv_bias: bool = False
  out_bias: bool = False
  attention_sinks: bool = False
  latent_width: int = 0
  query_latent_width: int = 0
  value_dim: int | None = None
  tied_embeddings: bool = True
  pre_norm: bool = True
  post_norm: bool = False
  norm_plus_one: bool = False
  embedding_scale: float = 1.0
  residual_scale: float = 1.0
  logit_scale: float = 1.0
  norm: str = "rms"
  embedding_norm: bool = False
  activation: str = "silu"
  gate: bool = True
  mlp_bias: bool = False
  swiglu_limit: float = 7.0
  swiglu_slope: float = 1.702
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
  rope_truncate: bool = True
  rope_amplitude: float = 1.0
  rope_short_factors: tuple[float, ...] = ()
  rope_long_factors: tuple[float, ...] = ()
  long_context: bool = False
  query_scaling: float = 0.0
  rotary_width: int | None = None
  rotary_layers: tuple[bool, ...] = ()
  rotary_interleaved: bool = False
  rope_sections: tuple[int, ...] = ()
  rope_sections_mixed: bool = False
  num_experts: int = 0
  experts_per_token: int = 2
  expert_width: int = 128
  num_dense_layers: int = 0
  shared_width: int = 0
  expert_biases: bool = False
  router_scores: str = "softmax"
  router_groups: int = 1
  groups_per_token: int = 1
  router_scale: float = 1.0
  norm_topk: bool = True
  router_bias: bool = False
  attention: str = "auto"
  decode_attention: str = "plain"
  experts: str = "auto"
  remat: str = "dots"
  split_positions: bool = False
  prefill_chunk: int = 0
  cache_dtype: str = "model"
  dtype: str = "float32"
  param_dtype: str = "float32"

  def __post_init__(self):
    for name, allowed in RANGES.items():
      value = getattr(self, name, None)  # The vocabulary comes later.
      if value is not None and value not in allowed:
        raise ValueError(f"model: {name} is {value}, but must be {allowed}.")
    low, high = self.rope_low_freq, self.rope_high_freq
    # Equal bounds, as in Kimi K2 and Llama 4, are a step instead of a ramp.
    if low > high:
      raise ValueError(
        f"model: rope_low_freq is {self.rope_low_freq} and rope_high_freq"
        f" {self.rope_high_freq}; make rope_high_freq the larger one."
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
    has_positions = self.turned_width or self.learned_positions
    if self.turned_width % 2 or not has_positions:
      raise ValueError(
        f"model: {self.turned_width} channels of a head are turned by rotary"
        " positions, which turn pairs; make head_dim, or rotary_width, even and"
        " positive."
      )
    for name, choices in _CHOICES.items():
      if getattr(self, name) not in choices:
        raise ValueError(
          f"model: {name} is {getattr(self, name)!r}; use one of"
          f" {', '.join(choices)}."
        )
    if not (self.pre_norm or self.post_norm):
      raise ValueError(
        "model: pre_norm and post_norm are both False; blocks"
        " without any norm do not train. Set one."
      )
    for name in ("sliding_layers", "rotary_layers"):
      if (count := len(getattr(self, name))) not in (0, self.num_layers):
        raise ValueError(
          f"model: {name} has {count} entries for {self.num_layers} layers;"
          " give one for each, or none."
        )
    if self.norm_plus_one and self.norm != "rms":
      raise ValueError(
        f"model: norm_plus_one is True with norm {self.norm!r}; only 'rms' adds"
        " 1 to its scales. Change one."
      )
    if not self.gate and (self.num_experts or self.activation == "clamped"):
      raise ValueError(
        f"model: gate is False, and num_experts is {self.num_experts} and"
        f" activation {self.activation!r}; experts and 'clamped' need a gate."
        " Change one."
      )
    self._check_attention()
    self._check_experts()
    for name in ("dtype", "param_dtype"):
      if getattr(self, name) not in ("float64", "float32", "bfloat16"):
        raise ValueError(
          f"model: {name} is {getattr(self, name)!r}; use"
          " 'float32', 'bfloat16' or (tests) 'float64'."
        )

  def _check_attention(self):
    if self.turned_width > self.head_width:
      raise ValueError(
        f"model: rotary_width is {self.rotary_width}, but heads are"
        f" {self.head_width} wide; make it smaller, or leave it out."
      )
    half = self.turned_width // 2 if self.rope_scaling == "longrope" else None
    for name in ("rope_short_factors", "rope_long_factors"):
      factors = getattr(self, name)
      if half not in (None, len(factors)) or not all(
        x in ranges.POSITIVE for x in factors
      ):
        raise ValueError(
          f"model: {name} is {factors}; rope_scaling 'longrope' needs"
          f" {half or 'as many'} numbers as there are pairs of channels, each"
          f" {ranges.POSITIVE}."
        )
    if self.rope_scaling == "yarn" and self.rope_theta == 1:
      raise ValueError(
        "model: rope_theta is 1, of which all pairs of channels turn alike, and"
        " rope_scaling 'yarn' chooses among them; raise rope_theta."
      )
    count, half = len(self.rope_sections), self.turned_width // 2
    if count and (
      count != 3
      or min(self.rope_sections) < 0
      or sum(self.rope_sections) != half
    ):
      raise ValueError(
        f"model: rope_sections is {self.rope_sections}; needs three"
        f" numbers of pairs of channels that add up to the {half} of a head, or"
        " none."
      )
    if self.rope_sections_mixed and not (
      count and 3 * max(self.rope_sections[1:]) <= half
    ):
      raise ValueError(
        "model: rope_sections_mixed gives rows and columns every third of the"
        f" {half} pairs of a head, and rope_sections is {self.rope_sections};"
        " make their numbers smaller, or leave it out."
      )
    if self.query_scaling and (self.latent_width or count):
      raise ValueError(
        f"model: query_scaling is {self.query_scaling}, which models with"
        " latent_width or rope_sections do not have; leave it out."
      )
    lacks = ""
    if self.latent_width and self.rotary_width in (None, self.head_width):
      lacks = "a rotary_width below head_dim"
    elif self.latent_width and self.num_kv_heads != self.num_heads:
      lacks = "num_kv_heads = num_heads"
    elif self.latent_width and (self.qkv_bias or self.qk_norm != "none"):
      lacks = "qkv_bias False and qk_norm 'none'"
    elif self.latent_width and self.attention_sinks:
      lacks = "attention_sinks False"
    elif not self.latent_width and (self.query_latent_width or self.value_dim):
      lacks = "latent_width"
    if lacks:
      raise ValueError(
        f"model: with latent_width {self.latent_width}, query_latent_width"
        f" {self.query_latent_width} and value_dim {self.value_dim} the model"
        f" needs {lacks}; change that, or leave all three out."
      )

  def _check_experts(self):
    if not self.num_experts:
      of_experts = (
        "router_bias",
        "expert_biases",
        "num_dense_layers",
        "shared_width",
      )
      if extras := [name for name in of_experts if getattr(self, name)]:
        raise ValueError(
          "model: num_experts is 0; use 0 for a model without experts (and"
          f" without {', '.join(extras)}), or their number."
        )
      return
    if self.num_dense_layers >= self.num_layers:
      raise ValueError(
        f"model: num_dense_layers is {self.num_dense_layers} of"
        f" {self.num_layers} layers, so that none has experts; make it smaller."
      )
    if self.num_experts % self.router_groups:
      raise ValueError(
        f"model: {self.num_experts} experts do not split into"
        f" {self.router_groups} router_groups; change one."
      )
    if self.groups_per_token > self.router_groups:
      raise ValueError(
        f"model: groups_per_token is {self.groups_per_token} of"
        f" {self.router_groups} router_groups; make it smaller."
      )
    of_groups = self.num_experts // self.router_groups
    if self.router_groups > 1 and of_groups < 2:
      raise ValueError(
        f"model: {self.router_groups} router_groups of {of_groups} expert; a"
        " group is scored by its two best, so make fewer groups."
      )
    allowed = self.groups_per_token * of_groups
    if self.experts_per_token > allowed:
      raise ValueError(
        f"model: experts_per_token is {self.experts_per_token}, but there are"
        f" {allowed} experts to take them from; raise num_experts, or"
        " groups_per_token."
      )
    if self.expert_biases and self.shared_width:
      raise ValueError(
        "model: expert_biases and shared_width are both set; shared experts"
        " have no biases. Leave one out."
      )

  @property
  def without_experts(self) -> Self:
    """The architecture of a mixture's first layers, which have an MLP."""
    return dataclasses.replace(
      self,
      num_experts=0,
      num_dense_layers=0,
      shared_width=0,
      expert_biases=False,
      router_bias=False,
    )

  @property
  def head_width(self) -> int:  # K
    if self.head_dim is None:
      return self.width // self.num_heads
    return self.head_dim

  @property
  def turned_width(self) -> int:
    """Channels of a head that rotary positions turn."""
    return self.head_width if self.rotary_width is None else self.rotary_width

  @property
  def value_width(self) -> int:
    """Width of a value of a head."""
    return self.head_width if self.value_dim is None else self.value_dim

  @property
  def num_expert_layers(self) -> int:
    """Number of layers that have experts."""
    return self.num_layers - self.num_dense_layers if self.num_experts else 0

  @property
  def queries_per_key(self) -> int:  # R
    return self.num_heads // self.num_kv_heads

  def slides(self, layer: int) -> bool:
    """Returns True if a layer sees the last `sliding_window` tokens only."""
    if self.sliding_window is None:
      return False
    return self.sliding_layers[layer] if self.sliding_layers else True

  def turns(self, layer: int) -> bool:
    """Returns True if positions turn queries and keys of a layer."""
    return self.rotary_layers[layer] if self.rotary_layers else True


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(Architecture):
  """An architecture for a vocabulary of `vocab_size` token ids.

  Attributes:
    vocab_size: V.
    tower: The vision tower that reads the images of prompts; None for prompts
      of tokens only.
    image_token: The placeholder token, in whose places the features of images
      are read.
    tower_trained: Whether the tower is trained; else it is frozen.
    delta: Sizes of layers with the gated delta rule; None for attention in all
      layers.
    attention_gate: Whether what attention returns is multiplied by a sigmoid of
      further channels of the queries' projection (Qwen3-Next).
    shared_gate: Whether the MLP beside the experts is multiplied by a sigmoid
      of a product with the token (Qwen3-Next).
    llama4, gemma4, deepseek4: Switches of Llama 4, of Gemma 4, and of
      DeepSeek-V4, or None.
    rotary_backward: Whether positions turn pairs by the negative angle
      (nanochat).
    indexer: The indexers that choose which tokens attention sees; None for all.
  """

  vocab_size: int
  tower: TowerConfig | None = None
  image_token: int | None = None
  tower_trained: bool = True
  delta: DeltaConfig | None = None
  attention_gate: bool = False
  shared_gate: bool = False
  llama4: Llama4Config | None = None
  gemma4: Gemma4Config | None = None
  deepseek4: Deepseek4Config | None = None
  rotary_backward: bool = False
  indexer: IndexerConfig | None = None

  def __post_init__(self):
    super().__post_init__()
    self._check_delta()
    if self.llama4 is not None:
      self._check_llama4(self.llama4)
    if self.gemma4 is not None:
      self._check_gemma4(self.gemma4)
    if self.deepseek4 is not None:
      self._check_deepseek4(self.deepseek4)
    if self.indexer is not None:
      self._check_indexer(self.indexer)
    if (self.tower is None) != (self.image_token is None):
      raise ValueError(
        f"model: tower is {self.tower} and image_token {self.image_token}; a"
        " model that reads images needs both, and any other one neither."
      )
    if self.image_token is not None and not (
      0 <= self.image_token < self.vocab_size
    ):
      raise ValueError(
        f"model: image_token is {self.image_token}, and the vocabulary has the"
        f" ids 0 to {self.vocab_size - 1}; name the id of the placeholder."
      )
    if self.tower is not None and self.learned_positions:
      raise ValueError(
        f"model: learned_positions is {self.learned_positions} and there is a"
        " tower; features of images have no learned positions. Leave one out."
      )
    # If a checkpoint sets the rest, its `rope_scaling` is known only here.
    if self.long_context and self.rope_scaling != "longrope":
      raise ValueError(
        "model: long_context chooses the long factors of rope_scaling"
        f" 'longrope', and rope_scaling is {self.rope_scaling!r}; leave it out."
      )

  def _check_delta(self):
    if self.attention_gate and self.latent_width:
      raise ValueError(
        f"model: attention_gate is True, and latent_width {self.latent_width};"
        " latent attention has no gate. Leave one out."
      )
    if self.delta is None:
      return
    if self.num_layers % self.delta.period:
      raise ValueError(
        f"model: {self.num_layers} layers are no multiple of delta.period"
        f" {self.delta.period}; change one."
      )
    self._check_fields(
      "a model with the gated delta rule",
      decode_attention="plain",
      latent_width=0,
      learned_positions=0,
      num_dense_layers=0,
      rotary_layers=(),
      router_bias=False,
      sliding_window=None,
      tower=None,
      llama4=None,
      gemma4=None,
    )

  def _check_fields(self, who: str, **fields: Any) -> None:
    """Raises ValueError unless the fields have these values."""
    for name, need in fields.items():
      if (value := getattr(self, name)) != need:
        raise ValueError(
          f"model: {name} is {value!r}, and {who} needs {need!r}; change it,"
          " or use another model."
        )

  def is_linear(self, layer: int) -> bool:
    """Returns True if a layer has the delta rule instead of attention."""
    return self.delta is not None and (layer + 1) % self.delta.period != 0

  def _check_llama4(self, sizes: Llama4Config) -> None:
    _check_ranges(sizes, "llama4", _LLAMA4_RANGES)
    dense, layers = sizes.dense_layers, range(self.num_layers)
    if list(dense) != sorted({*dense} & {*layers}) or (
      self.num_experts and len(dense) != self.num_dense_layers
    ):
      raise ValueError(
        f"llama4: dense_layers is {dense} with num_dense_layers"
        f" {self.num_dense_layers}; it needs so many of the {self.num_layers}"
        " layers, each once and in their order."
      )
    if self.latent_width or self.learned_positions or self.query_scaling:
      raise ValueError(
        f"llama4: latent_width is {self.latent_width}, learned_positions"
        f" {self.learned_positions} and query_scaling {self.query_scaling};"
        " leave them out."
      )

  def _check_gemma4(self, sizes: Gemma4Config) -> None:
    _check_ranges(sizes, "gemma4", _GEMMA4_RANGES)
    if self.num_heads % sizes.full_kv_heads:
      raise ValueError(
        f"gemma4: {self.num_heads} query heads do not split over full_kv_heads"
        f" {sizes.full_kv_heads}; change one."
      )
    if sizes.full_head_dim % 2 or sizes.full_turned > sizes.full_head_dim:
      raise ValueError(
        f"gemma4: full_turned is {sizes.full_turned} of full_head_dim"
        f" {sizes.full_head_dim} channels; make that width even, and turn no"
        " more channels."
      )
    if sizes.input_width and sizes.input_vocab < self.vocab_size:
      raise ValueError(
        f"gemma4: input_vocab is {sizes.input_vocab}, and the vocabulary has"
        f" {self.vocab_size} ids; each needs a row."
      )
    if not self.sliding_layers:  # Of one stack.
      return
    own = self.sliding_layers[: self.num_layers - sizes.num_shared_layers]
    if {*own} != {True, False}:
      raise ValueError(
        f"gemma4: sliding_layers is {self.sliding_layers} with"
        f" num_shared_layers {sizes.num_shared_layers}; of the layers with keys"
        " of their own one must slide, and one must not."
      )
    if self.num_dense_layers or self.shared_width or self.router_bias:
      raise ValueError(
        f"gemma4: num_dense_layers is {self.num_dense_layers}, shared_width"
        f" {self.shared_width} and router_bias {self.router_bias}; leave them"
        " out."
      )

  def _check_deepseek4(self, sizes: Deepseek4Config) -> None:
    _check_ranges(sizes, "deepseek4", DEEPSEEK4_RANGES)
    if len(sizes.kinds) != self.num_layers or {*sizes.kinds} - {
      *_DEEPSEEK4_KINDS
    }:
      raise ValueError(
        f"deepseek4: kinds is {sizes.kinds}, and needs one of"
        f" {', '.join(_DEEPSEEK4_KINDS)} for each of {self.num_layers} layers."
      )
    if self.num_heads * self.head_width % sizes.num_groups:
      raise ValueError(
        f"deepseek4: {self.num_heads} heads of {self.head_width} channels do"
        f" not split into num_groups {sizes.num_groups}; change one."
      )
    if sizes.num_hash_layers > self.num_layers or not self.num_experts:
      raise ValueError(
        f"deepseek4: num_hash_layers is {sizes.num_hash_layers} of"
        f" {self.num_layers} layers, and num_experts {self.num_experts}; it"
        " needs experts, and no more such layers than there are."
      )
    if self.turned_width > sizes.indexer.head_dim:
      raise ValueError(
        f"deepseek4: rotary_width is {self.turned_width}, and index heads are"
        f" {sizes.indexer.head_dim} wide; make it smaller."
      )
    self._check_fields(
      "DeepSeek-V4",
      attention_sinks=True,
      # Rounded features would make other windows than the update's.
      cache_dtype="model",
      decode_attention="plain",
      delta=None,
      gemma4=None,
      indexer=None,
      latent_width=0,
      learned_positions=0,
      llama4=None,
      num_dense_layers=0,
      num_kv_heads=1,
      post_norm=False,
      pre_norm=True,
      qk_norm="none",
      qkv_bias=False,
      residual_scale=1.0,
      rotary_layers=(),
      router_bias=sizes.num_hash_layers < self.num_layers,
      sliding_layers=tuple(kind == "sliding" for kind in sizes.kinds),
      split_positions=False,
      tower=None,
    )
    if self.sliding_window is None or self.local_rope_theta is None:
      raise ValueError(
        f"deepseek4: sliding_window is {self.sliding_window} and"
        f" local_rope_theta {self.local_rope_theta}; set both."
      )

  def has_table(self, layer: int) -> bool:
    """Returns True if token ids choose the experts of a layer."""
    if self.deepseek4 is None:
      return False
    return layer < self.deepseek4.num_hash_layers

  @property
  def chunk(self) -> int | None:
    """Positions of a chunk, which sliding layers see; None for windows."""
    return None if self.llama4 is None else self.sliding_window

  @property
  def stacks(self) -> tuple[str, ...]:
    """Name of the stack of parameters that each layer is in."""
    if self.delta is not None:
      kinds = map(self.is_linear, range(self.num_layers))
      return tuple("linear_layers" if x else "layers" for x in kinds)
    if self.gemma4 is not None:
      first = self.num_layers - self.gemma4.num_shared_layers
      return tuple(
        ("shared_" if layer >= first else "")
        + ("layers" if slides else "full_layers")
        for layer, slides in enumerate(self.sliding_layers)
      )
    if self.deepseek4 is not None:
      return tuple(
        ("hash_" if self.has_table(layer) else "") + f"{kind}_layers"
        for layer, kind in enumerate(self.deepseek4.kinds)
      )
    dense: Sequence[int] = range(self.num_dense_layers)
    if self.llama4 is not None and self.num_experts:
      dense = self.llama4.dense_layers
    return tuple(
      "dense_layers" if layer in dense else "layers"
      for layer in range(self.num_layers)
    )

  def of_stack(self, name: str) -> TransformerConfig:
    """The config of the blocks of a stack."""
    if self.gemma4 is None:
      return self.without_experts if name == "dense_layers" else self
    fields: dict[str, Any] = {"sliding_layers": ()}
    if name.startswith("shared_"):
      fields["mlp_width"] = self.gemma4.shared_mlp_width
    if name.endswith("full_layers"):
      fields |= {
        "head_dim": self.gemma4.full_head_dim,
        "num_kv_heads": self.gemma4.full_kv_heads,
        "sliding_window": None,
      }
    else:
      fields |= {"rope_scaling": "none", "rope_theta": self.local_rope_theta}
    return dataclasses.replace(self, **fields, local_rope_theta=None)

  def keys_of(self, layer: int) -> int:
    """Number of the layer whose keys and values a layer reads."""
    name = self.stacks[layer]
    if not name.startswith("shared_"):
      return layer
    return self.layers_of(name.removeprefix("shared_"))[-1]

  def layers_of(self, name: str) -> tuple[int, ...]:
    """Numbers of the layers in a stack."""
    pairs = enumerate(self.stacks)
    return tuple(layer for layer, stack in pairs if stack == name)

  def _check_indexer(self, indexer: IndexerConfig):
    lacks = ""
    if not (self.latent_width and self.query_latent_width):
      lacks = "latent_width and query_latent_width"
    elif not 0 < self.turned_width <= indexer.head_dim:
      lacks = f"a rotary_width of at most {indexer.head_dim}"
    elif self.sliding_window is not None:
      lacks = "no sliding_window"
    elif self.cache_dtype == "int8":
      # Rounded index keys would choose other tokens than the update does.
      lacks = "cache_dtype 'model' or 'bfloat16'"
    elif self.decode_attention != "plain" or self.attention not in (
      "auto",
      "plain",
    ):
      lacks = "attention 'auto' or 'plain', and decode_attention 'plain'"
    elif self.tower is not None:
      lacks = "no tower"
    if lacks:
      raise ValueError(
        f"model: an indexer chooses which {indexer.top_k} tokens attention"
        f" sees, and needs {lacks}; change that, or take a model without an"
        " indexer."
      )


class Prefix(NamedTuple):
  """Keys and values of prompts, as decoding reads them.

  The cache of completions is a tuple of such layers. Keys are stored
  transposed, so that both products of a decode step read the cache in the order
  of its memory. Milliseconds per step on 2 CPU cores (4 layers, width 256, 4
  heads, 2 key/value heads, 64 rows; keys / values):

  | slots | C K S / C S K | C K S both | C S K both | S C K both |
  |-------|---------------|------------|------------|------------|
  |   192 |            14 |         18 |         17 |         24 |
  |   512 |            26 |         36 |         39 |         55 |
  |   513 |            27 |         38 |         80 |         55 |

  A step at 192 slots takes 14 ms with one array per layer and unrolled layers.
  It takes 14 with one stacked array (26 in another round), 19 with a scan that
  carries the stack, and 25 with a scan that consumes and rebuilds the stack.

  Attributes:
    layers: Rotated keys [P, C, K, S] and values [P, C, S, K] of each layer from
      `attention.cache_of`, or pages of both from `paged.pages_of`. With
      `latent_width` keys are latent vectors [P, 1, K, S], and values None, or
      with an indexer its keys [P, 1, S, I]. A layer with the gated delta rule
      has a `delta.State` instead.
    mask: True on slots that hold a token.
    end: Position of the first token of a completion; None where that is the
      number of tokens of the prompt. They differ with `rope_sections` and
      images.
  """

  layers: tuple[PyTree, ...]
  mask: jax.Array  # [P, S] bool
  end: jax.Array | None = None  # [P] int32

"""Softmax attention between projections, in the form that suits a backend.

`B` rows of `M` slots with keys, of which the last `L` have queries; `H` query
heads of width `K`, `C` key/value heads, `R = H / C` queries per key. The same
sum in three forms:

| form   | runs on    | how                                      | keeps    |
|--------|------------|------------------------------------------|----------|
| plain  | everything | all scores at once; the definition       | B·H·L·M  |
| splash | TPU        | JAX's Pallas kernel: blocks, online sums | B·H·L·K  |
| cudnn  | NVIDIA GPU | cuDNN's fused kernel, as a custom call   | B·H·L·K  |

The other forms are tested against `plain`. A decode step computes the same sum
with `cached`, or with `paged.py`. The kernels skip the blocks that the causal
mask or the window hides. They read padding only from a mask [B, M]: no mask
[B, L, M] exists. cuDNN's kernel counts the first query as the first key, so it
can be used only where every slot has a query, L = M.

Neither kernel was run on its own device. Splash was interpreted on a CPU, and
compiled for TPU v5e and v5p. cuDNN's call was lowered, and the code around it
was run with JAX's plain form of the same function.

MiB of temporaries on each device, compiled by libtpu 0.0.42 for a gradient of 4
layers in bfloat16, 2 rows of 2047 slots a device; and GB that this program
reads and writes, the layers counted once (experiments/benchmarks/attention.py):

| shape, device, recomputed blocks | plain      | splash     |
|----------------------------------|------------|------------|
| Qwen3 0.6B, v5e, no              | 8241, 16.9 | 2170,  6.7 |
| Qwen3 0.6B, v5p, yes             | 1866, 15.2 |  410,  6.2 |
| Gemma 2 2B, v5e, yes             | 1644, 17.7 | 1283, 13.0 |

Splash does not multiply less: it skips hidden blocks, but computes the scores
twice more for the gradient.

Masks of the splash kernel are made here too (`of_distance`), because JAX's own
are slow. When the kernel is traced, it asks block by block for the mask, and
JAX's masks compute a bool for each pair of tokens: with 131 072 tokens that
takes some minutes for each mask. A causal mask or a window depends only on the
distance of two tokens. So all blocks of one distance are equal, and almost all
blocks are all True or all False.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from grpo_jax.models import mesh, quantization
from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.ops import masked
from grpo_jax.types import ROW_AXES, PyTree


def of_distance(shape: tuple[int, int], window: int | None, before: int) -> Any:
  """A causal mask for the splash kernel, quick to make for long sequences.

  Args:
    shape: Numbers of queries and of keys.
    window: Tokens that a query sees, itself included; None for all before it.
    before: Number of keys before the key of the first query.
  """
  # Other platforms need not import Pallas.
  from jax.experimental.pallas.ops.tpu import splash_attention

  if window is None:
    return _quick(splash_attention.CausalMask)(shape, before)
  return _quick(splash_attention.LocalMask)(shape, (window - 1, 0), before)


_CLASSES: dict[type, type] = {}


def _quick(of: type) -> type:
  """A subclass of a mask that computes the blocks of each distance once.

  There is one subclass for each class, because equal masks must have equal
  classes.
  """
  if of not in _CLASSES:

    class Quick(of):  # type: ignore[valid-type, misc]
      def __getitem__(self, slices):
        queries, keys = slices
        blocks = self.__dict__.setdefault("blocks", {})
        key = (
          queries.start - keys.start,
          queries.stop - queries.start,
          keys.stop - keys.start,
        )
        if key not in blocks:
          block = super().__getitem__(slices)
          if block.all() or not block.any():
            # One array for all blocks of a kind, to save memory.
            kind = ("all", bool(block.flat[0]), *key[1:])
            block = blocks.setdefault(kind, block)
          blocks[key] = block
        return blocks[key]

    _CLASSES[of] = Quick
  return _CLASSES[of]


_LANES = 128  # Numbers of slots that a TPU kernel takes are multiples of this.

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def capped(x: jax.Array, cap: float) -> jax.Array:
  """cap · tanh(x / cap): nearly x where x is small, never beyond the cap."""
  return cap * jnp.tanh(x / cap)


def scale(config: TransformerConfig) -> float:
  """Factor of the scores."""
  return config.attention_scale or config.head_width**-0.5


def plain(
  config: TransformerConfig,
  q: jax.Array,  # [B, L, C, R, K]
  k: jax.Array,  # [B, C, K, M]
  v: jax.Array,  # [B, C, M, K]
  mask: jax.Array,  # [B, L, M] bool
  sinks: jax.Array | None = None,  # [C, R]
) -> jax.Array:  # [B, L, C, R, K]
  """Softmax attention; a query that sees no key gets a finite result.

  Values may have another width than keys. `sinks` are scores without a key.
  """
  return weighted(plain_weights(config, q, k, mask, sinks), v)


def plain_weights(
  config: TransformerConfig,
  q: jax.Array,  # [B, L, C, R, K]
  k: jax.Array,  # [B, C, K, M]
  mask: jax.Array,  # [B, L, M] bool
  sinks: jax.Array | None = None,  # [C, R]
) -> jax.Array:  # [B, C, R, L, M]
  """The weights of `plain`, at least float32."""
  num_rows, length, num_kv_heads, queries, width = q.shape
  # Matmuls and not einsums: einsum puts k on the left, and XLA:CPU then takes
  # twice as long for a decode step (with 192 slots).
  stacked = (num_rows, num_kv_heads, queries * length)
  q = jnp.moveaxis(q, 1, 3).reshape(*stacked, width)  # [B, C, R · L, K]
  # Widened at once, so that XLA need not round the product.
  scores = masked.wide(q @ k)
  scores = scores.reshape(num_rows, num_kv_heads, queries, length, -1)
  return _weights(config, scores, mask, sinks)


def weighted(
  weights: jax.Array,  # [B, C, R, L, M]
  v: jax.Array,  # [B, C, M, K]
) -> jax.Array:  # [B, L, C, R, K]
  """Sums of values by the weights of attention, in the dtype of the values."""
  num_rows, num_kv_heads, queries, length, _ = weights.shape
  stacked = (num_rows, num_kv_heads, queries * length)
  attended = weights.astype(v.dtype).reshape(*stacked, -1) @ v
  attended = attended.reshape(num_rows, num_kv_heads, queries, length, -1)
  return jnp.moveaxis(attended, 3, 1)


def _weights(config, scores, mask, sinks=None):  # [B, C, R, L, M], [B, L, M]
  scores = masked.wide(scores) * scale(config)
  if config.attention_softcap is not None:
    scores = capped(scores, config.attention_softcap)
  # Not -inf: a padding query sees no key, and its row would be NaN.
  lowest = jnp.finfo(scores.dtype).min
  scores = jnp.where(mask[:, None, None], scores, lowest)
  if sinks is None:
    return jax.nn.softmax(scores, axis=-1)
  sinks = masked.wide(sinks)[:, :, None, None]  # [C, R, 1, 1]
  largest = jnp.maximum(scores.max(axis=-1, keepdims=True), sinks)
  largest = lax.stop_gradient(largest)
  weights = jnp.exp(scores - largest)
  return weights / (
    weights.sum(axis=-1, keepdims=True) + jnp.exp(sinks - largest)
  )


def cache_of(
  config: TransformerConfig,
  k: jax.Array,  # [..., K, M]
  v: jax.Array | None,  # [..., M, K]
) -> tuple[PyTree, PyTree]:
  """Keys and values in the format of the cache (`config.cache_dtype`).

  "int8" saves memory, and time where a product can read narrow numbers.
  Compiled by libtpu 0.0.42 for TPU v5e (2 layers of 8 key/value heads of 128,
  bfloat16, 64 rows of 1024 slots, 8 prompts of 512), the cache takes 281 MiB
  instead of 544, temporaries 70 instead of 130, and a third fewer bytes are
  read. XLA:CPU widens one layer at a time before its products, and takes
  longer: 55 ms for a step with int8 and 102 with bfloat16, instead of 20 (4
  layers, width 256, 64 rows, 256 slots).

  Returns:
    Two arrays of `config.cache_dtype`; for "int8" two of {"int8": codes,
    "scale": [..., 1, M] or [..., M, 1]}, with a scale for each token and head,
    by which no code is ever multiplied (see `cached`). The second is None for
    latent vectors, which have no values.
  """
  if config.cache_dtype == "int8":
    keys = quantization.to_int8(k, (-2,))
    return keys, None if v is None else quantization.to_int8(v, (-1,))
  model = config.cache_dtype == "model"
  dtype = config.dtype if model else config.cache_dtype
  return k.astype(dtype), None if v is None else v.astype(dtype)


def _values(config, cache):  # (cache [..., K, M], cache [..., M, K] or None)
  """Values; with latent vectors, the first channels of the keys."""
  keys, values = cache
  if not config.latent_width:
    return values
  return jax.tree.map(
    lambda x: jnp.swapaxes(x[..., : config.latent_width, :], -2, -1), keys
  )


def _scores(q, keys):  # [..., N, K], cache [..., K, M] -> [..., N, M]
  if not quantization.is_quantized(keys):
    return q @ keys.astype(q.dtype)
  return masked.wide(q @ keys["int8"].astype(q.dtype)) * keys["scale"]


def _weighted(weights, values, dtype):  # [..., N, M], cache [..., M, K]
  if not quantization.is_quantized(values):
    return weights.astype(dtype) @ values.astype(dtype)
  weights = weights * jnp.swapaxes(values["scale"], -2, -1)
  return weights.astype(dtype) @ values["int8"].astype(dtype)


def cached(
  config: TransformerConfig,
  q: jax.Array,  # [B, L, C, R, K]
  prefix: tuple[PyTree, PyTree],  # cache [P, C, K, S] and [P, C, S, K]
  own: tuple[PyTree, PyTree],  # cache [B, C, K, M] and [B, C, M, K]
  mask: jax.Array,  # [B, L, S + M] bool
  sinks: jax.Array | None = None,  # [C, R]
) -> jax.Array:  # [B, L, C, R, K]
  """`plain` for a few queries a row, whose first keys are shared by rows.

  If the cache holds codes, the scale of a key multiplies its scores, and the
  scale of a value multiplies its weights:

      q · (s c) = s (q · c)        Σ_m w_m (s_m c_m) = Σ_m (w_m s_m) c_m

  Each prefix is read once for its B / P adjacent rows. With 64 rows of 8
  prompts of 512 tokens and 64 tokens more (4 layers, width 256) a decode step
  takes 16 ms on a CPU; with a copy of the prefix for each row it took 26.
  """
  num_rows, length, num_kv_heads, queries, width = q.shape
  num_prefixes, _, _, num_shared = jax.tree.leaves(prefix[0])[0].shape
  of_row = queries * length
  shared = (num_prefixes, num_rows // num_prefixes, num_kv_heads, of_row)

  def by_prefix(x):  # [B, C, R · L, N] -> [P, C, B / P · R · L, N]
    x = jnp.swapaxes(x.reshape(*shared, -1), 1, 2)
    return x.reshape(num_prefixes, num_kv_heads, -1, x.shape[-1])

  def by_row(x):  # The reverse.
    x = x.reshape(num_prefixes, num_kv_heads, shared[1], of_row, -1)
    return jnp.swapaxes(x, 1, 2).reshape(num_rows, num_kv_heads, of_row, -1)

  q = jnp.moveaxis(q, 1, 3).reshape(num_rows, num_kv_heads, of_row, width)
  scores = jnp.concatenate(
    [by_row(_scores(by_prefix(q), prefix[0])), _scores(q, own[0])], axis=-1
  )  # [B, C, R · L, S + M]
  scores = scores.reshape(num_rows, num_kv_heads, queries, length, -1)
  weights = _weights(config, scores, mask, sinks)
  weights = weights.reshape(num_rows, num_kv_heads, of_row, -1)
  of_prefix, of_own = jnp.split(weights, [num_shared], axis=-1)
  attended = by_row(
    _weighted(by_prefix(of_prefix), _values(config, prefix), q.dtype)
  )
  attended += _weighted(of_own, _values(config, own), q.dtype)
  # From [B, C, R · L, K].
  attended = attended.reshape(num_rows, num_kv_heads, queries, length, -1)
  return jnp.moveaxis(attended, 3, 1)


def ring(
  config: TransformerConfig,
  prefix: tuple[PyTree, PyTree],  # As in `cached`.
  own: tuple[PyTree, PyTree],
  slot: jax.Array,  # [] int32
  mask: jax.Array,  # [B, 1, S + M] bool
  q: jax.Array,  # [B, 1, C, R, K]
  k: jax.Array,  # [B, C, K, 1]
  v: jax.Array | None,  # [B, C, 1, K]
  sinks: jax.Array | None = None,  # [C, R]
) -> tuple[jax.Array, tuple[PyTree, PyTree]]:
  """Writes a token's key and value to one slot of all rows, then attends.

  Returns:
    The result of `cached`, [B, 1, C, R, K], and `own` with the token.
  """
  own = in_slot(config, slot, own, k, v)
  return cached(config, q, prefix, own, mask, sinks), own


def in_slot(
  config: TransformerConfig,
  slot: jax.Array,  # [] int32
  own: tuple[PyTree, PyTree],  # As in `cached`.
  k: jax.Array,  # [B, C, K, 1]
  v: jax.Array | None,  # [B, C, 1, K]
) -> tuple[PyTree, PyTree]:
  """The cache of completions with a token in one slot of all rows."""
  new = cache_of(config, k, v)

  def with_token(part, axis):  # Keys [B, C, K, M] or values [B, C, M, K].
    return jax.tree.map(
      lambda into, x: lax.dynamic_update_slice_in_dim(into, x, slot, axis),
      own[part],
      new[part],
    )

  return with_token(0, axis=-1), with_token(1, axis=-2)


def of_another(
  config: TransformerConfig,
  prefix: tuple[PyTree, PyTree],  # As in `cached`.
  mask: jax.Array,  # [B, L, S + M] bool
  own: tuple[PyTree, PyTree],
  q: jax.Array,  # [B, L, C, R, K]
  k: None,
  v: None,
) -> tuple[jax.Array, None]:
  """Attends to the keys and values of another layer, and writes none."""
  del k, v
  return cached(config, q, prefix, own, mask), None


def in_places(
  config: TransformerConfig,
  prefix: tuple[PyTree, PyTree],  # As in `cached`.
  own: tuple[PyTree, PyTree],
  places: jax.Array,  # [B, L] int32
  mask: jax.Array,  # [B, L, S + M] bool
  q: jax.Array,  # [B, L, C, R, K]
  k: jax.Array,  # [B, C, K, L]
  v: jax.Array | None,  # [B, C, L, K]
  sinks: jax.Array | None = None,  # [C, R]
) -> tuple[jax.Array, tuple[PyTree, PyTree]]:
  """Writes keys and values to slots of each row's own, then attends.

  Args:
    config: The transformer's config.
    prefix, own, mask, q, sinks: As in `cached`.
    places: Slots of the tokens; tokens with slots of M or more are not written.
    k, v: Keys and values of the tokens.

  Returns:
    The result of `cached`, [B, L, C, R, K], and `own` with the tokens.
  """
  own = in_own_slots(config, places, own, k, v)
  return cached(config, q, prefix, own, mask, sinks), own


def in_own_slots(
  config: TransformerConfig,
  places: jax.Array,  # [B, L] int32
  own: tuple[PyTree, PyTree],  # As in `cached`.
  k: jax.Array,  # [B, C, K, L]
  v: jax.Array | None,  # [B, C, L, K]
) -> tuple[PyTree, PyTree]:
  """Writes keys and values to slots of `own`, as `in_places` does."""
  keys, values = cache_of(config, k, v)
  rows = jnp.arange(len(places))[:, None]

  def with_keys(into, x):  # [B, C, K, M], [B, C, K, L]
    x = jnp.moveaxis(x, -1, 1)
    return into.at[rows, :, :, places].set(x, mode="drop")

  def with_values(into, x):  # [B, C, M, K], [B, C, L, K]
    x = jnp.moveaxis(x, -2, 1)
    return into.at[rows, :, places].set(x, mode="drop")

  return (
    jax.tree.map(with_keys, own[0], keys),
    jax.tree.map(with_values, own[1], values),
  )


def views(config, visible, of_query, of_key):
  """Masks [B, L, M] of a sliding layer, and of a layer that does not slide.

  Args:
    config: The transformer's config.
    visible: [B, L, M], mask of a layer that does not slide.
    of_query: [B, L, 1], positions of queries.
    of_key: [B, M], positions of keys.
  """
  if config.sliding_window is None:
    return visible, visible
  if config.chunk:
    near = of_query // config.chunk == of_key[:, None] // config.chunk
  else:
    near = of_query - of_key[:, None] < config.sliding_window
  return visible & near, visible


def _round_up(slots: int) -> int:
  return -(-slots // _LANES) * _LANES


def splash(
  config: TransformerConfig,
  window: int | None,
  mask: jax.Array,  # [B, M] bool
  q: jax.Array,  # [B, L, C, R, K]
  k: jax.Array,  # [B, C, K, M]
  v: jax.Array,  # [B, C, M, K]
  *,
  interpret: bool = False,
) -> jax.Array:  # [B, L, C, R, K]
  """Causal attention by the splash kernel.

  The queries are scaled before the product, and so are rounded to their dtype
  once more than in `plain`. Padding is a segment of its own: its queries see
  padding, at least themselves, and stay finite.

  Args:
    config: The transformer's config; its sizes, scale and soft-cap are used.
    window: Tokens that a query sees, itself included; None for all before it.
    mask: True on tokens, which must follow each other without gaps, because
      the kernel counts slots and not tokens.
    q, k, v: As `Attention.project` returns them.
    interpret: Run the kernel's program on any backend, slowly.
  """
  num_rows, length, num_kv_heads, queries, width = q.shape
  num_heads = num_kv_heads * queries
  before = mask.shape[1] - length  # Slots without a query.
  padded = _round_up(length)
  # Each query has its own slot among the keys, padding included.
  padded_keys = _round_up(before + padded)
  block_q, block_kv = (
    next(size for size in (512, 256, 128) if slots % size == 0)
    for slots in (padded, padded_keys)
  )
  wide = q.astype(jnp.float32) * scale(config)
  heads = wide.astype(q.dtype).reshape(num_rows, length, num_heads, width)
  q_k_v = (  # [B, heads, padded or padded_keys, K]
    jnp.pad(x, ((0, 0), (0, 0), (0, slots - x.shape[2]), (0, 0)))
    for x, slots in (
      (jnp.swapaxes(heads, 1, 2), padded),
      (jnp.swapaxes(k, -2, -1), padded_keys),
      (v, padded_keys),
    )
  )
  of_keys = jnp.pad(mask, ((0, 0), (0, padded_keys - mask.shape[1])))
  # Other platforms need not import Pallas.
  from jax.experimental.pallas.ops.tpu import splash_attention

  segments = splash_attention.SegmentIds(
    *(
      x.astype(jnp.int32)
      for x in (of_keys[:, before : before + padded], of_keys)
    )
  )
  visible = of_distance((padded, padded_keys), window, before)
  kernel = splash_attention.make_splash_mha(
    splash_attention.MultiHeadMask([visible] * num_heads),
    block_sizes=splash_attention.BlockSizes(
      block_q=block_q,
      block_kv=block_kv,
      block_q_dkv=block_q,
      block_kv_dkv=block_kv,
      block_q_dq=block_q,
      block_kv_dq=block_kv,
    ),
    attn_logits_soft_cap=config.attention_softcap,
    head_shards=1,
    q_seq_shards=1,
    interpret=interpret,
  )
  attended = jax.vmap(kernel)(*q_k_v, segments)  # [B, H, padded, K]
  attended = jnp.swapaxes(attended[:, :, :length], 1, 2)
  return attended.reshape(*q.shape[:-1], -1)


def cudnn(
  config: TransformerConfig,
  window: int | None,
  mask: jax.Array,  # [B, L] bool
  q: jax.Array,  # [B, L, C, R, K]
  k: jax.Array,  # [B, C, K, L]
  v: jax.Array,  # [B, C, L, K]
  *,
  implementation: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:  # [B, L, C, R, K]
  """Causal attention by cuDNN's fused kernel; the arguments are `splash`'s.

  The kernel supports padding only on the right, as a length for each row. So
  the rows are rotated until their tokens come first, and rotated back after.
  The alternative is a mask [B, 1, L, L], which is added to the scores as a
  bias: it takes memory, has a gradient that is not needed, and skips no block.

  Args:
    config, window, mask, q, k, v: As in `splash`.
    implementation: Implementation of `jax.nn.dot_product_attention`; "xla" for
      its plain form.
  """
  num_rows, length, num_kv_heads, queries, width = q.shape
  # In JAX 0.10 the gradient does not support odd lengths.
  even = length + length % 2
  start = jnp.argmax(mask, axis=1)[:, None]  # [B, 1]
  # An empty row sees one slot: softmax over nothing is NaN.
  lengths = jnp.maximum(mask.sum(axis=1, dtype=jnp.int32), 1)  # [B]
  present = mask[:, :, None, None]

  def rotated(x, shift):  # [B, even, heads, K]
    slots = (jnp.arange(even) + shift) % even  # [B, even]
    # Unique: else the gradient adds up entries one by one, as they may meet.
    return x.at[jnp.arange(num_rows)[:, None], slots].get(
      unique_indices=True, mode="promise_in_bounds"
    )

  def tokens_first(x):  # [B, L, heads, K] -> [B, even, heads, K]
    # The kernel does not promise its values or gradients at padding. They are
    # set to 0; this line is for the gradients.
    x = jnp.where(present, x, 0)
    x = jnp.pad(x, ((0, 0), (0, even - length), (0, 0), (0, 0)))
    return rotated(x, start)

  attended = jax.nn.dot_product_attention(
    tokens_first(q.reshape(num_rows, length, num_kv_heads * queries, width)),
    tokens_first(jnp.moveaxis(k, -1, 1)),
    tokens_first(jnp.moveaxis(v, 2, 1)),
    scale=scale(config),
    is_causal=True,
    query_seq_lengths=lengths,
    key_value_seq_lengths=lengths,
    local_window_size=None if window is None else (window - 1, 0),
    implementation=implementation,
  )
  attended = rotated(attended, -start)[:, :length]
  return jnp.where(present, attended, 0).reshape(q.shape)


def _splash_lacks(config) -> str:
  """A need of the splash kernel that is not met, in words; "" if all are."""
  if mesh.platform() not in ("tpu", "cpu"):
    return f"a TPU (or a CPU, to be interpreted), and not a {mesh.platform()}"
  if config.dtype == "float64":
    return "dtype 'bfloat16' or 'float32', and not 'float64'"
  if config.attention_sinks or config.chunk:
    # Chunks begin at other slots in each row.
    return "attention_sinks False, and no chunks of positions"
  if config.indexer is not None:
    return "a model without an indexer"
  return ""


def _cudnn_lacks(config) -> str:
  # A program compiled ahead of time has no GPU to ask; 8.0 is the least needed.
  capability = getattr(jax.devices()[0], "compute_capability", "8.0")
  # AMD's capabilities are names, such as "gfx942".
  number = float(capability) if capability[:1].isdigit() else 0.0
  if mesh.platform() != "gpu" or number < 8:
    return "an NVIDIA GPU of compute capability 8.0 or more"
  if config.dtype != "bfloat16":
    return f"dtype 'bfloat16', and not {config.dtype!r}"
  if config.attention_softcap is not None:
    return f"no attention_softcap, which is {config.attention_softcap}"
  if config.attention_sinks or config.latent_width or config.chunk:
    return "attention_sinks False, latent_width 0, and no chunks of positions"
  widest = 256 if number >= 9 else 128
  widths = {config.head_width}
  if config.gemma4 is not None:
    widths.add(config.gemma4.full_head_dim)
  if any(width % 8 for width in widths) or max(widths) > widest:
    return (
      f"heads that are a multiple of 8 and at most {widest} wide, and not"
      f" {', '.join(map(str, sorted(widths)))}"
    )
  return ""


def form(config: TransformerConfig) -> str:
  """Names the form of attention in whole sequences: plain, splash or cudnn.

  "auto" is splash on TPUs and cuDNN on GPUs, if the kernel can run; else plain.

  Raises:
    ValueError: `config.attention` asks for a kernel that cannot run here.
  """
  lacks = {"splash": _splash_lacks, "cudnn": _cudnn_lacks}
  if config.attention == "auto":
    kernel = {"tpu": "splash", "gpu": "cudnn"}.get(mesh.platform())
    return kernel if kernel and not lacks[kernel](config) else "plain"
  if config.attention in lacks and (need := lacks[config.attention](config)):
    raise ValueError(
      f"model: attention is {config.attention!r}, which needs {need}; change"
      " that, or use 'auto' or 'plain'."
    )
  return config.attention


def continues(config: TransformerConfig) -> bool:
  """Returns True if keys may come before the first query (`num_before`)."""
  return form(config) != "cudnn"


def over_sequences(
  config: TransformerConfig,
  mask: jax.Array,  # [B, M] bool
  positions: jax.Array,  # [B, M]
  num_before: int = 0,
) -> Callable[[jax.Array], Attend]:
  """The attention function of each layer for whole sequences, or their ends.

  Within `jax.set_mesh(mesh)` each device runs a kernel on its own rows along
  `ROW_AXES`, and on its own key/value heads and their queries along `tensor`.
  If rows or heads do not divide evenly, each device runs it on all of them.

  Args:
    config: The transformer's config.
    mask: True on tokens, which follow each other without gaps.
    positions: Number of tokens before each token.
    num_before: M − L, the number of slots at the start that have only keys.

  Returns:
    A function of a layer's `slides`, [] bool, which returns the attention of
    the layer. The attention takes queries [B, L, C, R, K], keys [B, C, K, M]
    and values [B, C, M, K], and returns [B, L, C, R, K], finite on padding.

  Raises:
    ValueError: As in `form`.
  """
  name = form(config)
  if name == "plain":
    num_slots = mask.shape[1]
    causal = jnp.tril(jnp.ones((num_slots, num_slots), bool))[num_before:]
    visible = causal & mask[:, None, :]  # [B, L, M]
    near, far = views(
      config, visible, positions[:, num_before:, None], positions
    )

    def of_layer(slides):
      view = near if near is far else jnp.where(slides, near, far)
      return functools.partial(plain, config, mask=view)

    return of_layer

  kernel: Callable = cudnn
  if name == "splash":
    kernel = functools.partial(splash, interpret=mesh.platform() == "cpu")
  kinds = {config.slides(layer) for layer in range(config.num_layers)}

  def local(slides, mask, q, k, v):
    near = functools.partial(kernel, config, config.sliding_window)
    far = functools.partial(kernel, config, None)
    if len(kinds) == 1:
      return (near if True in kinds else far)(mask, q, k, v)
    return lax.cond(slides, near, far, mask, q, k, v)

  if mesh.size() > 1:
    rows = mesh.split(mask.shape[0], *ROW_AXES)
    heads = mesh.split(config.num_kv_heads, "tensor")
    # check_vma: the splash kernel does not say over which mesh axes its results
    # vary.
    local = jax.shard_map(
      local,
      in_specs=(
        P(),
        P(rows),
        P(rows, None, heads),
        P(rows, heads),
        P(rows, heads),
      ),
      out_specs=P(rows, None, heads),
      check_vma=False,
    )
  return lambda slides: functools.partial(local, slides, mask)

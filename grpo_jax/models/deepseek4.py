"""DeepSeek-V4: attention to near tokens and to compressed windows of all.

A token has one vector v_s of width K for all H query heads, which is its key
and its value. Positions turn the last channels of queries and of these vectors,
and turn back those of the result, which so depends on distances alone. A query
sees the v_s of the last tokens, and compressed windows of m tokens:

    e_w = R_{w m} norm( Σ_s softmax_s(z_s + b_{s − w m}) ⊙ c_s ),
                                                     w m ≤ s < (w + 1) m,

with vectors c_s, z_s of each token, the same b for all windows, and R_p the
turn by position p. Each channel has a softmax of its own. A query at position t
sees the windows that are complete, (w + 1) m ≤ t + 1. There are three kinds of
layers:

- "sliding": no windows, and unscaled positions with another base;
- "heavy": long windows (128 tokens), all of which are seen;
- "sparse": short windows (4 tokens). A token has two pairs of c and z, and a
  window sums the first pair over the window before and the second over its own.
  An indexer with windows of its own chooses the `top_k` that a query sees; its
  scores are those of `indexer.py`.

All scores share one softmax, with a score of each head that belongs to no key.
The results of each of G groups of heads are projected to d channels, and these
G · d channels to the residual stream, which is `hyper.py`'s.

In the first layers a table, and not the router, chooses the experts of each
token id; the router weighs them.

The cache has v, c and z of every token, and each step makes all windows anew.
That is the definition. It saves neither memory nor products, though windows are
fewer than tokens. The choice of an indexer has no gradient, and nothing else
trains indexers.

Source: DeepSeek-AI, "DeepSeek-V4", 2026, Sections 2.1 to 2.3; the equations are
those of `transformers` 5.24 (models/deepseek_v4). Deviation: windows there
count the padding on the left of a row, and here tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.models import attention, blocks, hyper, indexer
from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.models.blocks import RMSNorm
from grpo_jax.ops import masked
from grpo_jax.types import PyTree


class Places(NamedTuple):
  """Slots and positions of L queries of a row and of its M tokens.

  Attributes:
    near: True on the slots of the tokens that a query sees one by one.
    order: Slots of the tokens 0, 1, …; arbitrary where there are fewer.
    position: Number of tokens before each query.
  """

  near: jax.Array  # [B, L, M] bool
  order: jax.Array  # [B, M] int32
  position: jax.Array  # [B, L] int32


def places(
  config: TransformerConfig,
  mask: jax.Array,  # [B, M] bool
  visible: jax.Array,  # [B, L, M] bool
  of_query: jax.Array,  # [B, L]
  of_key: jax.Array,  # [B, M]
) -> Places:
  """The places of queries and tokens.

  Args:
    config: The transformer's config.
    mask: True on slots that hold a token.
    visible: True on slots that a query may see without a window.
    of_query, of_key: Positions.
  """
  near, _ = attention.views(config, visible, of_query[..., None], of_key)
  last = jnp.iinfo(jnp.int32).max
  return Places(near, jnp.argsort(jnp.where(mask, of_key, last)), of_query)


def over_sequences(
  config: TransformerConfig,
  mask: jax.Array,  # [B, M] bool
  positions: jax.Array,  # [B, M]
  num_before: int = 0,
) -> Callable:
  """A function (v, features) -> vectors and places of whole sequences.

  Args:
    config: The transformer's config.
    mask: True on tokens.
    positions: Number of tokens before each token.
    num_before: M − L, the number of slots at the start without queries.

  Raises:
    ValueError: As in `attention.form`.
  """
  attention.form(config)  # There is no other than "plain".
  num_slots = mask.shape[1]
  causal = jnp.tril(jnp.ones((num_slots, num_slots), bool))[num_before:]
  of_query = positions[:, num_before:]
  where = places(config, mask, causal & mask[:, None], of_query, positions)
  return lambda v, features: (v, features, where, (v, features))


def cached(
  prefix: tuple[PyTree, PyTree],  # [P, 1, K, S], and [P, 1, S, F] or None
  write: Callable[[jax.Array, jax.Array | None], tuple[PyTree, PyTree]],
  where: Places,
  v: jax.Array,  # [B, 1, K, L]
  features: jax.Array | None,  # [B, 1, L, F]
) -> tuple:
  """Vectors and places in a decode step: all v, features, places, cache.

  Args:
    prefix: Vectors of the prompts, each for B / P adjacent rows.
    write: (v, features) -> the cache of completions with them.
    where: Places among the slots of prompt and completion.
    v, features: Vectors of the tokens.
  """
  own = write(v, features)

  def joined(of_prompts, of_rows, axis):
    share = len(of_rows) // len(of_prompts)
    parts = jnp.repeat(of_prompts, share, axis=0), of_rows
    return jnp.concatenate(parts, axis).astype(v.dtype)

  all_features = None
  if features is not None:
    all_features = joined(prefix[1], own[1], axis=-2)
  return joined(prefix[0], own[0], axis=-1), all_features, where, own


def turned(
  x: jax.Array,  # [..., K]
  rope: tuple[jax.Array, ...],  # 2 · [..., turned / 2]
  *,
  back: bool = False,
) -> jax.Array:  # [..., K]
  """Turns neighbouring pairs of the last channels, in their places."""
  cos, sin = rope
  half = cos.shape[-1]
  plain, pairs = jnp.split(x, [x.shape[-1] - 2 * half], axis=-1)
  pairs = masked.wide(pairs).reshape(*pairs.shape[:-1], half, 2)
  first, second = pairs[..., 0], pairs[..., 1]
  sin = -sin if back else sin
  y = jnp.stack(
    (first * cos - second * sin, second * cos + first * sin), axis=-1
  ).reshape(*plain.shape[:-1], 2 * half)
  return jnp.concatenate([plain, y.astype(x.dtype)], axis=-1)


def in_windows(
  c: jax.Array,  # [B, M, K], or [B, M, 2 K]
  z: jax.Array,  # of the same shape
  bias: jax.Array,  # [m, K], or [m, 2 K]
  width: int,
) -> jax.Array:  # [B, ⌊M / m⌋, K]
  """Σ_s softmax_s(z_s + b) ⊙ c_s of each whole window of m tokens.

  Args:
    c, z: Vectors of the tokens in their order. With 2 K channels the first K
      count for the window after that of the token, the others for its own.
    bias: b of each place in a window.
    width: K.
  """
  size = len(bias)
  shape = len(c), c.shape[1] // size, size, c.shape[-1]
  c, z = (x[:, : shape[1] * size].reshape(shape) for x in (c, z))
  z = masked.wide(z) + masked.wide(bias)
  if shape[-1] != width:
    # The first window has none before it: its share of the sum is 0.
    before = (0, 0), (1, 0), (0, 0), (0, 0)
    c, z = (
      jnp.concatenate(
        [
          jnp.pad(x[..., :width], before, constant_values=none)[:, :-1],
          x[..., width:],
        ],
        axis=2,
      )
      for x, none in ((c, 0), (z, -jnp.inf))
    )
  return (c * nn.softmax(z, axis=2).astype(c.dtype)).sum(axis=2)


class Compressor(nn.Module):
  """Makes vectors c and z of tokens, and compressed windows of these."""

  config: TransformerConfig
  width: int  # K
  size: int  # m
  overlaps: bool

  def setup(self):
    config, total = self.config, self.width * (1 + self.overlaps)
    dense = blocks.without_bias(config)
    self.values, self.gates = dense(total), dense(total)
    self.place_bias = self.param(
      "place_bias",
      nn.initializers.zeros,
      (self.size, total),
      config.param_dtype,
    )
    self.norm = RMSNorm(config)

  def features(self, x):  # [B, L, D] -> [B, L, 2 K] or [B, L, 4 K]
    """Vectors c and z of tokens."""
    both = blocks.on_rows(self.values, x), blocks.on_rows(self.gates, x)
    return jnp.concatenate(both, axis=-1)

  def __call__(self, features):  # [B, M, 2 K] or [B, M, 4 K]
    """Compressed windows [B, ⌊M / m⌋, K] of tokens in their order."""
    c, z = jnp.split(features, 2, axis=-1)
    x = self.norm(in_windows(c, z, self.place_bias, self.width))
    first = jnp.arange(x.shape[1])[None] * self.size
    return turned(x, blocks.rotary(self.config, first))


class WindowIndexer(nn.Module):
  """Chooses the windows that a query sees."""

  config: TransformerConfig

  def setup(self):
    config, sizes = self.config, self.config.deepseek4
    assert sizes is not None
    index = sizes.indexer
    self.compressor = Compressor(
      config, index.head_dim, sizes.sparse_window, overlaps=True
    )
    dense = functools.partial(
      nn.DenseGeneral, use_bias=False, param_dtype=config.param_dtype
    )
    heads = index.num_heads, index.head_dim
    self.query = dense(heads, dtype=config.dtype)
    # Near-ties decide what is seen, as in a router.
    self.head_weights = dense(
      index.num_heads,
      dtype=jnp.promote_types(config.dtype, jnp.float32),
      precision=lax.Precision.HIGHEST,
    )

  def project(self, x, latent, rope):  # [B, L, D], [B, L, N]
    """Queries [B, L, J, I] and weights [B, L, J] of the heads."""
    rope = tuple(z[:, :, None] for z in rope)
    sizes: Any = self.config.deepseek4
    index = sizes.indexer
    scale = (index.num_heads * index.head_dim) ** -0.5
    return turned(self.query(latent), rope), self.head_weights(x) * scale

  def __call__(self, queries, weights, features, complete):
    """The mask [B, L, W] of the chosen windows among those complete."""
    keys = self.compressor(features)[:, None]
    vectors = indexer.IndexVectors(queries, weights, keys)
    scores = lax.stop_gradient(indexer.scores(vectors, keys))
    sizes: Any = self.config.deepseek4
    ids = indexer.choices(scores, complete, sizes.indexer.top_k)
    return indexer.marked(ids, complete.shape[-1]) & complete


class CompressedAttention(nn.Module):
  """Attention of a layer; see the module's docstring."""

  config: TransformerConfig
  kind: str

  def setup(self):
    config, sizes = self.config, self.config.deepseek4
    assert sizes is not None
    dense = blocks.without_bias(config, nn.DenseGeneral)
    self.query_down = dense(sizes.query_width)
    self.query_down_norm = RMSNorm(config)
    self.query_up = dense((config.num_heads, config.head_width))
    self.query_norm = RMSNorm(blocks.without_scale(config))
    self.kv_down = dense(config.head_width)
    self.kv_down_norm = RMSNorm(config)
    self.sinks = self.param(
      "sinks", nn.initializers.zeros, (1, config.num_heads), config.param_dtype
    )
    inputs = config.num_heads * config.head_width // sizes.num_groups
    self.out_down = self.param(
      "out_down",
      nn.initializers.lecun_normal(batch_axis=0),
      (sizes.num_groups, inputs, sizes.group_width),
      config.param_dtype,
    )
    # One vector of each group, in the place of a head's.
    self.out = dense(
      config.width,
      axis=(-3, -2, -1),
      kernel_init=blocks.residual_init(config),
    )
    if self.kind != "sliding":
      is_sparse = self.kind == "sparse"
      size = sizes.sparse_window if is_sparse else sizes.heavy_window
      self.compressor = Compressor(config, config.head_width, size, is_sparse)
    if self.kind == "sparse":
      self.indexer = WindowIndexer(config)

  def project(self, x, rope):  # [B, L, D]
    """Queries [B, L, H, K], v [B, 1, K, L], features [B, 1, L, F], indexer's.

    The features are those of the compressors, or None without any.
    """
    latent = self.query_down_norm(blocks.on_rows(self.query_down, x))
    q = self.query_norm(blocks.on_rows(self.query_up, latent))
    q = turned(q, tuple(z[:, :, None] for z in rope))
    v = turned(self.kv_down_norm(blocks.on_rows(self.kv_down, x)), rope)
    features: Any = None
    chooses: Any = None
    if self.kind != "sliding":
      features = self.compressor.features(x)
    if self.kind == "sparse":
      of_index = self.indexer.compressor.features(x)
      features = jnp.concatenate([features, of_index], axis=-1)
      chooses = self.indexer.project(x, latent, rope)
    features = None if features is None else features[:, None]
    return q, jnp.swapaxes(v, 1, 2)[:, None], features, chooses

  def attend(self, q, rope, chooses, v, features, where):
    """The output [B, L, D] for v and features of all M slots."""
    config = self.config
    sizes: Any = config.deepseek4
    visible = where.near
    if features is not None:
      in_order = jnp.take_along_axis(
        features[:, 0], where.order[..., None], axis=1
      )
      width = 2 * config.head_width * (1 + (self.kind == "sparse"))
      own, of_index = jnp.split(in_order, [width], axis=-1)
      windows = self.compressor(own)  # [B, W, K]
      complete = (where.position + 1) // self.compressor.size
      complete = jnp.arange(windows.shape[1]) < complete[..., None]
      if self.kind == "sparse":
        choose: Any = self.indexer
        complete = choose(*chooses, of_index, complete)
      v = jnp.concatenate([v, jnp.swapaxes(windows, 1, 2)[:, None]], axis=-1)
      visible = jnp.concatenate([visible, complete], axis=-1)
    values = jnp.swapaxes(v, 2, 3)
    y = attention.plain(config, q[:, :, None], v, values, visible, self.sinks)
    y = turned(y[:, :, 0], tuple(z[:, :, None] for z in rope), back=True)
    y = y.reshape(*y.shape[:2], sizes.num_groups, -1)
    kernel = jnp.asarray(self.out_down, config.dtype)
    y = jnp.einsum("blgi,gid->blgd", y, kernel)
    return blocks.on_rows(self.out, y[:, :, :, None], num_axes=3)


class Deepseek4Block(nn.Module):
  """One layer, for whole sequences or for tokens that continue a cache.

  `kind` is the kind of the layer's attention.
  """

  config: TransformerConfig
  kind: str

  def setup(self):
    config = self.config
    self.attention = CompressedAttention(config, self.kind)
    self.mlp = blocks.MoE(config)
    self.attention_norm = RMSNorm(config)
    self.mlp_norm = RMSNorm(config)
    self.attention_streams = hyper.HyperConnection(config)
    self.mlp_streams = hyper.HyperConnection(config)

  def __call__(self, streams, rope, see, router, before=None):
    """Runs the block on whole sequences, or on the ends of sequences.

    Args:
      streams: The streams [B, L, n, D].
      rope: Cosines and sines of the layer's positions.
      see: A function as `over_sequences` or `cached` returns it.
      router: Inputs of the router.
      before: v and features of the tokens that the rows continue, or None.

    Returns:
      The streams, v and features of the tokens, the routing, and None, as
      `blocks.Block` returns them.
    """

    def with_prefix(v, features):
      pair: Any = v, features
      if before is not None:
        pair = tuple(
          None if new is None else jnp.concatenate([old, new], axis)
          for old, new, axis in zip(before, pair, (-1, -2), strict=True)
        )
      return (*see(*pair)[:3], (v, features))

    return self._run(streams, rope, with_prefix, router)

  def decode(self, streams, rope, see, router):
    """Runs the block on tokens that `see` also writes to the cache."""
    return self._run(streams, rope, see, router)

  def _run(self, streams, rope, see, router):
    a, c, b = self.attention_streams(streams)
    x = self.attention_norm(hyper.summed(a, streams))
    q, v, features, chooses = self.attention.project(x, rope)
    v, features, where, cache = see(v, features)
    y = self.attention.attend(q, rope, chooses, v, features, where)
    streams = hyper.added(streams, y, c, b)
    a, c, b = self.mlp_streams(streams)
    x = self.mlp_norm(hyper.summed(a, streams))
    y, routed = blocks.mixed(self.mlp, x, router)
    streams = hyper.added(streams, y, c, b)
    return streams, cache, routed, None


def width_of_features(config: TransformerConfig, kind: str) -> int:
  """Channels of the features of a token in a layer of a kind."""
  sizes: Any = config.deepseek4
  return {
    "sliding": 0,
    "heavy": 2 * config.head_width,
    "sparse": 4 * (config.head_width + sizes.indexer.head_dim),
  }[kind]


def joined(
  config: TransformerConfig,
  params: PyTree,
  streams: jax.Array,  # [..., n, D]
) -> jax.Array:  # [..., D]
  """The sum of the streams behind the last layer."""
  module: Any = hyper.HyperConnection(config, only_sum=True)
  return hyper.summed(module.apply({"params": params}, streams), streams)


def init(
  config: TransformerConfig,
  key: jax.Array,
  streams: jax.Array,  # [..., n, D]
) -> tuple[PyTree, PyTree]:
  """Parameters of `joined`; and the experts of each token id, if any."""
  sizes: Any = config.deepseek4
  module = hyper.HyperConnection(config, only_sum=True)
  params = module.init(key, streams)["params"]
  if not sizes.num_hash_layers:
    return params, {}
  ids = jnp.arange(config.vocab_size)[:, None] * config.experts_per_token
  ids = (ids + jnp.arange(config.experts_per_token)) % config.num_experts
  shape = sizes.num_hash_layers, *ids.shape
  table = jnp.broadcast_to(ids.astype(jnp.int32), shape)
  return params, {"router_table": table}

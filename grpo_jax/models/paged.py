"""Attention of a decode step over pages, by JAX's ragged paged attention.

A page holds keys and values of 32 tokens of all heads. A row reads the pages
that its table lists: first the full pages of its prompt, which it shares with
the other rows of the group; then its own pages, the first of which begins with
the prompt's last tokens, which did not fill a page. For a prompt of 70 tokens
with two rows:

    slots of the prompt     [  0 .. 31  ][ 32 .. 63  ][64..69|          ]
    row 0 reads             page 0       page 1       own page: 64..69, then
    row 1 reads             page 0       page 1       own page  its completion

The cache of a layer is [P, n + G · m, 32, 2 · C, K']: a prompt has n pages and
each of its G rows has m. If decoding has lanes that take new rows, each lane is
a prompt of its own (G = 1), as for `attention.cached`. Keys and values of a
head are adjacent, and K' is K rounded up to whole lanes of 128 channels.

Differences to `attention.cached`:

- The kernel reads only slots that hold a row's tokens. It reads tokens before
  the window, and skips only their scores.
- Prompts are held once for their rows, as in `attention.cached`, and once more
  in the copy that `prefill` made. Each row holds up to 31 tokens of its prompt
  again, and half of its last page is empty on average. Heads narrower than 128
  take as much memory as heads of 128.
- Pages that rows share are read once for each row, and not once for all.
- There is no int8 cache: the kernel has one scale for all tokens.

No run on a TPU has shown which is faster. The kernel was compiled for TPU v5e,
and interpreted on a CPU by tests, which have to patch the interpreter of JAX
0.10. So the paged form runs on TPUs only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from grpo_jax.models import attention, mesh
from grpo_jax.models.architecture import Prefix, TransformerConfig
from grpo_jax.types import ROW_AXES

PAGE = 32  # Tokens.
_LANES = 128
# Block sizes are set here, and not tuned. Without them the kernel would look up
# sizes for the device of this process, which need not be that of the mesh.
_PAGES_AT_ONCE = 16
_ROWS_AT_ONCE = 8


def check(config: TransformerConfig) -> None:
  """Raises ValueError if the kernel cannot run the model here."""
  lacks = ""
  num_heads = 2 * config.num_kv_heads
  if mesh.split(config.num_kv_heads, "tensor"):
    num_heads //= jax.sharding.get_abstract_mesh().shape["tensor"]
  words = num_heads * _dtype(config).itemsize // 4  # Words of a channel.
  if mesh.platform() != "tpu":
    lacks = f"a TPU, and not a {mesh.platform()}"
  elif config.dtype == "float64":
    lacks = "dtype 'bfloat16' or 'float32', and not 'float64'"
  elif config.cache_dtype == "int8":
    lacks = "cache_dtype 'model' or 'bfloat16', and not 'int8'"
  elif config.latent_width or config.attention_sinks or config.chunk:
    lacks = "latent_width 0, attention_sinks False, and no chunks of positions"
  elif config.gemma4 is not None:
    lacks = "layers whose keys have one shape, and not Gemma 4's"
  elif words not in (1, 2, 4) and words % 8:
    lacks = (
      "1, 2, 4 or a multiple of 8 words of keys and values for each channel on"
      f" a device, and not {words} (2 · num_kv_heads · bytes / 4)"
    )
  if lacks:
    raise ValueError(
      f"model: decode_attention is 'paged', which needs {lacks}; change that,"
      " or use 'plain'."
    )


def _dtype(config):
  model = config.cache_dtype == "model"
  return jnp.dtype(config.dtype if model else config.cache_dtype)


def _round_up(size: int, unit: int) -> int:
  return -(-size // unit) * unit


def pages_of(
  config: TransformerConfig,
  mask: jax.Array,  # [P, S] bool
  k: jax.Array,  # [P, C, K, S]
  v: jax.Array,  # [P, C, S, K]
) -> jax.Array:  # [P, n, PAGE, 2 · C, K']
  """Pages of left-padded prompts; in the pages, tokens come first.

  Raises:
    ValueError: As in `check`.
  """
  check(config)
  num_prompts, num_heads, width, num_slots = k.shape
  # [P, S, C, 2, K]
  kv = jnp.stack(
    [jnp.transpose(k, (0, 3, 1, 2)), jnp.swapaxes(v, 1, 2)], axis=3
  ).astype(_dtype(config))
  slots = jnp.arange(num_slots) - mask.sum(axis=1, keepdims=True)
  kv = jnp.take_along_axis(
    kv, (slots % num_slots)[:, :, None, None, None], axis=1
  )
  missing = [(0, 0)] * kv.ndim
  missing[1] = 0, -num_slots % PAGE
  missing[-1] = 0, -width % _LANES
  return jnp.pad(kv, missing).reshape(
    num_prompts, -1, PAGE, 2 * num_heads, _round_up(width, _LANES)
  )


def _num_own(num_slots: int) -> int:
  """Number of pages of a row: completion slots after an incomplete page."""
  return _round_up(PAGE - 1 + num_slots, PAGE) // PAGE


def allocate(num_rows: int, num_slots: int, prefix: Prefix) -> Any:
  """The caches of the layers; `Policy.allocate` has the contract."""

  def of_layer(pages):
    num_own = num_rows // pages.shape[0] * _num_own(num_slots)
    return jnp.pad(pages, ((0, 0), (0, num_own), *[(0, 0)] * 3))

  return admit(prefix, tuple(map(of_layer, prefix.layers)), num_rows)


def admit(prefix: Prefix, cache: Any, num_rows: int) -> Any:
  """Implements `Policy.admit`; completion tokens in the cache stay."""
  length = prefix.mask.sum(axis=1)[:, None, None, None, None]  # [P, 1, ...]

  def of_layer(pages, cache):
    num_pages = pages.shape[1]
    group = num_rows // pages.shape[0]
    cache = lax.dynamic_update_slice_in_dim(cache, pages, 0, axis=1)
    # If all pages are full, any page will do: then no token of it is copied.
    place = jnp.minimum(length // PAGE, num_pages - 1)
    last = jnp.take_along_axis(pages, place, axis=1)  # [P, 1, PAGE, ...]
    of_prompt = jnp.arange(PAGE)[:, None, None] < length % PAGE
    first = jnp.where(of_prompt, last, cache[:, num_pages : num_pages + group])
    return lax.dynamic_update_slice_in_dim(cache, first, num_pages, axis=1)

  return tuple(map(of_layer, prefix.layers, cache))


def attend(
  config: TransformerConfig,
  length: jax.Array,  # [P] int32
  t: jax.Array,  # [B] int32
  num_pages: int,
  window: int | None,
  q: jax.Array,  # [B, 1, C, R, K]
  k: jax.Array,  # [B, C, K, 1]
  v: jax.Array,  # [B, C, 1, K]
  cache: jax.Array,  # [P, n + B / P · m, PAGE, 2 · C, K']
) -> tuple[jax.Array, jax.Array]:
  """Writes a token to the cache, then attends to all tokens up to it.

  Within `jax.set_mesh(mesh)` each device has the rows of its prompts along
  `ROW_AXES` and its heads along `tensor`; all rows or heads if they do not
  divide evenly. Rows are split only if the number of prompts divides.

  Args:
    config: The transformer's config; its scale and soft-cap are used.
    length: Number of tokens of each prompt.
    t: Position of the token in its completion. Tokens before the first slot
      or behind the last slot are not written, and the results of their rows are
      arbitrary but finite.
    num_pages: n, the number of pages of each prompt.
    window: Tokens that a query sees, itself included; None for all.
    q, k, v: As `Attention.project` returns them.
    cache: The cache of this layer.

  Returns:
    The result of attention, [B, 1, C, R, K], and the cache.
  """
  width = q.shape[-1]
  scale = attention.scale(config)

  def local(length, t, q, k, v, cache):
    num_rows, _, num_heads, queries, _ = q.shape
    num_prompts, room, *_ = cache.shape
    group = num_rows // num_prompts
    num_own = (room - num_pages) // group
    prompt, member = jnp.divmod(jnp.arange(num_rows), group)
    length = length[prompt]
    first = prompt * room  # The prompt's first page, in the pages of all.
    own = first + num_pages + member  # The row's own first page.
    full, rest = jnp.divmod(length, PAGE)

    page, place = jnp.divmod(rest + t, PAGE)
    exists = (t >= 0) & (page < num_own)
    page = jnp.where(exists, own + page * group, num_prompts * room)
    new = jnp.stack([k[..., 0], v[:, :, 0]], axis=2)  # [B, C, 2, K]
    pages = cache.reshape(-1, *cache.shape[2:])
    new = new.reshape(num_rows, 2 * num_heads, width)
    channels = ((0, 0), (0, 0), (0, cache.shape[-1] - width))
    pages = pages.at[page, place].set(
      jnp.pad(new.astype(pages.dtype), channels), mode="drop"
    )

    entries = jnp.arange(num_pages + num_own)
    of_row = jnp.clip(entries - full[:, None], 0, num_own - 1)
    table = jnp.where(
      entries < full[:, None],
      first[:, None] + entries,
      own[:, None] + of_row * group,
    )  # [B, n + m]
    lengths = jnp.clip(length + t + 1, 1, (full + num_own) * PAGE)
    # Other platforms need not import Pallas.
    from jax.experimental.pallas.ops.tpu import ragged_paged_attention

    attended = ragged_paged_attention.ragged_paged_attention(
      jnp.pad(q.reshape(num_rows, num_heads * queries, width), channels),
      pages,
      lengths.astype(jnp.int32),
      table.astype(jnp.int32),
      jnp.arange(num_rows + 1, dtype=jnp.int32),
      jnp.array([num_rows], jnp.int32),
      sm_scale=scale,
      sliding_window=window,
      soft_cap=config.attention_softcap,
      num_kv_pages_per_block=min(_PAGES_AT_ONCE, len(entries)),
      num_queries_per_block=min(_ROWS_AT_ONCE, num_rows),
    )
    return attended[..., :width].reshape(q.shape), pages.reshape(cache.shape)

  if mesh.size() > 1:
    local = _over_devices(local, cache.shape[0], config.num_kv_heads)
  return local(length, t, q, k, v, cache)


def _over_devices(local: Callable, num_prompts: int, num_heads: int):
  """Splits `local` of `attend` over devices by prompts and by heads."""
  rows = mesh.split(num_prompts, *ROW_AXES)
  heads = mesh.split(num_heads, "tensor")
  of_cache = P(rows, None, None, heads)
  return jax.shard_map(
    local,
    in_specs=(
      P(rows),
      P(rows),
      P(rows, None, heads),
      P(rows, heads),
      P(rows, heads),
      of_cache,
    ),
    out_specs=(P(rows, None, heads), of_cache),
    # The kernel does not say over which axes its results vary.
    check_vma=False,
  )

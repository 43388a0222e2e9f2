"""The gated delta rule: attention with one state instead of keys and values.

A head has a matrix S [K, V], which says a value for every key. Each token lets
it fade, and corrects what it says of the token's key:

    S_t = α_t S_{t−1} + k_t (β_t (v_t − α_t S_{t−1}ᵀ k_t))ᵀ,
    o_t = S_tᵀ q_t,

where α_t and β_t are in (0, 1), keys have length 1, and queries 1 / √K. A
decode step computes this as it stands (`step`), with the same work for every
token. Whole sequences are cut into chunks of C tokens (`chunked`). In a chunk
that begins with S, let g_i be the product of α_1, …, α_i; then the rows d_i of
D [C, V] that its tokens write solve a triangular system:

    (I + A) D = diag(β) V − diag(β g) K S,    A_ij = β_i (g_i / g_j) k_i · k_j
                                              for j < i, else 0,

    o_i = g_i Sᵀ q_i + Σ_{j ≤ i} (g_i / g_j) (q_i · k_j) d_j,
    S'  = g_C S + Σ_j (g_C / g_j) k_j d_jᵀ.

(I + A)⁻¹ does not depend on S. So it is made for all chunks at once, and only
products with S follow each other. The backward pass is that of these products.

Queries, keys and values come from a convolution over the last W tokens. A mask
says which slots hold a token; the others change neither S nor the convolution.

`B` rows, `L` slots, `N` chunks of `C` slots; `G` heads of queries and keys of
width `K`, each for `R` neighbouring heads of values of width `V`.

Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule",
arXiv:2412.06464, Eq. 10 and Section 3.3; Yang et al., "Parallelizing Linear
Transformers with the Delta Rule over Sequence Length", arXiv:2406.06484,
Section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.models.architecture import DeltaConfig
from grpo_jax.ops import masked

_CHUNK = 64  # Most slots of a chunk, as in both papers' code; a power of 2.
_PIECE = 8192  # Most slots for which the backward pass holds all products.

# The system's solution and S are sums of differences: with the products that a
# TPU makes by default, of bfloat16, rows of one chunk and single steps differ.
_EXACT = lax.Precision.HIGHEST


class State(NamedTuple):
  """The state of a layer after some tokens.

  Attributes:
    memory: S of each head of values, at least float32.
    recent: Inputs of the convolution at the last W − 1 tokens, the newest last;
      0 before the first token.
  """

  memory: jax.Array  # [B, G · R, K, V]
  recent: jax.Array  # [B, G, M, W − 1]


def empty(config: DeltaConfig, num_rows: int, dtype: Any) -> State:
  """The state before the first token of each row; `dtype` of the inputs."""
  groups, wide = config.num_key_heads, jnp.promote_types(dtype, jnp.float32)
  heads = config.num_value_heads, config.key_width, config.value_width
  recent = groups, config.channels, config.num_taps - 1
  return State(
    jnp.zeros((num_rows, *heads), wide), jnp.zeros((num_rows, *recent), dtype)
  )


def log_decay(
  log_rate: jax.Array,  # [G, R]
  bias: jax.Array,  # [G, R]
  x: jax.Array,  # [..., G, R]
) -> jax.Array:  # [..., G, R]
  """ln α = −exp(log_rate) · softplus(x + bias), at least float32."""
  log_rate, bias, x = masked.wide((log_rate, bias, x))
  return -jnp.exp(log_rate) * jax.nn.softplus(x + bias)


def unit(x: jax.Array) -> jax.Array:  # [..., K]
  """x / |x|, at least float32; a short vector keeps a shorter length."""
  x = masked.wide(x)
  return x * lax.rsqrt(jnp.square(x).sum(axis=-1, keepdims=True) + 1e-6)


def convolved(
  kernel: jax.Array,  # [G, M, W]
  x: jax.Array,  # [B, L, G, M]
  mask: jax.Array,  # [B, L] bool
  recent: jax.Array,  # [B, G, M, W − 1]
) -> tuple[jax.Array, jax.Array]:  # [B, L, G, M], [B, G, M, W − 1]
  """Σ_w kernel_w x_{t − W + 1 + w} of each channel, at least float32.

  Args:
    kernel: W weights of each channel, that of the newest token last.
    x: Channels of tokens, which follow each other without gaps.
    mask: True on slots that hold a token.
    recent: The last channels before x.

  Returns:
    The sums, and the last channels after x.
  """
  length, num_taps = x.shape[1], kernel.shape[-1]
  x = jnp.where(mask[:, :, None, None], x, 0)
  x = jnp.concatenate([jnp.moveaxis(recent, -1, 1).astype(x.dtype), x], axis=1)
  wide, kernel = masked.wide(x), masked.wide(kernel)
  y = sum(
    kernel[..., tap] * wide[:, tap : tap + length] for tap in range(num_taps)
  )
  end = jnp.where(mask, jnp.arange(1, length + 1), 0).max(axis=1)  # [B]
  last = end[:, None] + jnp.arange(num_taps - 1)  # [B, W − 1]
  last = jnp.take_along_axis(x, last[:, :, None, None], axis=1)
  return y, jnp.moveaxis(last, 1, -1)


def in_pieces(
  run: Callable[..., tuple[State, jax.Array]], before: State, *arrays: jax.Array
) -> tuple[State, jax.Array]:
  """Runs a layer on L slots from piece to piece, if there are many.

  The backward pass runs each piece again. Otherwise it would hold the systems
  of all chunks, and what goes into them in float32: 15 GiB for a row of 32 768
  slots in a layer of Qwen3.5-0.8B.

  Args:
    run: (state, pieces of the arrays) -> the state after them, and outputs
      [B, L, …].
    before: The state before the first slot.
    *arrays: Inputs [B, L, …]. Slots that are added at the end are 0.
  """
  num_rows, length = arrays[0].shape[:2]
  if length <= _PIECE:
    return run(before, *arrays)
  missing = -length % _PIECE

  def cut(x):  # [B, L, …] -> [N, B, L / N, …]
    x = jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2))
    return jnp.moveaxis(x.reshape(num_rows, -1, _PIECE, *x.shape[2:]), 1, 0)

  @jax.checkpoint
  def piece(state, inputs):
    return run(state, *inputs)

  after, y = lax.scan(piece, before, tuple(map(cut, arrays)))
  y = jnp.moveaxis(y, 0, 1).reshape(num_rows, -1, *y.shape[3:])
  return after, y[:, :length]


def step(
  q: jax.Array,  # [B, G, K]
  k: jax.Array,  # [B, G, K]
  v: jax.Array,  # [B, G, R, V]
  log_decay: jax.Array,  # [B, G, R]
  beta: jax.Array,  # [B, G, R]
  memory: jax.Array,  # [B, G · R, K, V]
) -> tuple[jax.Array, jax.Array]:  # [B, G, R, V], [B, G · R, K, V]
  """Outputs of one token of each row, and S after it."""
  before = memory.reshape(*v.shape[:3], *memory.shape[2:])
  before = jnp.exp(log_decay)[..., None, None] * before  # [B, G, R, K, V]
  # One product for both, because S is the largest array of a decode step.
  recall, read = jnp.moveaxis(
    jnp.einsum(
      "bgik,bgrkv->bgriv", jnp.stack([k, q], 2), before, precision=_EXACT
    ),
    3,
    0,
  )
  update = beta[..., None] * (v - recall)
  after = before + k[:, :, None, :, None] * update[..., None, :]
  overlap = (q * k).sum(axis=-1)[..., None, None]
  return read + overlap * update, after.reshape(memory.shape)


def chunked(
  q: jax.Array,  # [B, L, G, K]
  k: jax.Array,  # [B, L, G, K]
  v: jax.Array,  # [B, L, G, R, V]
  log_decay: jax.Array,  # [B, L, G, R]
  beta: jax.Array,  # [B, L, G, R]
  memory: jax.Array,  # [B, G · R, K, V]
) -> tuple[jax.Array, jax.Array]:  # [B, L, G, R, V], [B, G · R, K, V]
  """Outputs of L tokens of each row, and S after them.

  A slot with `log_decay` and `beta` 0 leaves S as it is.
  """
  num_rows, length = q.shape[:2]
  size = min(_CHUNK, 1 << (length - 1).bit_length())
  missing = -length % size

  def cut(x, axis):  # [B, L, …] -> [N, B, …], and C at the axis.
    x = jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2))
    x = x.reshape(num_rows, -1, size, *x.shape[2:])
    return jnp.moveaxis(jnp.moveaxis(x, 1, 0), 2, axis)

  q, k = (cut(x, -2)[:, :, :, None] for x in (q, k))  # [N, B, G, 1, C, K]
  v = cut(v, -2)  # [N, B, G, R, C, V]
  beta = cut(beta, -1)[..., None]  # [N, B, G, R, C, 1]
  log_decay = cut(log_decay, -1)  # [N, B, G, R, C]
  since = jnp.cumsum(log_decay, axis=-1)[..., None]  # ln g
  system = _product(beta * k, _transposed(k)) * _ratios(log_decay)
  inverse = _inverse(jnp.where(jnp.tri(size, k=-1, dtype=bool), system, 0))
  of_values = _product(inverse, beta * v)  # D = this − that · S.
  of_memory = _product(inverse, beta * jnp.exp(since) * k)

  # Recomputed in the backward pass, which else keeps all products of a chunk.
  @jax.checkpoint
  def chunk(memory, inputs):  # [B, G, R, K, V]
    q, k, log_decay, since, of_values, of_memory = inputs
    both = jnp.concatenate([of_memory, jnp.exp(since) * q], axis=-2)
    recall, read = jnp.split(_product(both, memory), 2, axis=-2)
    update, ratios = of_values - recall, _ratios(log_decay)
    y = read + _product(_product(q, _transposed(k)) * ratios, update)
    keys = ratios[..., -1, :, None] * k
    memory = jnp.exp(since[..., -1:, :]) * memory
    return memory + _product(_transposed(keys), update), y

  after, y = lax.scan(
    chunk,
    memory.reshape(*v.shape[1:4], *memory.shape[2:]),
    (q, k, log_decay, since, of_values, of_memory),
  )
  y = jnp.moveaxis(jnp.moveaxis(y, -2, 2), 0, 1)  # [B, N, C, G, R, V]
  y = y.reshape(num_rows, -1, *y.shape[3:])[:, :length]
  return y, after.reshape(memory.shape)


def _product(x, y):
  return jnp.matmul(x, y, precision=_EXACT)


def _transposed(x):
  return jnp.swapaxes(x, -2, -1)


def _ratios(log_decay):  # [..., C] -> [..., C, C]
  """g_i / g_j for j ≤ i, else 0.

  The logarithm is the sum of those of α_{j+1}, …, α_i. The difference of two
  sums from the start of the chunk would have the error of the larger ones: a
  single α of e^−300 would cost later ratios two digits.
  """
  size = log_decay.shape[-1]
  lower = jnp.tri(size, dtype=log_decay.dtype)
  before = jnp.tri(size, k=-1, dtype=bool)
  between = jnp.where(before, log_decay[..., :, None], 0)
  return lower * jnp.exp(_product(lower, between))


def _inverse(lower):  # [..., C, C], 0 on and above the diagonal
  """(I + lower)⁻¹, from the inverses of blocks of 1, 2, 4, … on the diagonal.

  Two neighbouring blocks X, Y with B below the first one have the inverse
  [[X⁻¹, 0], [−Y⁻¹ B X⁻¹, Y⁻¹]]. The powers of −lower would add up to the same,
  but cancel: with equal keys they are as large as binomial coefficients.
  """
  size = lower.shape[-1]
  place = jnp.arange(size)
  inverse = jnp.broadcast_to(jnp.eye(size, dtype=lower.dtype), lower.shape)
  for width in (1 << i for i in range((size - 1).bit_length())):
    block = place // width
    is_below = (block % 2 == 1)[:, None] & (block[:, None] == block + 1)
    below = jnp.where(is_below, lower, 0)
    inverse = inverse - _product(_product(inverse, below), inverse)
  return inverse


def gated_norm(
  x: jax.Array,  # [..., V]
  gate: jax.Array,  # [..., V]
  scale: jax.Array,  # [V]
  eps: float,
) -> jax.Array:  # [..., V]
  """x / sqrt(mean(x²) + ε) · scale · silu(gate), at least float32."""
  x, gate, scale = masked.wide((x, gate, scale))
  mean_square = jnp.square(x).mean(axis=-1, keepdims=True)
  return x * lax.rsqrt(mean_square + eps) * scale * jax.nn.silu(gate)

"""JAX's default random bits, as one expression that XLA can fuse.

Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, 2011, Parallel
random numbers: as easy as 1, 2, 3). On a CPU JAX compiles the rounds as a loop.
Its many small operations take longer than the rounds if few numbers are drawn
at a time: a decode step draws one for each row and token of the vocabulary.
Noise and the choice of a token take, in ms a step on two cores:

| rows × vocabulary | JAX's loop | unrolled |
|-------------------|------------|----------|
| 64 × 32           | 0.040      | 0.018    |
| 64 × 1,024        | 0.58       | 0.26     |
| 16 × 151,936      | 19         | 8.2      |

On other platforms JAX has no loop, and `drawing.noise` uses JAX.
"""

from __future__ import annotations

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def _hashed(key, x, y):  # [2], [...], [...], each uint32 -> two of [...]
  words = *key, key[0] ^ key[1] ^ np.uint32(0x1BD11BDA)
  x, y = x + words[0], y + words[1]
  for i in range(5):
    for rotation in _ROTATIONS[i % 2]:
      x = x + y
      y = (y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))
      y = x ^ y
    x = x + words[(i + 1) % 3]
    y = y + words[(i + 2) % 3] + np.uint32(i + 1)
  return x, y


def _bits(key, width, shape):
  if width != 32:
    raise ValueError(f"threefry: {width} bits; only 32 at a time are made.")
  size = int(np.prod(shape, dtype=np.int64))
  if size > np.iinfo(np.uint32).max:
    raise ValueError(f"threefry: {size} numbers of one key; too many.")
  counts = lax.iota(np.uint32, size).reshape(shape)
  x, y = _hashed(key, jnp.zeros_like(counts), counts)
  return x ^ y


def _fold_in(key, data):
  return jnp.stack(_hashed(key, jnp.uint32(0), data.astype(jnp.uint32)))


_JAX = jax.extend.random.threefry_prng_impl
_UNROLLED = jax.extend.random.define_prng_impl(
  key_shape=(2,),
  seed=_JAX.seed,
  split=_JAX.split,
  random_bits=_bits,
  fold_in=_fold_in,
  name="threefry2x32 without a loop",
  tag="fry",
)


def unrolled(keys: jax.Array) -> jax.Array:  # [...] keys -> [...] keys
  """Keys with which `jax.random` draws the same 32-bit numbers, but faster.

  They are for use within a function. Keys of another generator than JAX's
  default are returned unchanged.
  """
  if jax.random.key_impl(keys) != "threefry2x32":
    return keys
  return jax.random.wrap_key_data(jax.random.key_data(keys), impl=_UNROLLED)

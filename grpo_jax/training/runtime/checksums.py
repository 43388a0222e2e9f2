"""Checksums of arrays that say nothing of where their parts were.

Every element is hashed with its position, and the hashes are added:

    c_k(x) = Σ_i mix( bits(x_i) XOR mix(i + s_k) )  mod 2³²,  k = 1, 2

The sum is exact in any order, so an array has the same checksum on every mesh
and with any number of processes; it is computed where the array is, and only
the sum leaves the devices. `mix` is a bijection: a change of one element always
changes the sum, whichever bits it flips, and any other change is missed with a
chance of 2⁻⁶⁴.

Source of `mix`: Appleby, MurmurHash3, `fmix32`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from grpo_jax.types import PyTree

_SALTS = (0x9E3779B9, 0x7F4A7C15)
_SMALL = 1 << 20  # Elements that a CPU hashes faster than it compiles.
_TINY = 1 << 12  # Elements that NumPy hashes faster than a block is hashed.
_BLOCK = 1 << 16  # Words.


def of_leaves(tree: PyTree) -> dict[str, str]:
  """Path of each array -> 16 hexadecimal digits.

  With several processes every one makes the call, and has the whole answer.

  Args:
    tree: Arrays of numbers; typed keys as their data.
  """
  sums = {
    jax.tree_util.keystr(path, simple=True, separator="/"): _sums(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }
  return {
    name: "".join(f"{int(part):08x}" for part in parts)
    for name, parts in jax.device_get(sums).items()
  }


def _sums(x: Any) -> Any:  # [2] uint32
  if (
    jax.default_backend() != "cpu" or jax.process_count() > 1 or x.size > _SMALL
  ):
    return _on_devices(x)
  # NumPy reads the same memory here, and nothing is compiled for each shape.
  x = np.atleast_1d(np.asarray(x))
  width = min(x.dtype.itemsize, 4)
  words = np.ascontiguousarray(x).view(f"uint{8 * width}")
  if words.size <= _TINY:
    return _added(words, x.shape, np)
  return _by_blocks(words.reshape(-1))


def _by_blocks(words: np.ndarray) -> np.ndarray:  # [any] -> [2] uint32
  """The sums, by one program for all sizes."""
  sums = np.zeros(len(_SALTS), np.uint32)
  block = np.zeros(_BLOCK, np.uint32)
  for start in range(0, words.size, _BLOCK):
    part = words[start : start + _BLOCK]
    block[: part.size] = part
    sums += np.asarray(
      _of_block(block, np.uint32(start % 2**32), np.uint32(part.size))
    )
  return sums


@jax.jit
def _of_block(block: Any, start: Any, size: Any) -> jax.Array:  # [2] uint32
  place = jnp.arange(_BLOCK, dtype=jnp.uint32)
  mixed = tuple(
    jnp.where(place < size, x, 0) for x in _mixed(block, place + start, jnp)
  )
  return _reduced(mixed)


@jax.jit
def _on_devices(x: Any) -> jax.Array:  # [2] uint32
  x = jnp.atleast_1d(x)
  if x.dtype == jnp.bool_:
    x = x.astype(jnp.uint8)
  width = min(x.dtype.itemsize, 4)
  words = lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * width}"))
  return _added(words, x.shape, jnp)


def _added(words: Any, shape: tuple[int, ...], xp: Any) -> Any:  # [2] uint32
  """The sums, by NumPy or jax.numpy.

  Args:
    words: Bits of the elements. Of those with 8 bytes there are two words.
    shape: The shape of the array.
    xp: The module.
  """
  shape = (*shape, words.size // max(math.prod(shape), 1))
  words = words.reshape(shape).astype(xp.uint32)
  position = xp.zeros((1,) * len(shape), xp.uint32)
  for axis, size in enumerate(shape):
    along = xp.arange(size, dtype=xp.uint32)
    along = along.reshape(-1, *(1,) * (len(shape) - axis - 1))
    position = position * xp.uint32(size % 2**32) + along
  mixed = _mixed(words, position, xp)
  if xp is np:
    return np.stack([np.sum(x, dtype=np.uint32) for x in mixed])
  return _reduced(mixed)


def _mixed(words: Any, position: Any, xp: Any) -> tuple[Any, ...]:
  return tuple(
    _mix(words ^ _mix(position + xp.uint32(salt), xp), xp) for salt in _SALTS
  )


def _reduced(mixed: tuple[jax.Array, ...]) -> jax.Array:  # [2] uint32
  """The sums, in one reduction.

  A CPU computes it with its vector units. Two that are stacked take six times
  as long there.
  """
  zeros = (jnp.uint32(0),) * len(mixed)
  axes = tuple(range(mixed[0].ndim))
  return jnp.stack(lax.reduce(mixed, zeros, _sum, axes))


def _sum(x: tuple[Any, ...], y: tuple[Any, ...]) -> tuple[Any, ...]:
  return tuple(a + b for a, b in zip(x, y, strict=True))


def _mix(x: Any, xp: Any) -> Any:
  """A bijection of 32 bits in which every bit depends on all."""
  x = (x ^ (x >> xp.uint32(16))) * xp.uint32(0x85EBCA6B)
  x = (x ^ (x >> xp.uint32(13))) * xp.uint32(0xC2B2AE35)
  return x ^ (x >> xp.uint32(16))

"""Orders of records that are computed one entry at a time.

An order of n records is a permutation of 0 … n − 1. An array of ten million
entries would take 80 MB and a second; `permuted` computes single entries.
"""

from __future__ import annotations

import functools

import numpy as np

_ROUNDS = 6
_ODD = 0x9E3779B97F4A7C15  # 2⁶⁴ / golden ratio, as in SplitMix64.
_MASK = 2**64 - 1


def permuted(index: int, size: int, key: tuple[int, ...]) -> int:
  """Applies a pseudo-random permutation of 0 … size − 1 to an index.

  A Feistel network permutes 0 … 4ᵏ − 1 for the least k with 4ᵏ ≥ size. A result
  outside the range goes through the network again, until it is inside: less
  than four times on average.

  Args:
    index: Index in [0, size).
    size: Size of the range, at least 1.
    key: Non-negative numbers; each key has a permutation of its own.

  Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002,
  Sections 3 (cycle walking) and 5.
  """
  if not 0 <= index < size:
    raise IndexError(f"permuted: index {index} is outside [0, {size}).")
  half = max(((size - 1).bit_length() + 1) // 2, 1)  # Bits.
  low = 2**half - 1
  keys = _round_keys(key)
  while True:
    left, right = index >> half, index & low
    for round_key in keys:
      left, right = right, left ^ (_mixed(right ^ round_key) & low)
    index = left << half | right
    if index < size:
      return index


@functools.lru_cache(maxsize=64)
def _round_keys(key: tuple[int, ...]) -> tuple[int, ...]:
  state = np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64)
  return tuple(int(x) for x in state)


def _mixed(x: int) -> int:
  """The finalizer of SplitMix64: every bit depends on every other."""
  x = (x + _ODD) & _MASK
  x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
  x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
  return x ^ x >> 31


class PartedOrder:
  """The order of a source that is read one part after another.

  Attributes:
    size: Number of records.
  """

  def __init__(self, size: int, starts: tuple[int, ...], seed: int):
    """Describes endless epochs.

    Args:
      size: Number of records, at least 1.
      starts: First records of the parts: 0, and then ascending below `size`.
      seed: Non-negative; each epoch and part has an order of its own.

    Raises:
      ValueError: The starts are not such numbers.
    """
    ends = (*starts[1:], size)
    if starts[0] != 0 or any(a >= b for a, b in zip(starts, ends, strict=True)):
      raise ValueError(
        f"PartedOrder: starts is {starts} for {size} records; needs 0 and"
        " then ascending numbers below the size."
      )
    self.size = size
    self._parts = tuple(zip(starts, ends, strict=True))
    self._seed = seed

  def __call__(self, position: int, attempt: int = 0) -> int:
    """The record at a position of the stream, or a replacement of it.

    Args:
      position: Position from 0 on, over all epochs.
      attempt: 0 for the record; each number from 1 on gives another record of
        the same part.
    """
    epoch, index = divmod(position, self.size)
    part = sum(start <= index for start, _ in self._parts) - 1
    start, end = self._parts[part]
    key = (self._seed, epoch, part, attempt)
    return start + permuted(index - start, end - start, key)

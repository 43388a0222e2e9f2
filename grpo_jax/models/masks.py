"""Masks for JAX's splash kernel that take no time for long sequences.

Which blocks the kernel visits is found out block by block when it is traced,
and JAX's masks then compute a bool for each pair of tokens: with 131 072 of
them some minutes for each mask. What a causal mask or a window shows depends
on the distance of two tokens alone, so that all blocks of one distance are
equal, and almost all of them are all True or all False.
"""

from __future__ import annotations

from typing import Any


def of_distance(shape: tuple[int, int], window: int | None, before: int) -> Any:
  """A mask of the splash kernel by which tokens see those before them.

  Args:
    shape: Queries and keys.
    window: Tokens that a query sees, itself included; None for all before it.
    before: Keys before the one of the first query.
  """
  # Other platforms need not import Pallas.
  from jax.experimental.pallas.ops.tpu import splash_attention

  if window is None:
    return _quick(splash_attention.CausalMask)(shape, before)
  return _quick(splash_attention.LocalMask)(shape, (window - 1, 0), before)


_CLASSES: dict[type, type] = {}


def _quick(of: type) -> type:
  """A subclass that computes the blocks of each distance once.

  One class for each, since equal masks are of equal classes.
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
            # One array for all of a kind: memory.
            kind = ("all", bool(block.flat[0]), *key[1:])
            block = blocks.setdefault(kind, block)
          blocks[key] = block
        return blocks[key]

    _CLASSES[of] = Quick
  return _CLASSES[of]

"""Experts in four bits (MXFP4), the format of gpt-oss.

Files have two tensors of bytes instead of a tensor [E, in, out]: `NAME_blocks`
[E, out, in / 32, 16] and `NAME_scales` [E, out, in / 32]. A byte of a block has
two values of a group of 32 neighbouring inputs, the lower four bits first. The
four bits are a sign, two bits of an exponent and one of a fraction (E2M1); a
scale s is the factor 2^(s − 127) of its group (E8M0). Their product is exact in
bfloat16 if it is not too large, so reading loses nothing.

Source: Rouhani et al., "OCP Microscaling Formats (MX) Specification", version
1.0, Sections 5.3.3, 5.4.1 and 6.3.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from grpo_jax.models.hf.safetensors import LazyTensor, Tensor

_BLOCKS, _SCALES = "_blocks", "_scales"
_GROUP = 32  # Inputs with a common scale.
_POSITIVE = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_VALUES = np.concatenate([_POSITIVE, -_POSITIVE])  # By four bits; −0.0 at 8.
# Both values of a byte, the lower four bits first. Two floats are stored as one
# complex number, so that they are looked up at once.
_PAIRS = np.stack([np.tile(_VALUES, 16), np.repeat(_VALUES, 16)], axis=-1)
_PAIRS = _PAIRS.view(np.complex64)[:, 0]  # [256]
_FACTORS = np.ldexp(
  np.float32(1), np.arange(-127, 128, dtype=np.int32)
)  # [255]
_NO_NUMBER = 255  # A scale that is NaN.


@dataclasses.dataclass(frozen=True)
class Packed(LazyTensor):
  """A tensor [E, in, out] in four bits; `stored` has its blocks.

  Attributes:
    scales: The tensor of its scales.
    name: Name of the tensor.
    dtype: Dtype of the values that are read, by its name in files.
  """

  scales: Tensor
  name: str
  dtype: str = "BF16"

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape [E, in, out] of the tensor."""
    experts, outer, groups, _ = self.stored.shape
    return experts, groups * _GROUP, outer

  def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
    """A block in bfloat16; `index` has a slice for each axis.

    Raises:
      ValueError: A scale is not a number.
    """
    experts, inner, outer = index
    inner = slice(*inner.indices(self.shape[1]))
    groups = slice(inner.start // _GROUP, -(-inner.stop // _GROUP))
    first = groups.start * _GROUP
    blocks, scales = _bytes(self.stored), _bytes(self.scales)
    numbers = range(*experts.indices(self.shape[0]))
    sizes = [
      len(range(*part.indices(size)))
      for part, size in zip(index, self.shape, strict=True)
    ]
    out = np.empty(sizes, jnp.bfloat16)
    # One expert at a time, because intermediate arrays are float32.
    for place, expert in enumerate(numbers):
      scale = scales[expert, outer, groups]
      if (scale == _NO_NUMBER).any():
        raise ValueError(
          f"{self.name}{_SCALES} in {self.scales.path} has a scale of 255"
          f" (expert {expert}), which is not a number. Copy the file again."
        )
      pairs = _PAIRS.take(blocks[expert, outer, groups])  # [out, groups, 16]
      values = pairs.view(np.float32)  # [out, groups, 32]
      values *= _FACTORS[scale][..., None]
      # bfloat16 is the upper half of a float32; the lower half is 0 here.
      bits = (values.view(np.uint32) >> 16).astype(np.uint16)
      block = bits.reshape(len(bits), -1)[
        :, inner.start - first : inner.stop - first : inner.step
      ]
      out[place] = block.view(jnp.bfloat16).T
    return out


def _bytes(tensor: Tensor) -> np.ndarray:
  return np.memmap(tensor.path, np.uint8, "r", tensor.offset, tensor.shape)


def unpacked(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
  """Tensors of the files, with a `Packed` for each pair of blocks and scales.

  Raises:
    ValueError: Blocks without scales, or shapes that do not fit each other.
  """
  by_name: dict[str, Any] = dict(tensors)
  for name, blocks in tensors.items():
    base = name.removesuffix(_BLOCKS)
    if base == name:
      continue
    scales = tensors.get(base + _SCALES)
    if scales is None:
      raise ValueError(
        f"{name} in {blocks.path} has no {base + _SCALES} beside it; the"
        " checkpoint is incomplete. Copy all files again."
      )
    _check(base, blocks, scales)
    del by_name[name], by_name[base + _SCALES]
    by_name[base] = Packed(blocks, scales, base)
  return by_name


def _check(name: str, blocks: Tensor, scales: Tensor) -> None:
  """Raises unless blocks and scales are bytes of the same groups."""
  is_fit = (
    len(blocks.shape) == 4
    and blocks.shape[-1] == _GROUP // 2
    and scales.shape == blocks.shape[:-1]
  )
  are_bytes = all(
    x.dtype == "U8" and x.num_bytes == math.prod(x.shape)
    for x in (blocks, scales)
  )
  if not (is_fit and are_bytes):
    raise ValueError(
      f"{name}{_BLOCKS} in {blocks.path} is {blocks.dtype}"
      f" {list(blocks.shape)}, and {name}{_SCALES} {scales.dtype}"
      f" {list(scales.shape)}; needs bytes (U8) of the shapes [E, out, in"
      f" / {_GROUP}, {_GROUP // 2}] and [E, out, in / {_GROUP}]."
    )

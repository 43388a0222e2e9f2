"""Matrices in eight bits (FP8): DeepSeek-V3 and V4, Qwen3-FP8 and others.

Files have a matrix `NAME` [out, in] of `float8_e4m3fn`, and beside it
`NAME_scale_inv` [⌈out / 128⌉, ⌈in / 128⌉] with a factor for each block of 128 ×
128 entries; the last blocks may be smaller. Despite its name, the factor is
multiplied with. Beside `NAME.weight` DeepSeek-V4 has `NAME.scale`, with powers
of two in eight bits.

Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", Section 3.3.2, and
`weight_dequant` of inference/kernel.py beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from grpo_jax.models.hf.safetensors import (
  DTYPES,
  POWERS_OF_TWO,
  LazyTensor,
  Tensor,
)

BLOCK = 128  # Rows and columns with a common factor.
_MATRIX, _SCALES = "F8_E4M3", "_scale_inv"


@dataclasses.dataclass(frozen=True)
class Matrix(LazyTensor):
  """A matrix [out, in] in eight bits; `stored` has its entries.

  Attributes:
    scales: The tensor of its blocks' factors.
    name: Name of the matrix.
    dtype: Dtype of the values that are read, by its name in files.
  """

  scales: Tensor
  name: str
  dtype: str = "F32"

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape [out, in] of the matrix."""
    return self.stored.shape

  def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
    """A part in float32; `index` has a slice, without a step, for each axis.

    Raises:
      ValueError: An entry or a factor is not a finite number.
    """
    codes = np.memmap(
      self.path, jnp.float8_e4m3fn, "r", self.stored.offset, self.shape
    )
    scales = self.scales.map().astype(np.float32)
    rows, columns = (
      np.arange(*part.indices(size))
      for part, size in zip(index, self.shape, strict=True)
    )
    out = codes[index].astype(np.float32)
    # One row of blocks at a time: factors for all entries would be an array of
    # the size of the result.
    with np.errstate(invalid="ignore"):  # Reported below.
      for block in np.unique(rows // BLOCK):
        out[rows // BLOCK == block] *= scales[block, columns // BLOCK]
    if not np.isfinite(out).all():
      raise ValueError(
        f"{self.name} in {self.path} has entries or factors that are not finite"
        " numbers. Copy the file again."
      )
    return out


def unpacked(tensors: Mapping[str, Any]) -> dict[str, Any]:
  """Tensors of the files, with a `Matrix` for each matrix and its factors.

  Raises:
    ValueError: A matrix without factors, or factors of another shape.
  """
  by_name = dict(tensors)
  for name, codes in tensors.items():
    if codes.dtype != _MATRIX:
      continue
    scales = by_name.pop(name + _SCALES, None)
    if scales is None and name.endswith(".weight"):
      scales = by_name.pop(name.removesuffix("weight") + "scale", None)
    if scales is None:
      raise ValueError(
        f"{name} in {codes.path} is {_MATRIX} and has no {name + _SCALES}"
        f" beside it. Needed is a factor for each {BLOCK} x {BLOCK} entries, as"
        " in the files of DeepSeek-V3; if these have factors too, the"
        " checkpoint is incomplete. Copy all files again."
      )
    shape = tuple(-(-size // BLOCK) for size in codes.shape)
    if (
      len(codes.shape) != 2
      or scales.shape != shape
      or scales.dtype not in {**DTYPES, **POWERS_OF_TWO}
    ):
      raise ValueError(
        f"{name} in {codes.path} is {list(codes.shape)}, and {name + _SCALES}"
        f" {scales.dtype} {list(scales.shape)}; FP8 needs a matrix, and"
        f" factors {list(shape)} of {', '.join(DTYPES)}."
      )
    by_name[name] = Matrix(codes, scales, name)
  return by_name

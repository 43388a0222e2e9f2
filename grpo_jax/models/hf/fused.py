"""Tensors of a checkpoint that are several of ours, as `Family.fused` says.

Reading shows the parts in the place of the whole, and copies nothing; writing
joins them again.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from grpo_jax.models.hf.family import Fused
from grpo_jax.models.hf.tensor_files import DTYPES, Output, Tensor


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of a stored tensor, in the place of one.

  Attributes:
    whole: The stored one.
    shape: Of the part.
    axis: Along which it is a part.
    start, step: Where it begins on that axis, and how far its entries are
      apart.
  """

  whole: Any
  shape: tuple[int, ...]
  axis: int
  start: int
  step: int

  @property
  def path(self) -> pathlib.Path:
    """File of the whole."""
    return self.whole.path

  @property
  def dtype(self) -> str:
    """The file's name for it."""
    return self.whole.dtype

  def map(self) -> Part:
    """What is sliced as an array is."""
    return self

  def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
    """A block of the part; `index` has a slice for each axis."""
    part = index[self.axis]
    start = self.start + part.start * self.step
    # Not beyond the last one: the next entry may be of another part.
    stop = start + (part.stop - part.start - 1) * self.step + 1
    of_whole = list(index)
    of_whole[self.axis] = slice(start, stop, self.step)
    return self.whole.map()[tuple(of_whole)]


def split(
  tensors: Mapping[str, Tensor],
  shapes: Mapping[str, tuple[int, ...]],
  table: tuple[Fused, ...],
) -> dict[str, Any]:
  """Tensors with parts in the place of those that are fused.

  Args:
    tensors: What the files have.
    shapes: Of all tensors that a model needs, parts and not wholes.
    table: What is fused.

  Raises:
    ValueError: A fused tensor has another shape than its parts have together.
  """
  found: dict[str, Any] = dict(tensors)
  for name, tensor in tensors.items():
    for fused in table:
      start = name.removesuffix(fused.whole)
      parts = [start + part for part in fused.parts]
      if start == name or not all(part in shapes for part in parts):
        continue
      needed = _whole_shape([shapes[part] for part in parts], fused)
      if tensor.shape != needed:
        raise ValueError(
          f"load: {name} in {tensor.path} is {list(tensor.shape)}, but the"
          f" sizes in config.json make it {list(needed)}."
        )
      del found[name]
      axis = len(needed) - 1 if fused.interleaved else 0
      begin = 0
      for number, part in enumerate(parts):
        shape = shapes[part]
        place = (number, len(parts)) if fused.interleaved else (begin, 1)
        found[part] = Part(tensor, shape, axis, *place)
        begin += shape[0]
  return found


def _whole_shape(
  shapes: list[tuple[int, ...]], fused: Fused
) -> tuple[int, ...]:
  if fused.interleaved:
    return *shapes[0][:-1], sum(shape[-1] for shape in shapes)
  return sum(shape[0] for shape in shapes), *shapes[0][1:]


def whole_names(names: list[str], table: tuple[Fused, ...]) -> list[str]:
  """Names as files have them, each once."""

  def whole(name):
    for fused in table:
      for part in fused.parts:
        if name.endswith(part):
          return name.removesuffix(part) + fused.whole
    return name

  return list(dict.fromkeys(map(whole, names)))


def joined(
  outputs: Iterable[Output], table: tuple[Fused, ...]
) -> Iterator[Output]:
  """Outputs with a whole in the place of its parts."""
  waiting: dict[str, dict[str, Output]] = {}
  for output in outputs:
    (whole,) = whole_names([output.name], table)
    if whole == output.name:
      yield output
      continue
    (fused,) = (x for x in table if whole.endswith(x.whole))
    parts = waiting.setdefault(whole, {})
    parts[output.name] = output
    if len(parts) == len(fused.parts):
      start = whole.removesuffix(fused.whole)
      del waiting[whole]
      yield _join(whole, fused, [parts[start + name] for name in fused.parts])


def _join(name: str, fused: Fused, parts: list[Output]) -> Output:
  def data() -> np.ndarray:
    dtype = DTYPES[parts[0].dtype]
    arrays = [part.data().view(dtype).reshape(part.shape) for part in parts]
    if fused.interleaved:
      whole = np.stack(arrays, axis=-1)
    else:
      whole = np.concatenate(arrays)
    return whole.reshape(-1).view(np.uint8)

  shape = _whole_shape([part.shape for part in parts], fused)
  num_bytes = math.prod(shape) * DTYPES[parts[0].dtype].itemsize
  return Output(name, parts[0].dtype, shape, num_bytes, data)

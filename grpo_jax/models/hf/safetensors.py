"""Tensors in the safetensors files of a checkpoint, one file or several.

Reading maps a file into memory and reads only the parts that are needed;
writing makes the bytes of one tensor at a time.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

DTYPES = {
  "F64": np.dtype(np.float64),
  "F32": np.dtype(np.float32),
  "F16": np.dtype(np.float16),
  "BF16": np.dtype(jnp.bfloat16),
}
INTEGERS = {"I32": np.dtype(np.int32), "I64": np.dtype(np.int64)}
POWERS_OF_TWO = {"F8_E8M0": np.dtype(jnp.float8_e8m0fnu)}
_MAX_NAME = 255  # Most bytes of the name of a file on usual file systems.
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
GGUF = "model.gguf"  # Instead of both: a link to a file for `gguf.py`.
_MAX_HEADER = 10**8  # Bytes; the limit of the format's own library.


# --- Reading ---


@dataclasses.dataclass(frozen=True)
class Tensor:
  """Place, shape and dtype of a stored tensor; `dtype` is its name in files."""

  path: pathlib.Path
  dtype: str
  shape: tuple[int, ...]
  offset: int
  num_bytes: int

  def map(self) -> np.ndarray:
    """Maps the tensor into memory until nothing refers to the array."""
    dtype = {**DTYPES, **INTEGERS, **POWERS_OF_TWO}[self.dtype]
    return np.memmap(self.path, dtype, "r", self.offset, self.shape)


@dataclasses.dataclass(frozen=True)
class LazyTensor:
  """A tensor that is computed when it is sliced; used like a `Tensor`.

  Attributes:
    stored: The tensor of a file from which it is computed.
  """

  stored: Any

  @property
  def path(self) -> pathlib.Path:
    """The file."""
    return self.stored.path

  def map(self) -> Self:
    """Returns the tensor itself, which is sliced like an array."""
    return self


def read_object(path: pathlib.Path, shown: str = "") -> dict[str, Any]:
  """Reads a file that holds one JSON object.

  Args:
    path: Path of the file.
    shown: Its name in messages; empty: the path.

  Raises:
    ValueError: It holds something else.
  """
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    raise ValueError(
      f"{shown or path} is not JSON: {error}. Copy the file again."
    ) from error
  if not isinstance(content, dict):
    raise ValueError(
      f"{shown or path} holds no object of keys. Copy the file again."
    )
  return content


def find(directory: pathlib.Path) -> dict[str, Tensor]:
  """Reads the headers of a checkpoint; returns its tensors by name.

  Raises:
    FileNotFoundError: There are no weights, or a file that the index names is
      missing.
    ValueError: A file is truncated or not a safetensors file, or the index
      belongs to another checkpoint.
  """
  if (directory / _WEIGHTS).is_file():
    return read_header(directory / _WEIGHTS)
  index = directory / _INDEX
  if not index.is_file():
    raise FileNotFoundError(
      f"{directory} has neither {_WEIGHTS} nor {_INDEX}; needs weights in"
      " the safetensors format. transformers writes it:"
      " AutoModelForCausalLM.from_pretrained(…).save_pretrained(…)."
    )
  try:
    files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    names = sorted({*files.values()})
    for name in names:
      is_name = pathlib.PurePath(name).name == name and name.strip(".")
      if not is_name or "\0" in name or len(os.fsencode(name)) > _MAX_NAME:
        raise ValueError(f"{name!r:.80} is not the name of a file beside it")
  except (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
  ) as error:
    raise ValueError(
      f"{index} has no weight_map of tensors and files ({error!r}); copy it"
      " again."
    ) from error
  tensors: dict[str, Tensor] = {}
  for name in names:
    if not (directory / name).is_file():
      missing = [tensor for tensor, file in files.items() if file == name]
      raise FileNotFoundError(
        f"{index} names {name} for {few(missing)}, and there is no such file;"
        " the download is incomplete."
      )
    shard = read_header(directory / name)
    here = {tensor for tensor, file in files.items() if file == name}
    if wrong := sorted(shard.keys() ^ here):
      raise ValueError(
        f"{directory / name} and {index} disagree about {few(wrong)}; they are"
        " of different checkpoints. Copy all files again."
      )
    tensors |= shard
  return tensors


def read_header(path: pathlib.Path) -> dict[str, Tensor]:
  """Reads the header of a file; returns its tensors by name.

  Raises:
    ValueError: The file is truncated or not a safetensors file.
  """
  size = path.stat().st_size
  try:
    with path.open("rb") as file:
      start = file.read(8)
      if start == b"version ":
        raise ValueError("a pointer of git-lfs, which git lfs pull resolves")
      length = int.from_bytes(start, "little")
      if length > min(size - 8, _MAX_HEADER):
        raise ValueError(f"a header of {length} bytes in a file of {size}")
      header = _header(file.read(length))
    tensors = {}
    for name, entry in header.items():
      try:
        begin, end = entry["data_offsets"]
        if not all(type(n) is int for n in (begin, end, *entry["shape"])):
          raise ValueError
        tensors[name] = Tensor(
          path,
          entry["dtype"],
          tuple(entry["shape"]),
          8 + length + begin,
          end - begin,
        )
      except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"its entry of {name} is {entry!r:.80}") from error
    end = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda x: x[1].offset):
      if tensor.offset != end or tensor.num_bytes < 0:
        raise ValueError(f"{name} does not begin where the one before ends")
      end += tensor.num_bytes
      if end > size:
        raise ValueError(f"{name} ends at byte {end} of {size}: truncated")
      if tensor.dtype in DTYPES:
        count = math.prod(tensor.shape) * DTYPES[tensor.dtype].itemsize
        if tensor.num_bytes != count:
          raise ValueError(f"{name} has {tensor.num_bytes} bytes, not {count}")
    if end != size:
      raise ValueError(f"{size - end} bytes after the last tensor")
  except (ValueError, TypeError) as error:
    raise ValueError(
      f"{path} is damaged or not a safetensors file: {error}. Copy it again."
    ) from error
  return tensors


def _header(text: bytes) -> dict[str, Any]:
  try:
    header = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"its header is not JSON ({error})") from error
  if not isinstance(header, dict):
    raise ValueError("its header is not an object of tensors")
  header.pop("__metadata__", None)
  return header


def few(names: list[str]) -> str:
  """The first names, for a message."""
  more = f" and {len(names) - 3} more" if len(names) > 3 else ""
  return ", ".join(names[:3]) + more


def equal(first: Tensor, second: Tensor) -> bool:
  """Returns True if two tensors have the same bytes."""
  if (first.dtype, first.shape) != (second.dtype, second.shape):
    return False
  rows = max(1, 2**24 // first.shape[-1])
  return all(
    # As bytes, because NaN does not equal itself.
    first.map()[i : i + rows].tobytes() == second.map()[i : i + rows].tobytes()
    for i in range(0, first.shape[0], rows)
  )


# --- Writing ---


@dataclasses.dataclass(frozen=True)
class Output:
  """A tensor to write; `data` makes its bytes."""

  name: str
  dtype: str
  shape: tuple[int, ...]
  num_bytes: int
  data: Callable[[], np.ndarray]


def write(
  directory: pathlib.Path, outputs: list[Output], max_shard_bytes: int
) -> None:
  """Writes one file, or several with an index."""
  files: list[list[Output]] = [[]]
  used = 0
  for output in outputs:
    if files[-1] and used + output.num_bytes > max_shard_bytes:
      files.append([])
      used = 0
    files[-1].append(output)
    used += output.num_bytes
  if len(files) == 1:
    write_file(directory / _WEIGHTS, outputs)
    return
  weight_map: dict[str, str] = {}
  for i, of_file in enumerate(files, start=1):
    name = f"model-{i:05d}-of-{len(files):05d}.safetensors"
    write_file(directory / name, of_file)
    weight_map |= {output.name: name for output in of_file}
  total = sum(output.num_bytes for output in outputs)
  index = {"metadata": {"total_size": total}, "weight_map": weight_map}
  write_json(directory / _INDEX, index)


def write_file(path: pathlib.Path, outputs: list[Output]) -> None:
  """Writes one file."""
  # transformers rejects files without the format "pt".
  header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
  end = 0
  for output in outputs:
    header[output.name] = {
      "dtype": output.dtype,
      "shape": output.shape,
      "data_offsets": [end, end + output.num_bytes],
    }
    end += output.num_bytes
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)  # Data must begin at a multiple of 8.
  with path.open("wb") as file:
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for output in outputs:
      file.write(output.data().data)


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes JSON as `transformers` does."""
  path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

"""Spelling of meshes, and the meshes that a slice can have.

Reports and launchers have one spelling of a mesh, `fsdp:16,tensor:4`. Axes that
are not named have one device, except `data`, which takes the devices that are
left.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from grpo_jax.settings.config import RunConfig
from grpo_jax.settings.model import MeshConfig

# In the order in which meshes are written.
_AXES = ("data", "fsdp", "expert", "tensor")


def parse(axes: str | Sequence[str]) -> dict[str, int]:
  """Parses "fsdp:16,tensor:4", or its parts, into axis -> devices.

  Raises:
    ValueError: The axes are not written so.
  """
  parts = axes.split(",") if isinstance(axes, str) else axes
  if "auto" in parts:
    raise ValueError(
      "--mesh=auto: experiments.pods.report alone compares meshes. Run it with"
      " the same --config, --topology and --mesh=auto, and give the mesh that"
      " it names here."
    )
  sizes: dict[str, int] = {}
  for part in filter(None, parts):
    name, _, size = part.partition(":")
    if name not in _AXES or not size.isdigit() or not int(size):
      raise ValueError(
        f"--mesh={','.join(parts)}: {part!r} is no axis; needs NAME:SIZE,"
        f" with a name of {', '.join(_AXES)}, as fsdp:16,tensor:4."
      )
    if name in sizes:
      raise ValueError(
        f"--mesh={','.join(parts)}: {name} is there twice; leave one out."
      )
    sizes[name] = int(size)
  return sizes


def replaced(config: RunConfig, axes: str) -> RunConfig:
  """Returns the config with axes, "fsdp:16,tensor:4", instead of its own.

  Raises:
    ValueError: The axes are not written so.
  """
  if not axes:
    return config
  return dataclasses.replace(config, mesh=MeshConfig(**parse(axes)))


def spelled(sizes: Mapping[str, int | None]) -> str:
  """Spelling of a mesh; "data:1" for one device."""
  parts = [
    f"{name}:{sizes[name]}" for name in _AXES if (sizes.get(name) or 1) > 1
  ]
  return ",".join(parts) or "data:1"


def arguments(axes: str) -> list[str]:
  """Flags of experiments.train for the spelling of a mesh."""
  return [f"--config.mesh.{name}={n}" for name, n in parse(axes).items()]


def whole(mesh: MeshConfig, num_devices: int, num_slices: int = 1) -> dict:
  """Returns axis -> devices of all axes, on so many devices.

  Args:
    mesh: Mesh of a config.
    num_devices: Number of devices of all slices.
    num_slices: Number of slices, which only `data` connects.

  Raises:
    ValueError: The mesh has another number of devices; the message says what
      would fit.
  """
  of_copy = mesh.fsdp * mesh.expert * mesh.tensor
  data = num_devices // of_copy if mesh.data is None else mesh.data
  sizes = {
    "data": data,
    "fsdp": mesh.fsdp,
    "expert": mesh.expert,
    "tensor": mesh.tensor,
  }
  shown = " x ".join(
    f"{name} {'?' if mesh.data is None and name == 'data' else size}"
    for name, size in sizes.items()
  )
  if data * of_copy != num_devices:
    rest = num_devices // (num_slices * mesh.tensor) or 1
    raise ValueError(
      f"config.mesh: {shown} is not {num_devices} devices; needed: devices ="
      " data x fsdp x expert x tensor. For example --mesh="
      f"{spelled({'data': num_slices, 'fsdp': rest, 'tensor': mesh.tensor})}."
    )
  if data % num_slices:
    raise ValueError(
      f"config.mesh: data {data} does not split over {num_slices} slices, which"
      " only data may connect (the network between slices is slow); needed:"
      " data = slices x (a whole number)."
    )
  return sizes


def candidates(
  num_devices: int,
  num_slices: int,
  num_kv_heads: int,
  num_experts: int = 0,
) -> Iterator[dict[str, int]]:
  """Yields meshes that are worth a look, those with little communication first.

  In a slice rows are split by `fsdp`, by `data` or, of a mixture of experts, by
  `expert` as far as there are experts; with each goes `tensor` up to the number
  of key/value heads.

  Args:
    num_devices: Number of devices of all slices.
    num_slices: Number of slices, which only `data` connects.
    num_kv_heads: Number of key/value heads of the model; `tensor` divides them.
    num_experts: Number of experts of a layer; 0 without any.

  Yields:
    Axis -> devices.
  """
  of_slice = num_devices // num_slices
  seen = set()
  for tensor in range(1, min(num_kv_heads, of_slice) + 1):
    if of_slice % tensor or num_kv_heads % tensor:
      continue
    rest = of_slice // tensor
    expert = math.gcd(num_experts, rest) if num_experts else 1
    for sizes in (
      (num_slices, rest, 1, tensor),
      (num_slices, rest // expert, expert, tensor),
      (num_slices * rest, 1, 1, tensor),
    ):
      if sizes not in seen:
        seen.add(sizes)
        yield dict(zip(_AXES, sizes, strict=True))

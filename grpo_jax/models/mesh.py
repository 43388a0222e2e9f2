"""Splits of arrays over the mesh in `jax.set_mesh(mesh)`, for kernels.

The compiler cannot split a kernel. So the callers of a kernel split its arrays
with `jax.shard_map`, over the axes that are chosen here.
"""

from __future__ import annotations

import math

import jax
from jax import lax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from grpo_jax.types import ROW_AXES


def platform(mesh: Mesh | AbstractMesh | None = None) -> str:
  """Platform for which programs on a mesh are compiled, such as "tpu".

  Args:
    mesh: The mesh; None for the one that is set, or without one the default
      backend.
  """
  if isinstance(mesh, Mesh):
    return mesh.devices.flat[0].platform
  if mesh is None:
    mesh = jax.sharding.get_abstract_mesh()
  device = mesh.abstract_device
  return device.platform if device else jax.default_backend()


def size() -> int:
  """Number of devices of the mesh; 1 without a mesh."""
  return math.prod(jax.sharding.get_abstract_mesh().shape.values())


def split(length: int, *names: str) -> tuple[str, ...] | None:
  """Entry of a `PartitionSpec` that splits an array axis over mesh axes.

  Args:
    length: The length of the array axis.
    names: Names of mesh axes; those that the mesh does not have are ignored.

  Returns:
    The axes with several devices; None if there are none, or if the length is
    not a multiple of the number of their devices.
  """
  sizes = jax.sharding.get_abstract_mesh().shape
  axes = tuple(name for name in names if sizes.get(name, 1) > 1)
  divides = length % math.prod(sizes[name] for name in axes) == 0
  return axes if axes and divides else None


def share_positions(x: jax.Array) -> jax.Array:  # [B, L, D]
  """The same array with its positions split over `tensor`.

  Rows stay split over `ROW_AXES`. Attention sees all positions: the compiler
  gathers positions before attention, and splits heads instead. At the products
  it gathers positions or weights, whichever are fewer. If the positions do not
  divide, the array is returned as it is.
  """
  positions = split(x.shape[1], "tensor")
  if positions is None:
    return x
  rows = split(x.shape[0], *ROW_AXES)
  return lax.with_sharding_constraint(x, P(rows, positions))

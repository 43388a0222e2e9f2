"""What kernels read of the mesh in `jax.set_mesh(mesh)`.

The compiler cannot split a kernel, so that its callers do, with
`jax.shard_map`, over the axes that are named here.
"""

from __future__ import annotations

import math

import jax
from jax import lax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from grpo_jax.types import ROW_AXES


def platform(mesh: Mesh | AbstractMesh | None = None) -> str:
  """For which programs on a mesh are made, here or elsewhere.

  Args:
    mesh: None for the one that is set.
  """
  if isinstance(mesh, Mesh):
    return mesh.devices.flat[0].platform
  if mesh is None:
    mesh = jax.sharding.get_abstract_mesh()
  device = mesh.abstract_device
  return device.platform if device else jax.default_backend()


def size() -> int:
  """Number of devices of the mesh; 1 outside of one."""
  return math.prod(jax.sharding.get_abstract_mesh().shape.values())


def split(length: int, *names: str) -> tuple[str, ...] | None:
  """Over which of these mesh axes an array axis is split, all together.

  Args:
    length: The length of the array axis.
    names: Of mesh axes; those that the mesh has not got do not count.

  Returns:
    An entry of a `PartitionSpec`; None if there is one device along them all,
    or the array axis does not divide evenly.
  """
  sizes = jax.sharding.get_abstract_mesh().shape
  axes = tuple(name for name in names if sizes.get(name, 1) > 1)
  divides = length % math.prod(sizes[name] for name in axes) == 0
  return axes if axes and divides else None


def share_positions(x: jax.Array) -> jax.Array:  # [B, L, D]
  """The same array, its positions split over `tensor` and its rows as ever.

  Attention sees all of them: the compiler gathers positions, and splits heads,
  around it. At the products it gathers positions or weights, whichever are
  fewer. Where the positions do not divide, nothing is done.
  """
  positions = split(x.shape[1], "tensor")
  if positions is None:
    return x
  rows = split(x.shape[0], *ROW_AXES)
  return lax.with_sharding_constraint(x, P(rows, positions))

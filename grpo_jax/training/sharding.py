"""Where arrays live: one mesh, rows over `data`, state on every device."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax.types import PyTree


def make_mesh(num_data: int | None) -> Mesh:
  """A mesh with the axis `data` over the first `num_data` devices.

  The axes are Auto: the compiler propagates shardings; JAX's default,
  Explicit, would reject mixed operands.

  Raises:
    ValueError: More devices asked for than there are.
  """
  devices = jax.devices()
  count = len(devices) if num_data is None else num_data
  if not 1 <= count <= len(devices):
    raise ValueError(
      f"config.mesh_data={num_data}: this machine has {len(devices)}"
      f" {devices[0].platform} device(s); needed is a number from 1 to"
      f" {len(devices)}. To try several on a CPU, set"
      " XLA_FLAGS=--xla_force_host_platform_device_count=8."
    )
  return jax.make_mesh(
    (count,), ("data",), axis_types=(AxisType.Auto,), devices=devices[:count]
  )


def replicated(mesh: Mesh) -> NamedSharding:
  """A copy on every device."""
  return NamedSharding(mesh, P())


def by_rows(mesh: Mesh) -> NamedSharding:
  """The leading axis split over the devices."""
  return NamedSharding(mesh, P("data"))


def row_constraint(mesh: Mesh) -> Callable[[PyTree], PyTree]:
  """Inside jit: keeps the leading axis of every array split over `data`.

  Scalars have none, and are left alone.
  """
  sharding = by_rows(mesh)
  if mesh.size == 1:
    return lambda rows: rows
  return lambda rows: jax.tree.map(
    lambda x: jax.lax.with_sharding_constraint(x, sharding) if x.ndim else x,
    rows,
  )


def abstract(tree: PyTree, where: NamedSharding) -> PyTree:
  """Shapes and dtypes of a tree, to be placed on `where`."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree
  )

"""Flags that say for which TPUs a program is compiled."""

from __future__ import annotations

from absl import flags


def define_topology(default: str | None = None) -> flags.FlagHolder:
  """Defines --topology=TPUS; a flag without a default is required."""
  if "topology" in flags.FLAGS:
    return _defined("topology")
  return flags.DEFINE_string(
    "topology",
    default,
    "TPUs to compile for: v5e-16, v5p-128, or the shape, v5p:4x4x4.",
    required=default is None,
  )


def define_mesh(more: str = "") -> flags.FlagHolder:
  """Defines --mesh=AXES; `more` names other values."""
  if "mesh" in flags.FLAGS:
    return _defined("mesh")
  return flags.DEFINE_string(
    "mesh",
    "",
    f"Axes, as fsdp:16,tensor:4, instead of those of config.mesh.{more}",
  )


def define_slices() -> flags.FlagHolder:
  """Defines --slices=N."""
  if "slices" in flags.FLAGS:
    return _defined("slices")
  return flags.DEFINE_integer("slices", 1, "Slices that data connects.", 1)


def _defined(name: str) -> flags.FlagHolder:
  """The flag of a program, if this one or a test of both has imported it."""
  return flags.FlagHolder(flags.FLAGS, flags.FLAGS[name])

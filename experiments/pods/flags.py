"""Flags that say for which TPUs a program is compiled."""

from __future__ import annotations

from collections.abc import Iterable

from absl import flags

TOPOLOGY = flags.DEFINE_string(
  "topology",
  "",
  "TPUs to compile for: v5e-16, v5p-128, or the shape, v5p:4x4x4.",
)
MESH = flags.DEFINE_string(
  "mesh",
  "",
  "Axes, as fsdp:16,tensor:4, instead of those of config.mesh. In"
  " experiments.pods.report, `auto` compares those that are worth a look.",
)
SLICES = flags.DEFINE_integer("slices", 1, "Slices that data connects.", 1)


def chosen(flag: flags.FlagHolder, names: Iterable[str]) -> list[str]:
  """The names that a list flag has.

  Raises:
    ValueError: One of them is not among `names`.
  """
  if unknown := sorted({*flag.value} - {*names}):
    raise ValueError(
      f"--{flag.name}: there is no {unknown[0]!r}; there are"
      f" {', '.join(names)}."
    )
  return list(flag.value)

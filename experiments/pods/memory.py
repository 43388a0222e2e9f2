r"""Estimates the memory that a run needs, from shapes alone.

    python -m experiments.pods.memory \
        --config=configs/recipes/dapo.py:qwen2.5-7b \
        --topology=v5e-16 --mesh=fsdp:16

With --topology the first line says whether the run fits. The last lines list
changes that make it fit, or make it faster, and the way in which devices share
the update. Exit status: 0, or 1 if it does not fit.

Nothing is downloaded for the models of configs/recipes/models.py. For another
checkpoint on the hub, its config and tokenizer are downloaded, but not its
weights. No weights are made. Without --topology, devices are those of this
machine, with the form of attention that they take. `held.py` lists the exact
counts and the estimates.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import ml_collections
from jax.sharding import AbstractMesh

from experiments.pods import advice, chips, held, meshes
from experiments.pods import flags as pod_flags
from grpo_jax import ranges
from grpo_jax.cli import flags as flags_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import build

_CONFIG = flags_lib.define_config()


def main(argv: Sequence[str]) -> int:
  """Prints the table of a config."""
  del argv
  config: ml_collections.ConfigDict = _CONFIG.value
  config.allow_unpublished = True  # Nothing is trained.
  settings = config_lib.resolve(config)
  settings = meshes.replaced(settings, pod_flags.MESH.value)
  if not pod_flags.TOPOLOGY.value:
    _print(settings, held.mesh_of(settings))
    return 0
  of = chips.parse(pod_flags.TOPOLOGY.value)
  num_devices = pod_flags.SLICES.value * of.num_chips * of.chip.devices_per_chip
  room = of.chip.hbm // of.chip.devices_per_chip
  mesh = held.mesh_of(settings, num_devices, pod_flags.SLICES.value)
  size = advice.needed(settings, mesh)
  gib = f"{size / 2**30:.2f} of {room / 2**30:.2f} GiB of a device"
  if size <= room:
    print(f"verdict: fits by this estimate, with {gib}.")
    _print(settings, mesh)
    found = advice.faster(settings, num_devices, pod_flags.SLICES.value, room)
    print(*advice.faster_lines(found), sep="\n")
    return 0
  print(f"verdict: does not fit by this estimate: {gib}.")
  _print(settings, mesh)
  found = advice.changes(settings, num_devices, pod_flags.SLICES.value, room)
  print("\n".join(advice.lines(found)))
  return 1


def _print(settings: config_lib.RunConfig, mesh: AbstractMesh) -> None:
  name = settings.phases[-1]
  phase = settings.section(name)
  print(
    f"phase {name}: {ranges.counted(phase.num_rows, 'completion')} per batch,"
    f" {mesh.size} device(s); per device:"
  )
  plan = held.update_plan(settings, held.sizes(settings), mesh)
  found = held.table(settings, mesh)
  for kind, (when, size) in found.items():
    print(f"  {kind:<30} {when:<9} {_shown(size)}")
  for what, size in held.totals(found).items():
    print(f"  {what:<40} {_shown(size)}")
  print(textwrap.fill(build.update_path(name, phase, plan), 80))


def _shown(size: int) -> str:
  return f"{size / 2**30:>10.2f} GiB {size:>20,}"


if __name__ == "__main__":
  flags_lib.run(main)

"""Advises changes of a run that does not fit, or has room to be faster.

Each change is tried on the report of memory itself (`held.table`), so its
numbers are those of the report after the change.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable, Iterator

from jax.sharding import AbstractMesh

from experiments.pods import held, meshes
from grpo_jax.settings import config as config_lib

_Config = config_lib.RunConfig


@dataclasses.dataclass(frozen=True)
class Change:
  """Change of settings, with its cost and its memory.

  Attributes:
    flags: The change as flags of a command line.
    why: Drawback of the change.
    needed: Bytes of a device that are needed afterwards.
    fits: Whether the device has that many bytes.
  """

  flags: str
  why: str
  needed: int
  fits: bool


def needed(config: _Config, mesh: AbstractMesh) -> int:
  """Peak bytes of a device in a step."""
  return max(held.totals(held.table(config, mesh)).values())


def changes(
  config: _Config, num_devices: int, num_slices: int, room: int
) -> list[Change]:
  """Changes that make a run smaller, one after another, until it fits.

  Each change is tried alone. Those that are not enough are then tried together,
  in the order of their cost for a run.

  Args:
    config: Config of the run.
    num_devices: Number of devices of all slices.
    num_slices: Number of slices, which only `data` connects.
    room: Bytes of a device.

  Returns:
    Changes that fit alone; or all that help, and last the first combination
    that fits, if one does.
  """

  def tried(config: _Config) -> int | None:
    try:
      return needed(config, held.mesh_of(config, num_devices, num_slices))
    except (KeyError, TypeError, ValueError):
      return None  # Settings that do not go together.

  now = tried(config)
  found, together = [], config
  flags: dict[str, str] = {}
  for text, why, change in _proposals(config, num_devices, num_slices):
    try:
      changed, both = change(config), change(together)
    except (KeyError, TypeError, ValueError):
      continue
    size = tried(changed)
    if size is None or (now is not None and size >= now):
      continue
    found.append(Change(text, why, size, size <= room))
    together = both
    # A stronger change of the same setting takes the place of the weaker.
    flags[text.partition("=")[0]] = text
    if found[-1].fits or len(flags) < 2:
      continue
    size = tried(together)
    if size is not None and size <= room:
      found.append(Change(" ".join(flags.values()), "all of these", size, True))
      break
  alone = [x for x in found if x.fits]
  return alone or found


def _proposals(
  config: _Config, num_devices: int, num_slices: int
) -> Iterator[tuple[str, str, Callable[[_Config], _Config]]]:
  """Flags, their drawback, and the change; the cheapest first."""
  name = config.phases[-1]
  phase = config.section(name)
  model = config.model

  def of_phase(**fields) -> Callable[[_Config], _Config]:
    return lambda config: config.with_section(name, **fields)

  def of_model(**fields) -> Callable[[_Config], _Config]:
    return lambda config: dataclasses.replace(
      config, model=dataclasses.replace(config.model, **fields)
    )

  def of_mesh(**sizes) -> Callable[[_Config], _Config]:
    return lambda config: dataclasses.replace(
      config, mesh=type(config.mesh)(**sizes)
    )

  per_slice = num_devices // num_slices // config.mesh.tensor
  wide = {"data": num_slices, "fsdp": per_slice, "tensor": config.mesh.tensor}
  if config.mesh.fsdp * config.mesh.expert < per_slice:
    yield (
      f"--mesh={meshes.spelled(wide)}",
      "weights are gathered more often",
      of_mesh(**wide),
    )
  if model.remat != "full":
    yield (
      "--config.model.remat=full",
      "the forward pass is done twice",
      of_model(remat="full"),
    )
  if config.mesh.tensor > 1 and not model.split_positions:
    yield (
      "--config.model.split_positions=True",
      "positions are gathered in each layer",
      of_model(split_positions=True),
    )
  shards = num_devices // config.mesh.tensor
  rows, sizes = _rows_of_device(config, shards)
  smaller = max(x for x in sizes if x <= max(rows // 4, sizes[0]))
  if smaller < rows:
    yield (
      f"--config.{name}.micro_batch_size={smaller * shards}",
      "more and smaller products",
      of_phase(micro_batch_size=smaller * shards),
    )
  for share in (4, 32):
    lanes = phase.num_rows // share // shards * shards
    if phase.samples and lanes and lanes < (config.sampling.lanes or lanes + 1):
      yield (
        f"--config.sampling.lanes={lanes}",
        "the rollout takes longer",
        functools.partial(_with_lanes, lanes=lanes),
      )
  optimizer = phase.optimizer
  is_trained = "policy" in phase.trains
  if is_trained and model.checkpoint and optimizer.name != "adafactor":
    yield (
      "--config.model.param_dtype=bfloat16"
      f" --config.{name}.optimizer.name=adafactor"
      f" --config.{name}.optimizer.stochastic_rounding=True",
      "another optimizer, and parameters that are rounded",
      lambda config: of_model(param_dtype="bfloat16")(
        config.with_section(
          name,
          optimizer=dataclasses.replace(
            optimizer, name="adafactor", stochastic_rounding=True
          ),
        )
      ),
    )
  if phase.num_prompts >= 2 * shards:
    yield (
      f"--config.{name}.num_prompts={phase.num_prompts // 2}",
      "a smaller batch: another experiment",
      of_phase(num_prompts=phase.num_prompts // 2),
    )
  if model.checkpoint and not model.lora_rank:
    yield (
      "--config.model.lora_rank=16 --config.model.quantization=nf4"
      " --config.model.param_dtype=bfloat16",
      "adapters alone are trained",
      of_model(lora_rank=16, quantization="nf4", param_dtype="bfloat16"),
    )


def _rows_of_device(config: _Config, shards: int) -> tuple[int, list[int]]:
  """Rows of a micro-batch on a device, and possible numbers, ascending."""
  name = config.phases[-1]
  phase = config.section(name)
  algorithm, _ = config.objective(name)
  own = max(phase.num_rows // phase.num_minibatches // shards, 1)
  unit = phase.group_size if algorithm.couples_group else 1
  sizes = [x for x in range(unit, own + 1, unit) if own % x == 0] or [own]
  asked = min(phase.micro_batch_size or own * shards, own * shards)
  return next(x for x in sizes if x * shards >= asked), sizes


def faster(
  config: _Config, num_devices: int, num_slices: int, room: int
) -> list[Change]:
  """Changes that shorten a step of a run that fits, each one alone.

  Args:
    config: Config of the run.
    num_devices: Number of devices of all slices.
    num_slices: Number of slices, which only `data` connects.
    room: Bytes of a device.
  """
  name = config.phases[-1]
  phase = config.section(name)
  mesh = held.mesh_of(config, num_devices, num_slices)
  found: list[Change] = []

  def fits(flags: str, why: str, changed: _Config) -> bool:
    size = needed(changed, mesh)
    if size <= room:
      found.append(Change(flags, why, size, True))
    return size <= room

  shards = num_devices // config.mesh.tensor
  rows, sizes = _rows_of_device(config, shards)
  own = sizes[-1]

  def with_rows(rows: int) -> _Config:
    return config.with_section(name, micro_batch_size=rows * shards)

  larger = [x for x in sizes if x > rows]
  num_fit = bisect.bisect_left(
    larger, True, key=lambda rows: needed(with_rows(rows), mesh) > room
  )
  for most in larger[:num_fit][-1:]:
    fits(
      f"--config.{name}.micro_batch_size={most * shards}",
      f"micro-batches of a gradient step: {own // most}, not {own // rows};"
      " each gathers weights and adds up gradients",
      with_rows(most),
    )
  for remat in ("none", "dots"):
    if config.model.remat in (remat, "none") or fits(
      f"--config.model.remat={remat}",
      "less is computed twice",
      dataclasses.replace(
        config, model=dataclasses.replace(config.model, remat=remat)
      ),
    ):
      break
  lanes = config.sampling.lanes
  if phase.samples and lanes and lanes < phase.num_rows:
    fits(
      f"--config.sampling.lanes={phase.num_rows}",
      "all completions are drawn at once",
      _with_lanes(config, phase.num_rows),
    )
  return found


def _with_lanes(config: _Config, lanes: int) -> _Config:
  sampling = dataclasses.replace(config.sampling, lanes=lanes)
  return dataclasses.replace(config, sampling=sampling)


def faster_lines(found: list[Change]) -> list[str]:
  """Sentences about changes that shorten a step; empty without any."""
  if not found:
    return []
  return ["What makes a step shorter; GiB of a device afterwards:"] + [
    f"  {change.needed / 2**30:>8.2f} {change.flags}  ({change.why})"
    for change in found
  ]


def lines(found: list[Change]) -> list[str]:
  """Lists the changes in words."""
  if not found:
    return ["No change of one of the settings that are tried here helps."]
  shown = ["What to change; GiB of a device afterwards:"]
  for change in found:
    fits = "fits" if change.fits else "not enough"
    shown.append(
      f"  {change.needed / 2**30:>8.2f} {fits:<10} {change.flags}"
      f"  ({change.why})"
    )
  if not any(change.fits for change in found):
    shown.append("None of it is enough: take more chips, or a smaller model.")
  return shown

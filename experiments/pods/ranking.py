"""Ranking of the meshes of a slice that fit, by the bound of the report.

Each candidate of `meshes.candidates` is compiled, and `report` reports on it as
on any mesh. If the estimated memory of a candidate is more than `_HOPELESS`
times that of a device, the candidate is not compiled.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from experiments.pods import advice, held, meshes, steps
from grpo_jax.configs.recipes import models as published
from grpo_jax.settings import config as config_lib

# The estimate of memory may be too high, most of all with `tensor`.
_HOPELESS = 2.0
_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Row:
  """Mesh with its results.

  Attributes:
    mesh: Axis -> devices.
    results: Results of the report; None if nothing was compiled.
    estimate: Bytes of a device, by the report of memory.
    why: Reason why nothing was compiled, or the message of the compiler.
  """

  mesh: dict[str, int]
  results: dict[str, Any] | None
  estimate: int
  why: str

  @property
  def fits(self) -> bool:
    """True if the mesh was compiled and fits."""
    return self.results is not None and self.results["fits"]


def rank(
  report: Callable[..., dict[str, Any]],
  config: config_lib.RunConfig,
  target: Any,
) -> list[Row]:
  """Ranks all candidates: those that fit by their bound, then the others.

  Args:
    report: Function of `report.py`.
    config: Config of a run; its own mesh is ignored.
    target: Target of the compilation, as in `report.py`.
  """
  num_devices = len(target.devices)
  room = target.slice.chip.hbm // target.devices_per_chip
  with published.described(config) as described:
    model = described.model.transformer(vocab_size=1)
  rows = []
  candidates = [
    *meshes.candidates(
      num_devices, target.num_slices, model.num_kv_heads, model.num_experts or 0
    )
  ]
  print(f"{len(candidates)} meshes", file=sys.stderr, flush=True)
  for sizes in candidates:
    start = time.perf_counter()
    rows.append(_row(report, config, target, sizes, room))
    seconds = time.perf_counter() - start
    said = "fits" if rows[-1].fits else rows[-1].why
    print(
      f"{meshes.spelled(sizes)}: {said} ({seconds:.0f} s)",
      file=sys.stderr,
      flush=True,
    )

  def order(row: Row) -> tuple:
    if row.fits:
      assert row.results is not None
      return 0, row.results["at_least_s"], row.results["hbm"]["total"]
    return 1, row.estimate, 0

  return sorted(rows, key=order)


def _row(report, config, target, sizes, room) -> Row:
  changed = dataclasses.replace(config, mesh=type(config.mesh)(**sizes))
  try:
    mesh = held.mesh_of(changed, len(target.devices), target.num_slices)
    estimate = advice.needed(changed, mesh)
    if estimate > _HOPELESS * room:
      why = f"about {estimate / _GIB:.1f} GiB, of {room / _GIB:.1f}"
      return Row(sizes, None, estimate, why)
    results = report("", changed, target)
  except ValueError as error:
    return Row(sizes, None, sys.maxsize, str(error).partition(";")[0])
  return Row(sizes, results, estimate, results.get("compiler", ""))


def main(
  report: Callable[..., dict[str, Any]],
  config: config_lib.RunConfig,
  target: Any,
  arguments: Sequence[str],
  price: float | None = None,
) -> int:
  """Prints the ranking; returns 1 if no mesh fits.

  Args:
    report: Function of `report.py`.
    config: Config of a run.
    target: Target of the compilation.
    arguments: The flags of the config, for the command that starts the run.
    price: Price of a chip-hour; None leaves out costs.
  """
  rows = rank(report, config, target)
  print("\n".join(lines(rows, config, target, arguments, price)))
  return 0 if rows[0].fits else 1


def lines(
  rows: Sequence[Row],
  config: config_lib.RunConfig,
  target: Any,
  arguments: Sequence[str],
  price: float | None = None,
) -> list[str]:
  """Lines with the verdict, the table, and the command or the advice."""
  room = target.slice.chip.hbm // target.devices_per_chip
  where = target.slice.product.replace("v5litepod", "v5e")
  if target.num_slices > 1:
    where = f"{target.num_slices} x {where}"
  best, num_fit = rows[0], sum(row.fits for row in rows)
  shown = [
    f"{'mesh':<28}{'at least s':>11}{'GiB':>8}  most of it in",
  ]
  for row in rows:
    name = meshes.spelled(row.mesh)
    if not row.fits or row.results is None:
      shown.append(f"{name:<28}{'-':>11}{'-':>8}  {row.why}"[:80])
      continue
    phases = row.results["phases"]
    longest = max(phases, key=lambda name: phases[name]["at_least_s"])
    seconds = phases[longest]["seconds"]
    shown.append(
      f"{name:<28}{row.results['at_least_s']:>11.4g}"
      f"{row.results['hbm']['total'] / _GIB:>8.2f}  {longest}"
      f" ({max(seconds, key=seconds.__getitem__)})"
    )
  changed = dataclasses.replace(config, mesh=type(config.mesh)(**best.mesh))
  of_best = changed, len(target.devices), target.num_slices, room
  if not best.fits:
    return [
      f"verdict: none of {len(rows)} meshes of {where} fits; the nearest is"
      f" {meshes.spelled(best.mesh)}.",
      *shown,
      *advice.lines(advice.changes(*of_best)),
    ]
  assert best.results is not None
  launcher, place = "skypilot", []
  if target.num_slices > 1:  # A job of SkyPilot has one.
    launcher = "xpk"
    place = ["--cluster=CLUSTER", "--project=PROJECT", "--zone=ZONE"]
    place.append(f"--slices={target.num_slices}")
  command = [
    *("python", "-m", f"experiments.launch.{launcher}", "run", "--name=NAME"),
    *place,
    f"--topology={target.slice.product.replace('v5litepod', 'v5e')}",
    f"--mesh={meshes.spelled(best.mesh)}",
    "--workdir=gs://BUCKET/NAME",
  ]
  of_file = [x for x in arguments if x.startswith("--config=")]
  of_run = [x for x in arguments if not x.startswith("--config=")]
  return [
    f"verdict: take --mesh={meshes.spelled(best.mesh)} on {where}: a step takes"
    f" at least {best.results['at_least_s']:.3g} s, with"
    f" {best.results['hbm']['total'] / _GIB:.2f} of {room / _GIB:.2f} GiB;"
    f" {num_fit} of {len(rows)} meshes fit.",
    *shown,
    *steps.cost(best.results, price),
    best.results["update"],
    *advice.faster_lines(advice.faster(*of_best)),
    "start it with",
    "  "
    + shlex.join([*command, *of_file, *(["--", *of_run] if of_run else [])]),
  ]

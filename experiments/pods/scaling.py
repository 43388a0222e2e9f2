r"""Writes benchmarks/scaling.md: 8 to 8 192 chips, with equal work for each.

    python -m experiments.pods.scaling                         # all, anew
    python -m experiments.pods.scaling --compile=0.5b-v5e-512  # one size
    python -m experiments.pods.scaling --compile=              # the page alone

Nothing is run. The report on a pod compiles the sizes one after another, for
TPUs that are not there, with the same number of prompts for a chip at every
size (weak scaling). Its results are kept in benchmarks/scaling/SIZE.json, from
which page and figure are written. A size without such a file is estimated from
the nearest size that has one, with the same kind of network, by a formula:

- operations and HBM bytes of a device stay, since its work does;
- bytes that are gathered or reduced over a ring of n devices grow as (n - 1) /
  n, for n devices of `fsdp` within a slice and for n slices between them;
- parameters, moments and reference are divided among `fsdp` × `tensor`; the
  rest of the memory stays.

The bound is that of the report: for each phase the longest of operations, HBM,
links and the network between slices, at the vendor's peak. It leaves out
latencies, which grow with the size, and is not a forecast.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from experiments.pods import chips, meshes, rows
from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.monitor import style

SIZES = tuple(2**k for k in range(3, 14))  # Chips.
_ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = _ROOT / "benchmarks/scaling"
_GIB = 2**30
_BEND = 0.2  # Of a step: what a phase has to gain to be called a bend.

_HEADING = """\
# Weak scaling on paper

Written by `python -m experiments.pods.scaling`; nothing here has run on a TPU.
The step is that of `configs/pods.py`: GRPO with 512 + 1024 slots, 8
completions a prompt, AdamW in float32 and a reference. Each chip has as many
prompts at every size (weak scaling), so a perfect line is flat. The mesh is
the one that a user would take: `fsdp` as far as it divides the model and is of
use, `data` beyond it, and `data` alone between slices.

![Least time of a step, bytes that a device sends and memory, against chips.
](scaling.png)

Filled marks, and rows from the *compiler*, are steps that libtpu has compiled
for that many chips. Hollow marks, and rows from the *formula*, are estimates
from the nearest size that was compiled; [the
program](../experiments/pods/scaling.py) has the formula. Dotted lines are
where the largest slice of a generation ends. Columns of seconds say what
bounds the step: each phase counts under what takes longest in it, at the
vendor's peak, so they add up to the least time. The bound has no latencies.
[Steps compiled for pods](pods.md) says more of the figures.
"""
_ENDING = """
## What decides whether the second network bends the line

In the compiled text, gradients are sent between slices as often as there are
micro-batches, and not once a step. So their bytes grow with the number of
micro-batches, and the operations of a step do not: half as many rows in a
micro-batch double the seconds of that network, and more prompts for a chip make
both grow alike. The remedy is the largest micro-batch that fits.

## What bent it before

Until 26 November 2026 the bound of 0.5b-v5e was 15.5 s at 8 192 chips. The
update looked up the prompt of each row, and the compiler does not see that
these prompts are where their rows are: it sent the prompts of the whole pod to
every device. At 8 192 chips these are 16 384 prompts of 512 tokens, 33 MB. Of
that program only its figures are left, and they fit no other array: the report
counted a gather of 2²⁵ bytes in each of the 511 steps of the last loop of the
token loop. A smaller program of that time shows what the compiler did: the
gather starts before the token loop and goes on beside the products in it, so
that its buffer is in the text of each of them. It is sent once. The 22 GB of
HBM that were added to a step are 217 times that buffer, read once and written
twice. So most of the 15.5 s were counted too often, which reports do no longer;
that the gather grew with the pod was real.
Now prompts stay where they are, at every size. Rows of the compiler that are
older (8, 16 and 512 chips, and 7b-v5p) still have the lookup, which is small
there.

Two settings send what grows with the pod, and were not compiled for it.
`config.sampling.lanes` gives rows to whichever lane is free, on any device, so
the keys and values of all prompts are sent to each of them. With
`config.rl.num_minibatches` above 1 rows are drawn from the whole batch, so all
of them are sent. Use neither with thousands of chips before you have compiled
it.

Differences of a few percent between neighbours with the same network are no
trend: the compiler chooses other fusions, and what they read of HBM differs.

## What the bound leaves out

The bound counts bytes and operations, and both are nearly the same for a chip
at every size. What grows with the size is the time that a message takes to
arrive, which is not in it:

- A collective of the token loop is waited for in every step of the loop. Some
  of them only ask whether all rows have ended, and are over all chips, so
  between slices as well. A delay of 0.1 ms in each adds a tenth of a second
  for 1 000 of them.
- A ring of `fsdp` passes as many messages as it has devices, and each is
  smaller by as much. The bytes stay, the number of delays grows. This is a
  reason to end `fsdp` before the slice ends.
- All chips wait for the slowest one, and more chips have a slower slowest one.
  The bound takes all completions to run to their full length, where none
  waits.

So the sizes at which the lines bend here are those at which they must bend. On
real pods they bend earlier.
"""
# Resource that bounds a phase -> its name in words.
_WORDS = {
  "flops": "operations",
  "hbm": "reading and writing HBM",
  "links": "links within a slice",
  "slices": "the network between slices",
}


@dataclasses.dataclass(frozen=True)
class Family:
  """Steps of one model on one generation, with equal work for each chip.

  Attributes:
    chip: The generation.
    checkpoint: The model.
    prompts: Number of prompts for a chip.
    rows: Number of rows of a micro-batch, for a chip.
    tensor: Number of devices that share the heads.
    fsdp: Largest number of devices that share the weights: a divisor of the
      model's width, as far as sharing is of use.
    slice_chips: Number of chips of the largest slice, a power of two.
    compiled: Sizes that are compiled; the others are estimated.
  """

  chip: str
  checkpoint: str
  prompts: int
  rows: int
  tensor: int
  fsdp: int
  slice_chips: int
  compiled: tuple[int, ...]


FAMILIES = {
  "0.5b-v5e": Family(
    chip="v5e",
    checkpoint="Qwen/Qwen2.5-0.5B",
    prompts=2,
    rows=4,
    tensor=1,
    fsdp=128,  # The width is 896 = 7 * 128.
    slice_chips=256,
    compiled=(8, 16, 512, 8192),
  ),
  "7b-v5p": Family(
    chip="v5p",
    checkpoint="Qwen/Qwen2.5-7B",
    prompts=1,
    rows=2,
    tensor=4,
    fsdp=64,
    slice_chips=4096,  # 6 144 are sold, not a power of two.
    compiled=(64,),
  ),
}


@dataclasses.dataclass(frozen=True)
class Layout:
  """Layout of a family on a number of chips.

  Attributes:
    topology: Topology of a slice.
    num_slices: Number of slices.
    mesh: Axis -> number of devices.
    num_prompts: Number of prompts of a step.
    micro_batch_size: Rows of a micro-batch.
  """

  topology: str
  num_slices: int
  mesh: dict[str, int]
  num_prompts: int
  micro_batch_size: int

  @property
  def shards(self) -> int:
    """Devices that share parameters and moments."""
    return self.mesh["fsdp"] * self.mesh["tensor"]


def layout(family: Family, num_chips: int) -> Layout:
  """Layout for a size: `fsdp` as far as it goes, then `data`.

  Raises:
    ValueError: A slice of that size does not exist.
  """
  num_slices = max(num_chips // family.slice_chips, 1)
  of_slice = num_chips // num_slices
  chip = chips.CHIPS[family.chip]
  shape = chip.shape_of(of_slice)
  if shape is None or num_slices * of_slice != num_chips:
    raise ValueError(
      f"pods.scaling: {num_chips} chips of {family.chip} are no whole number of"
      f" slices that are sold; needs {SIZES[0]}, {SIZES[1]}, ..."
    )
  fsdp = min(of_slice // family.tensor, family.fsdp)
  return Layout(
    topology=chips.Slice(chip, shape).topology,
    num_slices=num_slices,
    mesh={
      "data": num_chips // (fsdp * family.tensor),
      "fsdp": fsdp,
      "tensor": family.tensor,
    },
    num_prompts=num_chips * family.prompts,
    micro_batch_size=num_chips * family.rows,
  )


def arguments(family: Family, num_chips: int) -> tuple[str, ...]:
  """Command-line arguments of `experiments.pods.report`."""
  of = layout(family, num_chips)
  return (
    "--config=configs/pods.py:grpo",
    f"--config.model.checkpoint={family.checkpoint}",
    f"--topology={of.topology}",
    f"--slices={of.num_slices}",
    f"--mesh={meshes.spelled(of.mesh)}",
    f"--config.rl.num_prompts={of.num_prompts}",
    f"--config.rl.micro_batch_size={of.micro_batch_size}",
  )


@dataclasses.dataclass(frozen=True)
class Point:
  """Work and time of a device in a step, at one size.

  Attributes:
    num_chips: Number of chips of all slices.
    of: The layout.
    compiled: Whether it was compiled, or estimated by the formula.
    seconds: Least seconds of a step.
    bounds: Seconds of phases by the resource that bounds them: "flops", "hbm",
      "links" and "slices"; they add up to `seconds`.
    sent: Bytes over links within a slice.
    away: Bytes that leave it for another slice.
    memory: Bytes of memory.
    state: Bytes of parameters, moments and reference in it.
    network: The phase that uses the network between slices most; its seconds on
      that network, and its longest other seconds.
    waits: Number of collectives in the token loop.
    in_loop: Bytes that they send.
    phases: Phase -> its least seconds.
  """

  num_chips: int
  of: Layout
  compiled: bool
  seconds: float
  bounds: dict[str, float]
  sent: float
  away: float
  memory: float
  state: float
  network: tuple[str, float, float]
  waits: int
  in_loop: float
  phases: dict[str, float]


def point(
  results: Mapping[str, Any], of: Layout, num_chips: int, compiled: bool
) -> Point:
  """Figures of a report for the table and the figure."""
  bounds = dict.fromkeys(("flops", "hbm", "links", "slices"), 0.0)
  for phase in results["phases"].values():
    seconds = phase["seconds"]
    longest = max(seconds, key=seconds.__getitem__)
    bounds[longest] += seconds[longest]
  sizes = results["hbm"]
  used = max(
    results["phases"],
    key=lambda name: results["phases"][name]["seconds"].get("slices", 0.0),
  )
  seconds = dict(results["phases"][used]["seconds"])
  network = used, seconds.pop("slices", 0.0), max(seconds.values())
  return Point(
    num_chips=num_chips,
    of=of,
    compiled=compiled,
    seconds=sum(bounds.values()),
    bounds=bounds,
    sent=sum(x["sent_bytes"] for x in results["phases"].values()),
    away=sum(x["slices_bytes"] for x in results["phases"].values()),
    memory=sizes["total"],
    state=sizes["parameters"] + sizes["optimizer"] + sizes["reference"],
    network=network,
    waits=results["in_token_loop"]["collectives"],
    in_loop=results["in_token_loop"]["sent_bytes"],
    phases={
      name: phase["at_least_s"] for name, phase in results["phases"].items()
    },
  )


def _ring(size: int) -> float:
  """Share of an array that a device of a ring sends."""
  return (size - 1) / size


def estimate(
  results: Mapping[str, Any], known: Layout, wanted: Layout
) -> dict[str, Any]:
  """Estimates the report of a size that was not compiled; see the module.

  Args:
    results: Results of a compiled size.
    known: Its layout.
    wanted: Layout of the size to estimate.

  Raises:
    ValueError: One of the sizes has several slices and the other has not.
  """
  if (known.num_slices > 1) != (wanted.num_slices > 1):
    raise ValueError(
      f"pods.scaling: {known.num_slices} and {wanted.num_slices} slices have"
      " not the same networks; needs a report of several for several."
    )
  found = copy.deepcopy(dict(results))
  links = _ring(wanted.mesh["fsdp"]) / _ring(known.mesh["fsdp"])
  between = 1.0
  if known.num_slices > 1:
    between = _ring(wanted.num_slices) / _ring(known.num_slices)
  for phase in found["phases"].values():
    for kind, share in (("links", links), ("slices", between)):
      if kind in phase["seconds"]:
        phase["seconds"][kind] *= share
    phase["sent_bytes"] *= links
    phase["slices_bytes"] *= between
    phase["at_least_s"] = max(phase["seconds"].values())
  sizes = found["hbm"]
  for kind in ("parameters", "optimizer", "reference"):
    less = sizes[kind] * known.shards / wanted.shards - sizes[kind]
    sizes[kind] += less
    sizes["total"] += less
  return found


def points(
  family: Family, reports: Mapping[int, Mapping[str, Any]]
) -> list[Point]:
  """Points of all sizes, from reports or from estimates.

  A size is estimated from the nearest size with the same number of kinds of
  network; of two, from the smaller one. Sizes without such a neighbour are left
  out.

  Args:
    family: The family.
    reports: Chips -> results of `experiments.pods.report`.
  """
  found = []
  for num_chips in SIZES:
    of = layout(family, num_chips)
    if num_chips in reports:
      found.append(point(reports[num_chips], of, num_chips, True))
      continue
    near = [
      size
      for size in sorted(reports)
      if (layout(family, size).num_slices > 1) == (of.num_slices > 1)
    ]
    if not near:
      continue
    nearest = min(near, key=lambda size: abs(math.log2(size / num_chips)))
    made = estimate(reports[nearest], layout(family, nearest), of)
    found.append(point(made, of, num_chips, False))
  return found


def read(name: str, folder: pathlib.Path) -> dict[int, dict[str, Any]]:
  """Chips -> the report of a size of a family that fits."""
  found = {}
  for num_chips in SIZES:
    path = folder / f"{name}-{num_chips}.json"
    if path.exists():
      results = json.loads(path.read_text(encoding="utf-8"))
      if results["fits"]:
        found[num_chips] = results
  return found


_HEAD = (
  "chips",
  "slices",
  "mesh",
  "from",
  "at least s",
  "of 8 chips",
  "operations s",
  "HBM s",
  "links s",
  "between slices s",
  "sent GB",
  "between slices GB",
  "HBM GiB",
  "of it state GiB",
)


def table(found: Sequence[Point]) -> str:
  """Table with a line for each size."""
  lines = [_HEAD, ["---:"] * 2 + ["---"] * 2 + ["---:"] * (len(_HEAD) - 4)]
  for one in found:
    lines.append(
      [
        f"{one.num_chips:,}",
        str(one.of.num_slices),
        meshes.spelled(one.of.mesh).replace(",", " ").replace(":", " "),
        "compiler" if one.compiled else "*formula*",
        f"{one.seconds:.3f}",
        f"{one.seconds / found[0].seconds:.3f}",
        *(
          f"{one.bounds[kind]:.3f}"
          for kind in ("flops", "hbm", "links", "slices")
        ),
        f"{one.sent / 1e9:.2f}",
        f"{one.away / 1e9:.3f}",
        f"{one.memory / _GIB:.2f}",
        f"{one.state / _GIB:.3f}",
      ]
    )
  return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def plot(found: Mapping[str, Sequence[Point]], path: pathlib.Path) -> None:
  """Bound, bytes sent and memory against chips; hollow marks are estimates."""
  drawn, grid = style.panels(1, 3, style.PAGE, 2.5)
  looks = style.looks(found)
  shown = (
    ("Least time of a step", "s", lambda one: one.seconds),
    ("Sent by a device", "GB", lambda one: (one.sent + one.away) / 1e9),
    ("Memory of a device", "GiB", lambda one: one.memory / _GIB),
  )
  for axes, (title, unit, value) in zip(grid[0], shown, strict=True):
    for name, of_family in found.items():
      look = looks[name]
      x = [one.num_chips for one in of_family]
      y = [value(one) for one in of_family]
      axes.plot(x, y, color=look.colour, lw=1.0, label=name)
      for one, height in zip(of_family, y, strict=True):
        axes.plot(
          one.num_chips,
          height,
          look.marker,
          color=look.colour,
          mfc=look.colour if one.compiled else "white",
        )
      edge = FAMILIES[name].slice_chips * math.sqrt(2)
      axes.axvline(edge, color=look.colour, lw=0.8, ls=style.DASHES[2])
    axes.set_xscale("log", base=2)
    axes.set_xticks([8, 64, 512, 4096], ["8", "64", "512", "4096"])
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    style.label(axes, title, "chips", unit)
  for name, face in (("compiled", style.GREY), ("estimated", "white")):
    grid[0][0].plot([], [], "o", color=style.GREY, mfc=face, label=name)
  style.shared_legend(drawn, grid[0])
  style.save(drawn, path)


def errors(
  family: Family, reports: Mapping[int, Mapping[str, Any]]
) -> tuple[float, float, float] | None:
  """Errors of the formula at sizes where the compiler's figures are known.

  Each size is estimated from the nearest other one.

  Returns:
    The largest relative errors of time, bytes sent and memory; None where no
    size has a neighbour.
  """
  found = []
  for num_chips in reports:
    others = {n: of for n, of in reports.items() if n != num_chips}
    for one in points(family, others):
      if one.num_chips == num_chips:
        of = layout(family, num_chips)
        known = point(reports[num_chips], of, num_chips, True)
        found.append(
          (
            abs(one.seconds / known.seconds - 1),
            abs((one.sent + one.away) / (known.sent + known.away) - 1),
            abs(one.memory / known.memory - 1),
          )
        )
  if not found:
    return None
  seconds, sent, memory = (max(column) for column in zip(*found, strict=True))
  return seconds, sent, memory


def bends(found: Sequence[Point]) -> str:
  """Findings about the rows of a family, as items of a list."""
  first, last = found[0], found[-1]
  slowest = max(found, key=lambda one: one.seconds)
  main = max(last.bounds, key=last.bounds.__getitem__)
  lines = [
    f"- From {first.num_chips:,} to {last.num_chips:,} chips the bound goes"
    f" from {first.seconds:.3f} s to {last.seconds:.3f} s"
    f" ({last.seconds / first.seconds - 1:+.1%}); it is highest, with"
    f" {slowest.seconds:.3f} s, at {slowest.num_chips:,} chips.",
    f"- Most of it is {_WORDS[main]}: {last.bounds[main] / last.seconds:.0%} at"
    f" {last.num_chips:,} chips.",
    f"- The state of a device falls from {first.state / _GIB:.2f} to"
    f" {last.state / _GIB:.3f} GiB as `fsdp` grows, and then stays. The rest of"
    " its memory is activations and keys and values, which belong to its rows.",
    f"- The token loop has {last.waits:,} collectives.",
  ]
  if last.of.num_slices > 1:
    phase, seconds, other = last.network
    bounds = (
      "so it bounds that phase" if seconds > other else "so it may be hidden"
    )
    edge = next(one for one in found if one.of.num_slices > 1)
    before = next(one for one in reversed(found) if one.of.num_slices == 1)
    lines.insert(
      1,
      f"- The second network begins between {before.num_chips:,} and"
      f" {edge.num_chips:,} chips: {edge.away / 1e9:.2f} GB of a step leave a"
      f" device for another slice with {edge.of.num_slices} slices, and"
      f" {last.away / 1e9:.2f} GB with {last.of.num_slices}. The phase"
      f" `{phase}` needs it most, for {seconds:.3f} s of at least {other:.3f} s"
      f" that it takes otherwise, {bounds}.",
    )
  known = [one for one in found if one.compiled]
  for before, after in itertools.pairwise(known):
    for phase, seconds in after.phases.items():
      if seconds - before.phases.get(phase, 0.0) > _BEND * before.seconds:
        lines.append(
          f"- **The line bends between {before.num_chips:,} and"
          f" {after.num_chips:,} chips**, and where is not known, because no"
          f" size between them was compiled. The phase `{phase}` goes from"
          f" {before.phases.get(phase, 0.0):.3f} s to {seconds:.3f} s. In the"
          f" token loop {after.waits:,} collectives send"
          f" {after.in_loop / 1e9:.2f} GB, in the place of {before.waits:,} and"
          f" {before.in_loop / 1e9:.2f} GB."
        )
  return "\n".join(lines) + "\n"


def page(every: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> str:
  """Text of the page, from each family's reports: a table and its bends."""
  parts = [_HEADING]
  for name, reports in every.items():
    family = FAMILIES[name]
    found = points(family, reports)
    if not found:
      continue
    text = (
      f"## {name}\n\n{family.checkpoint} on {family.chip}: {family.prompts}"
      f" prompt{'s' if family.prompts > 1 else ''} of 8 completions for a chip,"
      f" micro-batches of {family.rows} rows for a chip, slices of at most"
      f" {family.slice_chips:,} chips.\n\n{table(found)}\n\n{bends(found)}"
    )
    shown = {one.num_chips for one in found}
    if missing := [size for size in SIZES if size not in shown]:
      text += (
        f"- Not shown: {', '.join(f'{size:,}' for size in missing)} chips. They"
        " are several slices, of which no size was compiled.\n"
      )
    if off := errors(family, reports):
      text += (
        "- Where the compiler is known, the formula from the nearest other size"
        f" is off by at most {off[0]:.0%} in time, {off[1]:.0%} in bytes sent"
        f" and {off[2]:.0%} in memory.\n"
      )
    parts.append(text)
  return "\n".join(parts) + _ENDING


def names() -> list[str]:
  """The sizes that are compiled, FAMILY-CHIPS."""
  return [
    f"{name}-{num_chips}"
    for name, family in FAMILIES.items()
    for num_chips in family.compiled
  ]


_COMPILE = flags.DEFINE_list("compile", names(), "Sizes to compile anew.")


def main(argv: Sequence[str]) -> int:
  """Compiles sizes, writes page and figure; returns 1 if a size broke off."""
  del argv
  asked = {}
  for size in _COMPILE.value:
    name, _, count = size.rpartition("-")
    if name not in FAMILIES or not count.isdigit() or int(count) not in SIZES:
      raise ValueError(
        f"--compile: there is no size {size!r}; needs FAMILY-CHIPS with a"
        f" family of {', '.join(FAMILIES)} and chips of"
        f" {', '.join(map(str, SIZES))}."
      )
    asked[size] = arguments(FAMILIES[name], int(count))
  failed = rows.compile_all(asked, FOLDER, (".json",))
  reports = {name: read(name, FOLDER) for name in FAMILIES}
  FOLDER.with_suffix(".md").write_text(page(reports), encoding="utf-8")
  found = {name: points(FAMILIES[name], of) for name, of in reports.items()}
  plot(found, FOLDER.with_suffix(".png"))
  return 1 if failed else 0


if __name__ == "__main__":
  flags_lib.run(main)

r"""Compiles a training step for TPUs that are not there, and reports its costs.

    python -m experiments.pods.report --config=configs/pods.py \
        --config.model.checkpoint=Qwen/Qwen2.5-7B \
        --topology=v5p-128 --mesh=fsdp:16,tensor:4 --save=runs/pod

The whole step is compiled as one program for one mesh: rollout, reward,
reference, update and optimizer. The compiler is in libtpu, which
`pip install -e '.[tpu]'` brings; a TPU and a checkpoint are not needed. The
report is printed, and written to SAVE.json and SAVE.md. It has

- a verdict in a sentence;
- whether the program fits, which the compiler decides, and the contents of the
  HBM of a device; --largest_batch compiles with other numbers of prompts until
  the largest that fits is known within a quarter;
- operations, HBM bytes and bytes sent between chips by phase, with the trip
  counts of loops (`costs.py` has the method), if every completion runs to its
  full length;
- weights that are gathered for each token, and transfers to the host. Both are
  defects, and there should be none;
- the way in which devices share the update, and changes that would make a step
  shorter or smaller;
- the least time of the step: the sum over phases of the longest of operations,
  HBM and links at the vendor's peak (`chips.py`). HBM bytes are an estimate: of
  the traffic that the program schedules, without repeated reads of a kernel.

--mesh=auto compiles for each mesh that is worth a look (`meshes.candidates`)
and whose estimated memory is not far above that of a device. It ranks those
that fit by the least time of a step, and prints the command that starts the run
on the first of them.

With --price of a chip-hour the report has the least price of a step. The
compiler takes minutes and may take half an hour. Meanwhile lines on standard
error name its current work.

The time is a bound and not a forecast. Latencies, element-wise work, conflicts
of links and everything that is not overlapped come on top, and kernels that do
not declare their operations and that `kernels.py` does not know. In a token
loop, where thousands of small collectives follow each other, latency may be the
larger part. None of this verifies results, speed or start-up on real TPUs.

Deviations from the program of a run: completions are learnt at their full
length only (config.rl.num_lengths=1; others have the same loops with fewer
slots), and verifiers on the host are left out: their scores are an input.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import math
import pathlib
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import jax
import ml_collections
from absl import flags

from experiments.pods import advice, chips, held, meshes, steps
from experiments.pods import flags as pod_flags
from grpo_jax import ranges
from grpo_jax.cli import flags as flags_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import build
from grpo_jax.training.runtime import sharding

_CONFIG = flags_lib.define_config()
_LARGEST = flags.DEFINE_bool(
  "largest_batch", False, "Look for the largest number of prompts that fits."
)
_PRICE = flags.DEFINE_float(
  "price", None, "Of a chip-hour, in any currency; says what a step costs.", 0
)
_ROLLOUT = flags.DEFINE_bool(
  "rollout", False, "Compile the rollout alone, in less time and memory."
)
_SAVE = flags.DEFINE_string("save", "", "Write SAVE.json and SAVE.md.")


def report(
  name: str,
  config: config_lib.RunConfig,
  target: steps.Target,
  only_rollout: bool = False,
) -> dict[str, Any]:
  """Compiles the step, or its rollout, and returns all; see the module."""
  name_of_phase, phase = config.phases[-1], config.stages[-1]
  chip = target.slice.chip
  mesh = held.mesh_of(config, len(target.devices), target.num_slices)
  plan = held.update_plan(config, held.sizes(config), mesh)
  results: dict[str, Any] = {
    "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
    "jax": jax.__version__,
    "libtpu": importlib.metadata.version("libtpu"),
    "config": name,
    "model": config.model.checkpoint,
    "topology": target.slice.topology,
    "product": target.slice.product,
    "slices": target.num_slices,
    "chips": target.num_chips,
    "devices": len(target.devices),
    "mesh": _mesh_shape(config, target.devices),
    "num_prompts": phase.num_prompts,
    "group_size": phase.group_size,
    "micro_batch_size": plan.micro_batch_size,
    "micro_batches": plan.num_epochs * phase.num_rows // plan.micro_batch_size,
    "update": "the rollout alone"
    if only_rollout
    else build.update_path(name_of_phase, phase, plan),
    "hbm_of_chip": chip.hbm,
    "chip": {
      "flops_per_s": chip.flops,
      "hbm_bytes_per_s": chip.hbm_bandwidth,
      "ici_bytes_per_s": chip.ici_bandwidth,
      "dcn_bytes_per_s": chip.dcn_bandwidth,
    },
  }
  print(
    f"{target.slice.product}, {meshes.spelled(results['mesh'])}: a step of"
    f" {phase.num_rows} rows for {len(target.devices)} devices; takes minutes,"
    " and up to half an hour for a large model",
    file=sys.stderr,
    flush=True,
  )
  try:
    compiled = steps.compile_step(
      config, target.devices, only_rollout=only_rollout
    )
  except steps.TooLargeError as error:
    return results | {"fits": False, "compiler": str(error)}
  return results | {"fits": True} | steps.of_program(compiled, target)


def _mesh_shape(config, devices) -> dict[str, int]:
  mesh = sharding.make_mesh(**dataclasses.asdict(config.mesh), devices=devices)
  return dict(mesh.shape)


def largest_batch(config: config_lib.RunConfig, target: steps.Target) -> int:
  """The largest number of prompts that fits, within a quarter; 0 for none.

  Doubles or halves until one fits and one does not, and then tries the middle.
  """
  phase = config.stages[-1]
  shards = math.prod(
    size
    for axis, size in _mesh_shape(config, target.devices).items()
    if axis != "tensor"
  )
  rows = phase.num_minibatches * math.lcm(phase.micro_batch_size or 1, shards)
  # Every device has whole groups, and minibatches and micro-batches divide.
  unit = math.lcm(shards, rows // math.gcd(rows, phase.group_size))

  def fits(num_prompts: int) -> bool:
    changed = config.with_section(config.phases[-1], num_prompts=num_prompts)
    try:
      steps.compile_step(changed, target.devices)
    except steps.TooLargeError:
      found = False
    else:
      found = True
    said = "fit" if found else "do not fit"
    print(f"{num_prompts} prompts {said}", file=sys.stderr, flush=True)
    return found

  low, high = 0, 0
  tried = max(phase.num_prompts // unit, 1) * unit
  while not (low and high):
    if fits(tried):
      low, tried = tried, 2 * tried
    else:
      high, tried = tried, tried // 2 // unit * unit
    if not tried:
      return low
  while high - low > max(low // 4, unit):
    middle = (low + high) // 2 // unit * unit
    low, high = (middle, high) if fits(middle) else (low, middle)
  return low


def verdict(results: dict[str, Any]) -> str:
  """The verdict in a sentence: whether it fits, its use, its longest part."""
  if not results["fits"]:
    return "verdict: does NOT fit into the memory of a device."
  per_chip = results["devices"] // results["chips"]
  longest, phase = max(
    results["phases"].items(), key=lambda item: item[1]["at_least_s"]
  )
  seconds = phase["seconds"]
  share = phase["at_least_s"] / max(results["at_least_s"], 1e-30)
  text = (
    f"verdict: fits, with {_gib(results['hbm']['total'])} of"
    f" {_gib(results['hbm_of_chip'] / per_chip)} GiB; a step takes at least"
    f" {results['at_least_s']:.3g} s, {share:.0%} of it in {longest}"
    f" ({max(seconds, key=seconds.__getitem__)})"
  )
  defects = [
    what
    for key, what in (
      ("weight_gathers", "weights are gathered for each token"),
      ("host_transfers", "it sends to the host"),
    )
    if results[key]
  ]
  return text + "".join(f"; DEFECT: {what}" for what in defects) + "."


def table(results: dict[str, Any]) -> str:
  """Main results for a reader, in lines of at most 80 columns."""
  mesh = " x ".join(f"{axis} {n}" for axis, n in results["mesh"].items())
  slices = f"{results['slices']} x " if results["slices"] > 1 else ""
  lines = [
    *textwrap.wrap(verdict(results), 80, subsequent_indent="  "),
    " ".join(filter(None, (results["config"], results["model"]))),
    f"{slices}{results['topology']} ({slices}{results['product']}):"
    f" {ranges.counted(results['chips'], 'chip')},"
    f" {ranges.counted(results['devices'], 'device')}",
    f"mesh {mesh}",
    f"{ranges.counted(results['num_prompts'], 'prompt')} x"
    f" {ranges.counted(results['group_size'], 'completion')},"
    f" micro-batches of {results['micro_batch_size']} rows",
    *textwrap.wrap(results["update"], 80, subsequent_indent="  "),
    f"{results['date']}, jax {results['jax']}, libtpu {results['libtpu']}",
  ]
  if not results["fits"]:
    return "\n".join([*lines, f"fits: NO. {results['compiler']}"])
  lines.append(
    f"compiled in {results['compile_s']:.0f} s (traced in"
    f" {results['lower_s']:.0f} s)"
  )
  per_chip = results["devices"] // results["chips"]
  lines.append(
    f"fits: yes, {_gib(results['hbm']['total'])} of"
    f" {_gib(results['hbm_of_chip'] / per_chip)} GiB on a device"
  )
  if "largest_batch" in results:
    lines.append(f"largest batch that fits: {results['largest_batch']} prompts")
  lines += ["", f"{'HBM of a device':<28}{'GiB':>9}"]
  for kind, size in results["hbm"].items():
    if not size:
      continue
    shown = {
      "cache": "  of it keys and values",
      "weights": "  of it layers to sample",
    }.get(kind, kind)
    lines.append(f"  {shown:<26}{_gib(size):>9}")
  lines += [
    "",
    f"{'step of a device':<12}{'TFLOP':>8}{'HBM GB':>9}{'sent GB':>9}"
    f"{'async':>7}{'at least s':>12}  of",
  ]
  for name, phase in results["phases"].items():
    seconds = phase["seconds"]
    lines.append(
      f"  {name:<14}{phase['flops'] / 1e12:>8.3g}"
      f"{phase['hbm_bytes'] / 1e9:>9.3g}{phase['sent_bytes'] / 1e9:>9.3g}"
      f"{phase['async_share']:>7.0%}{phase['at_least_s']:>12.4f}"
      f"  {max(seconds, key=seconds.__getitem__)}"
    )
  lines.append(f"  {'together':<47}{results['at_least_s']:>12.4f}")
  lines += ["", "collectives of a step"]
  for name, phase in results["phases"].items():
    if phase["collectives"]:
      kinds = ", ".join(
        f"{count:,} {kind}" for kind, count in phase["collectives"].items()
      )
      lines += textwrap.wrap(
        f"  {name:<14}{kinds}", 80, subsequent_indent=" " * 16
      )
  update = results["phases"].get("update", {"collectives": {}})
  if reduced := update["collectives"].get("all-reduce"):
    lines.append(
      f"the update has {results['micro_batches']:,} micro-batches, and"
      f" {reduced / results['micro_batches']:.0f} all-reduces for each"
    )
  loop = results["in_token_loop"]
  lines += [
    "",
    f"in the token loop, of at most {results['decode_steps']:,} steps:"
    f" {loop['collectives']:,} collectives, {loop['sent_bytes'] / 1e9:.3g} GB",
    f"weights gathered for each token: {len(results['weight_gathers'])}",
    f"transfers to the host: {len(results['host_transfers'])}",
  ]
  if results["slices"] > 1:
    sent = sum(of["slices_bytes"] for of in results["phases"].values())
    lines.append(
      f"between slices: {results['slice_transfers']} transfers,"
      f" {sent / 1e9:.3g} GB leave a device"
    )
  if results["loops_without_bound"]:
    lines.append(
      "loops that are counted once, for want of a bound:"
      f" {len(results['loops_without_bound'])}"
    )
  if results["kernels_without_cost"]:
    lines.append("kernels whose operations are not counted")
    for name, count in results["kernels_without_cost"].items():
      lines.append(f"  {count:>9,} {name[:68]}")
  return "\n".join(lines)


def _gib(size: float) -> str:
  return f"{size / 2**30:.2f}"


def main(argv: Sequence[str]) -> int:
  """Compiles, prints and writes; 1 if it does not fit."""
  del argv
  # The host must not look for a TPU: libtpu is nothing but a compiler here.
  jax.config.update("jax_platforms", "cpu")
  # Programs for devices elsewhere would be written there and never read.
  jax.config.update("jax_enable_compilation_cache", False)
  of = chips.parse(pod_flags.TOPOLOGY.value)
  devices = chips.devices(of, pod_flags.SLICES.value)
  target = steps.Target(of, pod_flags.SLICES.value, devices)
  given: ml_collections.ConfigDict = _CONFIG.value
  given.allow_unpublished = True  # Nothing is trained.
  axes = "" if pod_flags.MESH.value == "auto" else pod_flags.MESH.value
  config = meshes.replaced(config_lib.resolve(given), axes)
  config = config.with_section(config.phases[-1], num_lengths=1)
  if _ROLLOUT.value and (pod_flags.MESH.value == "auto" or _LARGEST.value):
    raise ValueError(
      f"--rollout with --mesh={pod_flags.MESH.value} and --largest_batch="
      f"{_LARGEST.value}: both compare whole steps; leave --rollout out, or"
      " name a mesh and leave out --largest_batch."
    )
  if pod_flags.MESH.value == "auto":
    from experiments.pods import ranking  # Which reports on each mesh.

    given_args = [x for x in sys.argv[1:] if x.startswith("--config")]
    return ranking.main(report, config, target, given_args, _PRICE.value)
  name = str(flags.FLAGS["config"].config_filename)
  results = report(name, config, target, _ROLLOUT.value)
  if _LARGEST.value:
    results["largest_batch"] = largest_batch(config, target)
  print(*(table(results), *steps.cost(results, _PRICE.value)), sep="\n")
  room = of.chip.hbm // target.devices_per_chip
  where = config, len(devices), pod_flags.SLICES.value, room
  if results["fits"]:
    print(*advice.faster_lines(advice.faster(*where)), sep="\n")
  else:
    print(*advice.lines(advice.changes(*where)), sep="\n")
  if _SAVE.value:
    write(pathlib.Path(_SAVE.value), results)
  return 0 if results["fits"] else 1


def write(stem: pathlib.Path, results: dict[str, Any]) -> None:
  """Writes STEM.json and STEM.md."""
  stem.parent.mkdir(parents=True, exist_ok=True)
  text = json.dumps(results, indent=2) + "\n"
  stem.with_name(stem.name + ".json").write_text(text, encoding="utf-8")
  page = f"# {stem.name}\n\n```\n{table(results)}\n```\n"
  stem.with_name(stem.name + ".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
  flags_lib.run(main)

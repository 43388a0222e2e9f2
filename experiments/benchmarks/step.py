r"""Time and memory of a whole training step and of its parts, beside floors.

    python -m experiments.benchmarks.step --preset=S
    python -m experiments.benchmarks.step --preset=S --mode=split
    python -m experiments.benchmarks.step --preset=S --completion_len=256 \
        --length_distribution=geometric --json=runs/geometric.json

The step is one GRPO step of a random Qwen2-shaped transformer (biases on
queries, keys and values, SwiGLU, tied head), by the functions that train:
sampling, verifier, one AdamW update, no KL.

- --mode=fused times the one program.
- --mode=split times the driver whose verifiers are processes of the host.
  --verifier_s adds seconds to them. With --staleness, rollouts of the next
  steps are drawn meanwhile. Then steps are timed in trains of eight, and each
  has the forward pass that the anchor of its importance weights needs.

The parts are compiled alone and called in turn, so that a load on the machine
meets them all: policy prefill; rollout (prefill and the decoding loop; "decode"
is the difference); verifier; log-probs alone, which are not a part of the step;
update (advantages, gradient, optimizer, metrics) on a fixed rollout.
Compilation is not counted.

There is no end token. The length of every row is prescribed
(`workload.lengths`): the sampler gets the number of tokens of each row.

With --lanes the sampler decodes at most that number of rows at a time. The same
rollout is then timed in three ways: all rows at once until the longest has
ended; batches of as many rows as there are lanes, each until its longest row
has ended; and lanes that are refilled.

Floors are the FLOPs of matrix products over the best rate of a product, or the
bytes over the best rate of reading, whichever takes longer. Both rates are
measured in the same rounds. `workload.py` defines the counts: "full" is every
row in full, "rows" leaves out padding, "shared" also has the prompt once per
group in the update, "least" is the tokens that exist. Weights that fit into a
cache may be read faster than memory is, so a small model could decode below its
floor.

The memory of a program is the compiler's plan for arguments, outputs and
temporaries. The peak is that of the process (of the device, on an accelerator)
after one step was compiled and run, before the parts were.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import statistics
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags

from experiments.benchmarks import inputs, timing, workload
from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.runtime import sharding

_PRESET = flags.DEFINE_enum(
  "preset", "S", list(workload.PRESETS), "Of the sizes that are not given."
)
_SIZES = {
  name: flags.DEFINE_integer(name, None, text, 1)
  for name, text in {
    "hidden": "Width of the model.",
    "layers": "Of the model.",
    "heads": "Of queries.",
    "kv_heads": "Of keys and values.",
    "mlp_width": "Inside the SwiGLU; without a preset's 4 x hidden.",
    "vocab": "Token ids; by default 1024.",
    "prompt_len": "Tokens of a prompt.",
    "completion_len": "Slots of a completion.",
    "prompts": "Of a step.",
    "group": "Completions per prompt.",
  }.items()
}
_DTYPE = flags.DEFINE_enum(
  "dtype", "float32", ["float32", "bfloat16"], "Of activations and products."
)
_DISTRIBUTION = flags.DEFINE_enum(
  "length_distribution",
  "fixed",
  list(workload.DISTRIBUTIONS),
  "Of the tokens in a completion.",
)
_LENGTH_MEAN = flags.DEFINE_float("length_mean", 36.0, "Of these, tokens.", 1)
_MODE = flags.DEFINE_enum("mode", "fused", ["fused", "split"], "Of the step.")
_STALENESS = flags.DEFINE_integer(
  "staleness", 0, "Updates that rollouts may be behind; with --mode=split.", 0
)
_VERIFIER_S = flags.DEFINE_float(
  "verifier_s", 0.0, "Seconds to sleep in each verifier; --mode=split.", 0
)
_MICRO = flags.DEFINE_integer(
  "micro_batch_size", None, "Rows; by default what training takes.", 1
)
_LANES = flags.DEFINE_integer(
  "lanes", None, "Rows that are decoded at once; by default all.", 1
)
_NUM_LENGTHS = flags.DEFINE_integer(
  "num_lengths", None, "That the update is compiled for; as training has.", 1
)
_REPEATS = flags.DEFINE_integer("repeats", 5, "Rounds that are counted.", 1)
_JSON = flags.DEFINE_string("json", None, "File for the same and more.")
_MIB = 2**20


def report(
  work: workload.Work, bench: timing.Bench, repeats: int
) -> dict[str, Any]:
  """Measures everything in turn; returns the contents of table and file."""
  limits = timing.ceilings(work, bench.phase.plan.micro_batch_size)
  flat = {
    f"{unit}/{name}": ceiling
    for unit, group in limits.items()
    for name, ceiling in group.items()
  }
  before = os.getloadavg()[0]
  seconds = timing.measure(
    {name: ceiling.run for name, ceiling in flat.items()} | bench.runs, repeats
  )
  rates = {
    unit: {
      name: ceiling.amount / min(seconds[f"{unit}/{name}"])
      for name, ceiling in group.items()
    }
    for unit, group in limits.items()
  }
  best = [max(rates[unit].values()) for unit in ("flops_per_s", "bytes_per_s")]

  def beside(measured: dict, costs: dict[str, workload.Cost]) -> dict:
    """Adds the floor of each kind to `measured`."""
    floors = {}
    for kind, cost in costs.items():
      floor = cost.seconds(*best)
      floors[kind] = {
        "flops": float(cost.flops),
        "bytes": float(cost.bytes),
        "seconds": floor,
        "ratio": measured["median_s"] / floor,
      }
    return {**measured, "floors": floors}

  seconds["step"] = [value / bench.steps for value in seconds["step"]]
  # Of the same round, so that both have met the same load.
  seconds["decode"] = [
    whole - start
    for whole, start in zip(seconds["rollout"], seconds["prefill"], strict=True)
  ]
  costs = {kind: workload.costs(work, kind) for kind in workload.KINDS}
  phases = {}
  for name in workload.PHASES:
    each = {kind: of_kind[name] for kind, of_kind in costs.items()}
    phases[name] = beside(timing.spread(seconds[name]), each)
    if name in bench.programs:
      program = bench.programs[name]
      phases[name] |= {
        "compile_s": program.compile_s,
        "program_bytes": program.bytes,
      }

  decode_steps = {}
  for name, filled in bench.fills.items():
    each = [value / bench.window for value in seconds[name]]
    cost = workload.decode_step(work, filled)
    decode_steps[name] = {
      "filled": filled,
      **beside(timing.spread(each), {"full": cost}),
    }
  n = workload.lengths(work)  # [B]
  rollouts = {
    name: {
      **timing.spread(seconds[name]),
      "tokens_per_s": float(n.sum()) / statistics.median(seconds[name]),
      "compile_s": program.compile_s,
      "program_bytes": program.bytes,
    }
    for name, program in bench.rollouts.items()
  }
  if bench.metrics["tokens/generated"] != n.sum():
    raise RuntimeError(
      f"the rollout has {bench.metrics['tokens/generated']:.0f} tokens and"
      f" {n.sum()} were prescribed; the sampler does not obey the lengths."
    )
  step_s = phases["step"]["median_s"]
  device = jax.devices()[0]
  return {
    "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
    "device": device.device_kind,
    "cores": os.cpu_count(),
    "machine": platform.machine(),
    "jax": jax.__version__,
    "load": [before, os.getloadavg()[0]],
    "work": dataclasses.asdict(work),
    "micro_batch_size": bench.phase.plan.micro_batch_size,
    "lengths_compiled": [work.completion_len, *bench.phase.plan.lengths],
    "staleness": bench.phase.staleness,
    "repeats": repeats,
    "parameters": work.layer_weights + work.head_weights,
    "lengths": {
      "mean": float(n.mean()),
      "max": int(n.max()),
      "rows": n.tolist(),
      "padding": 1 - float(n.mean()) / work.completion_len,
    },
    "ceilings": rates,
    "phases": phases,
    "decode_step": decode_steps,
    "rollouts": rollouts,
    "tokens_per_s": float(n.sum()) / step_s,
    "peak_bytes": bench.peak_bytes,
    "metrics": {name: float(value) for name, value in bench.metrics.items()},
  }


def _ratio(x: float) -> str:
  """Formats a ratio in at most five characters."""
  return f"{x:.1f}" if x < 100 else f"{x:.0f}" if x < 1000 else f"{x:.0e}"


def table(results: dict[str, Any]) -> str:
  """Returns the main results for a reader, in lines of at most 100 columns."""
  work, lengths = results["work"], results["lengths"]
  rates = {unit: max(of.values()) for unit, of in results["ceilings"].items()}
  slots = map(str, results["lengths_compiled"])
  ahead = ""
  if results["mode"] == "split":
    ahead = (
      f" (staleness {results['staleness']}, verifier +"
      f" {results['verifier_s']:g} s)"
    )
  lines = [
    f"{results['date']}, {results['device']}, {results['cores']} cores,"
    f" JAX {results['jax']}, load {results['load'][0]:.1f} before and"
    f" {results['load'][1]:.1f} after",
    f"{results['mode']} step{ahead}",
    f"{results['parameters'] / 1e6:.2f} M parameters, {work['dtype']}: hidden"
    f" {work['hidden']},"
    f" {work['layers']} layers, {work['heads']} / {work['kv_heads']} heads,"
    f" vocabulary {work['vocab']}",
    f"{work['prompts']} x {work['group']} rows of {work['prompt_len']} +"
    f" {work['completion_len']} tokens, micro-batches of"
    f" {results['micro_batch_size']} rows of {' / '.join(slots)} tokens; median"
    f" of {results['repeats']}",
    f"lengths {work['length_distribution']}: mean {lengths['mean']:.1f}, max"
    f" {lengths['max']}, padding {lengths['padding']:.0%} of the slots",
    f"ceilings: {rates['flops_per_s'] / 1e9:,.0f} GFLOP/s,"
    f" {rates['bytes_per_s'] / 1e9:,.1f} GB/s",
    "",
    f"{'':<10}{'seconds':>9}{'min':>9}{'compile':>9}{'MiB':>7}"
    + "".join(f"{kind:>8}{'x':>6}" for kind in workload.KINDS),
  ]
  for name, phase in results["phases"].items():
    line = f"{name:<10}" + "".join(
      f"{phase[key]:>9.3g}" for key in ("median_s", "min_s")
    )
    if "compile_s" in phase:
      line += f"{phase['compile_s']:>9.1f}"
      line += f"{phase['program_bytes'] / _MIB:>7.0f}"
    else:
      line += " " * 16
    for floor in phase["floors"].values():
      line += f"{floor['seconds']:>8.2g}{_ratio(floor['ratio']):>6}"
    lines.append(line)

  lines += [
    "",
    f"{'floors':<10}"
    + "".join(f"{kind + ' GFLOP':>13}{'GB':>9}" for kind in workload.KINDS),
  ]
  for name, phase in results["phases"].items():
    lines.append(
      f"{name:<10}"
      + "".join(
        f"{floor['flops'] / 1e9:>13.4g}{floor['bytes'] / 1e9:>9.3g}"
        for floor in phase["floors"].values()
      )
    )

  lines.append("")
  first = None
  for name, of in results["decode_step"].items():
    floor = of["floors"]["full"]
    now = of["median_s"], floor["seconds"]
    first = first or now
    lines.append(
      f"{name:<15}: {of['filled']:.1f} filled slots, {now[0] * 1e3:.3f} ms per"
      f" token, x {now[0] / first[0]:.2f}; floor {now[1] * 1e3:.3f} ms,"
      f" x {now[1] / first[1]:.2f}"
    )
  for name, of in results["rollouts"].items():
    lines.append(
      f"rollout, {name:<14}: {of['median_s']:.3f} s,"
      f" {of['tokens_per_s']:,.0f} tokens/s without padding, compiled in"
      f" {of['compile_s']:.1f} s"
    )
  if results["peak_bytes"] is not None:
    lines.append(
      f"peak memory with the step alone: {results['peak_bytes'] / _MIB:,.0f}"
      " MiB"
    )
  lines.append(
    f"{results['tokens_per_s']:,.0f} completion tokens/s without padding"
  )
  return "\n".join(lines)


def work_of_flags() -> workload.Work:
  """The sizes that the command line asks for."""
  sizes = {name: flag.value for name, flag in _SIZES.items()}
  return workload.of_preset(
    _PRESET.value,
    **{name: value for name, value in sizes.items() if value is not None},
    dtype=_DTYPE.value,
    length_distribution=_DISTRIBUTION.value,
    length_mean=_LENGTH_MEAN.value,
  )


def main(argv: Sequence[str]) -> int:
  """Measures, prints the table and writes the file."""
  del argv
  if _MODE.value == "fused" and (_STALENESS.value or _VERIFIER_S.value):
    raise ValueError(
      f"--staleness={_STALENESS.value} --verifier_s={_VERIFIER_S.value}: the"
      " fused program has no verifier on the host; add --mode=split."
    )
  work = work_of_flags()
  mesh = sharding.make_mesh(1)
  with (
    contextlib.closing(
      inputs.make_problem(work, _MODE.value, _VERIFIER_S.value)
    ) as of,
    jax.set_mesh(mesh),
  ):
    phase = {"micro_batch_size": _MICRO.value, "staleness": _STALENESS.value}
    if _NUM_LENGTHS.value:
      phase["num_lengths"] = _NUM_LENGTHS.value
    bench = timing.Bench(work, of, mesh, _LANES.value, **phase)
    results = {
      "mode": _MODE.value,
      "verifier_s": _VERIFIER_S.value,
      **report(work, bench, _REPEATS.value),
    }
  print(table(results))
  if _JSON.value:
    text = json.dumps(results, indent=2) + "\n"
    pathlib.Path(_JSON.value).write_text(text, encoding="utf-8")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)

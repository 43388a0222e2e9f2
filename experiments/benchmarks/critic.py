r"""What a critic costs: PPO beside GRPO at equal samples.

    python -m experiments.benchmarks.critic --preset=S --json=critic.json

The fused step of `experiments.benchmarks.step` with as many completions for
each algorithm: GRPO draws groups of them, PPO one for each prompt, so its
prompts are that many more. "PPO, grouped" draws GRPO's groups, and so has the
critic as the only difference. Everything is timed in the same rounds. Of the
flags of that program, the sizes, --repeats and --json are read.

A critic with a trunk of its own has one forward pass for the values before the
update, and for each of its K gradient steps three (a forward, and two products
in the backward for each of it), all without the head: its floor. A shared trunk
has no backward pass: 1 + K forward passes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from jax.sharding import Mesh

from experiments import flags as flags_lib
from experiments.benchmarks import inputs, timing, workload
from experiments.benchmarks import step as step_benchmark
from grpo_jax.learning import stages
from grpo_jax.training import config as config_lib
from grpo_jax.training import drivers, sharding

_OWN = config_lib.CriticConfig()
# Name -> (algorithm, completions per prompt or None for the preset's, critic).
CASES: dict[str, tuple[str, int | None, config_lib.CriticConfig | None]] = {
  "GRPO": ("grpo", None, None),
  "PPO, grouped": ("ppo", None, _OWN),
  "PPO": ("ppo", 1, _OWN),
  "PPO, K = 2": ("ppo", 1, dataclasses.replace(_OWN, num_updates=2)),
  "PPO, attention frozen": (
    "ppo",
    1,
    dataclasses.replace(_OWN, freeze=("attention",)),
  ),
  "PPO, shared trunk": ("ppo", 1, config_lib.CriticConfig(trunk="shared")),
}


class Case:
  """One compiled step."""

  def __init__(self, name: str, work: workload.Work, mesh: Mesh):
    algorithm, group, critic = CASES[name]
    if group is not None:
      work = dataclasses.replace(work, prompts=work.rows // group, group=group)
    self.work, self.critic = work, critic
    with contextlib.closing(inputs.make_problem(work, "fused")) as of:
      parts, self._state = inputs.make_parts(
        work, of, mesh, algorithm=algorithm, critic=critic
      )
    self.parameters = sum(x.size for x in jax.tree.leaves(self._state.params))
    batch = inputs.make_batch(work)
    self._prompts = jax.device_put(batch.prompts, sharding.by_rows(mesh))
    self.program = timing.compiled(
      drivers.jit_step(mesh, stages.fused_step, parts),
      self._state,
      self._prompts,
    )

  def __call__(self) -> None:
    """Runs a step."""
    self._state, metrics, _ = jax.block_until_ready(
      self.program.call(self._state, self._prompts)
    )
    written = int(metrics["tokens/generated"])
    if written != self.work.rows * self.work.completion_len:
      raise RuntimeError(f"a step wrote {written} tokens, not all slots.")


def measure(work: workload.Work, repeats: int) -> dict[str, Any]:
  """Seconds, bytes and floors of all cases."""
  mesh = sharding.make_mesh(1)
  with jax.set_mesh(mesh):
    cases = {name: Case(name, work, mesh) for name in CASES}
    size = 2048
    product = jax.jit(jnp.matmul)
    x = jax.random.normal(jax.random.key(0), (size, size), work.dtype)
    seconds = timing.measure(
      {"product": lambda: product(x, x), **cases}, repeats
    )
  rate = 2 * size**3 / min(seconds["product"])
  rows = {}
  for name, case in cases.items():
    floor = 0.0
    if case.critic is not None:
      flops = workload.critic_flops(
        case.work, case.critic.trunk == "shared", case.critic.num_updates
      )
      floor = flops / rate
    rows[name] = {
      **timing.spread(seconds[name]),
      "of_grpo": statistics.median(
        a / b for a, b in zip(seconds[name], seconds["GRPO"], strict=True)
      ),
      "critic_floor_s": floor,
      "program_bytes": case.program.bytes,
      "parameters": case.parameters,
      "compile_s": case.program.compile_s,
    }
  return {
    "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
    "device": jax.devices()[0].device_kind,
    "cores": os.cpu_count(),
    "jax": jax.__version__,
    "work": dataclasses.asdict(work),
    "gflops_per_s": rate / 1e9,
    "repeats": repeats,
    "cases": rows,
  }


def table(results: dict[str, Any]) -> str:
  """What was measured, in Markdown."""
  work = results["work"]
  completions = work["prompts"] * work["group"]
  lines = [
    f"{results['date']}, {results['device']}, {results['cores']} cores, JAX"
    f" {results['jax']}, {results['gflops_per_s']:.0f} GFLOP/s; hidden"
    f" {work['hidden']}, {work['layers']} layers, {completions} completions of"
    f" {work['prompt_len']} + {work['completion_len']} tokens; median of"
    f" {results['repeats']}",
    "",
    "| | step, s | × GRPO | floor of the critic, s | MiB | parameters, M |",
    "|---|---|---|---|---|---|",
  ]
  lines += [
    f"| {name} | {row['median_s']:.2f} | {row['of_grpo']:.2f}"
    f" | {row['critic_floor_s']:.2f} | {row['program_bytes'] / 2**20:.0f}"
    f" | {row['parameters'] / 1e6:.2f} |"
    for name, row in results["cases"].items()
  ]
  return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
  """Measures, prints the table and writes the file."""
  del argv
  results = measure(step_benchmark.work_of_flags(), flags.FLAGS.repeats)
  print(table(results))
  if flags.FLAGS.json:
    text = json.dumps(results, indent=2) + "\n"
    pathlib.Path(flags.FLAGS.json).write_text(text, encoding="utf-8")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)

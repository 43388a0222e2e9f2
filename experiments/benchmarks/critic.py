r"""The cost of a critic: PPO beside GRPO at equal numbers of completions.

    python -m experiments.benchmarks.critic --preset=S --json=runs/critic.json

Each algorithm runs the fused step of `experiments.benchmarks.step` on the same
number of completions. GRPO draws a group for each prompt and PPO draws one
completion, so PPO has that many more prompts. "PPO, grouped" draws GRPO's
groups: there the critic is the only difference. All cases are timed in the same
rounds. Of the flags of that program, the sizes, --repeats and --json are read.

The floor of a critic leaves out the head. A critic with a trunk of its own has
one forward pass for the values before the update, and three for each of the K
gradient steps: the forward pass, and two products in the backward pass for each
product of it. A critic that shares the policy's trunk has no backward pass in
it: 1 + K forward passes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from experiments.benchmarks import compared, workload
from grpo_jax.cli import flags as flags_lib
from grpo_jax.settings import config as config_lib

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


def _sized(work: workload.Work, name: str) -> workload.Work:
  """The workload with the completions of a prompt that a case draws."""
  group = CASES[name][1]
  if group is None:
    return work
  return dataclasses.replace(work, prompts=work.rows // group, group=group)


def measure(work: workload.Work, repeats: int) -> dict[str, Any]:
  """Seconds, bytes and floors of all cases."""

  def make(mesh: Mesh) -> dict[str, compared.Step]:
    return {
      name: compared.Step(
        _sized(work, name), mesh, algorithm=algorithm, critic=critic
      )
      for name, (algorithm, _, critic) in CASES.items()
    }

  def floors(name: str, rate: float) -> dict[str, float]:
    critic, flops = CASES[name][2], 0.0
    if critic is not None:
      flops = workload.critic_flops(
        _sized(work, name), critic.trunk == "shared", critic.num_updates
      )
    return {"critic_floor_s": flops / rate}

  return compared.measure(work, repeats, make, "GRPO", floors)


def table(results: dict[str, Any]) -> str:
  """Returns the measurements as a Markdown table."""
  work = results["work"]
  completions = work["prompts"] * work["group"]
  lines = [
    f"{compared.machine(results)}, {completions} completions of"
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
  return compared.run(measure, table)


if __name__ == "__main__":
  flags_lib.run(main)

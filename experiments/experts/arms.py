"""The arms of the experiment on four domains, and their configs.

| arm           | how the policy gets to all domains                         |
|---------------|------------------------------------------------------------|
| `base`        | imitation of teachers that err; where all others start     |
| `mixed`       | GRPO on batches of all domains                             |
| `sequential`  | GRPO on one domain after another                           |
| `expert-NAME` | GRPO on one domain alone, then right completions are kept  |
| `opd-full`    | the experts are distilled: the whole distribution          |
| `opd-token`   | the same from the sampled tokens alone                     |
| `sft-experts` | the completions that the experts have kept are imitated    |

All draw the same number of completions: `mixed` and `sequential` in
`Size.steps` steps, the experts in fewer each, and `opd-full` and `opd-token` in
the steps that remain. The experts keep completions of that number of steps in
all; these are the budget of `sft-experts`. An arm's seed follows on the same
seed of `base` and of the experts.
"""

from __future__ import annotations

import copy
import pathlib
from typing import NamedTuple

import ml_collections

from experiments.sweeps import arms as sweeps_lib
from grpo_jax.configs import mixture
from grpo_jax.settings import config as config_lib

DOMAINS = tuple(str(part["name"]) for part in mixture.PARTS)


class Size(NamedTuple):
  """Amounts of computation.

  Attributes:
    num_seeds: Number of seeds of each arm.
    imitation: Number of steps of `base`.
    steps: Number of steps of `mixed`, and of `sequential` in all its phases.
    expert_steps: Number of steps of each expert.
    on_experts: Number of steps of `sft-experts`.
    num_prompts: Number of held-out prompts of each domain.
    gradient_prompts: Prompts of a gradient; a domain has four gradients.
  """

  num_seeds: int
  imitation: int
  steps: int
  expert_steps: int
  on_experts: int
  num_prompts: int
  gradient_prompts: int

  @property
  def keep_steps(self) -> int:
    """Number of steps in which each expert draws completions that are kept."""
    return self.steps // len(DOMAINS) - self.expert_steps

  @property
  def distillation_steps(self) -> int:
    """Steps of `opd-full` and `opd-token`."""
    return len(DOMAINS) * self.keep_steps


SIZES = {
  "full": Size(5, 1500, 400, 75, 200, 128, 128),
  "smoke": Size(2, 200, 8, 1, 2, 8, 8),
}
EXPERTS = tuple(f"expert-{domain}" for domain in DOMAINS)
COMPARED = ("mixed", "sequential", "opd-full", "opd-token", "sft-experts")
ARMS = ("base", "mixed", "sequential", *EXPERTS, *COMPARED[2:])
# Arms at whose end gradients of domains are compared.
MEASURED = ("base", "mixed", "opd-full")
_ALGORITHMS = {"opd-full": "opd_full", "opd-token": "opd_token"}
_SIZED = sweeps_lib.Sized(ARMS, SIZES)
sweep = _SIZED.sweep


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the runs that it follows on."""
  name, size = _SIZED.parsed(argument)
  config = mixture.get_config(_ALGORITHMS.get(name, "grpo"))
  config.rl.steps = size.steps
  config.sft.steps = size.imitation
  config.eval.num_prompts = size.num_prompts * len(DOMAINS)
  config.eval.batch_size = config.eval.num_prompts
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  config.log.traces_every = 0
  config.phases = ("rl",)
  if name == "base":
    config.phases = ("sft", "rl")
    config.rl.steps = 0  # An evaluation.
  elif name == "sequential":
    config.phases = tuple(f"on_{domain}" for domain in DOMAINS)
    for domain in DOMAINS:
      section = copy.deepcopy(config.rl)
      section.steps = size.steps // len(DOMAINS)
      section.domains = (domain,)
      section.reset_optimizer = False
      config[f"on_{domain}"] = section
    config[config.phases[0]].reset_optimizer = True
  elif name in EXPERTS:
    config.phases = ("rl", "keep")
    config.rl.steps = size.expert_steps
    config.rl.domains = (name.removeprefix("expert-"),)
    config.keep = config_lib.phase_config(
      "rejection",
      steps=size.keep_steps,
      num_prompts=config.rl.num_prompts,
      group_size=config.rl.group_size,
      domains=config.rl.domains,
    )
    config.keep.keep.most = config.rl.group_size
    config.keep.keep.distinct = "none"
  elif name == "sft-experts":
    config.phases = ("sft", "rl")
    config.sft.steps = size.on_experts
    config.rl.steps = 0
  elif name in _ALGORITHMS:
    config.rl.steps = size.distillation_steps
  return config


def follows_on(name: str, root: pathlib.Path) -> list[str]:
  """Overrides that name the runs that an arm follows on, of its own seed."""

  def of(arm: str) -> str:
    return f"{root}/{arm}/seed={{seed}}"

  if name == "base":
    return []
  found = [f"--config.start_workdir={of('base')}"]
  if name in _ALGORITHMS:
    teachers = tuple(of(expert) for expert in EXPERTS)
    found.append(f"--config.rl.reference_workdirs={teachers!r}")
  if name == "sft-experts":
    files = tuple(f"{of(expert)}/data-2-keep.jsonl" for expert in EXPERTS)
    found.append(f"--config.sft.demonstrations={files!r}")
  return found

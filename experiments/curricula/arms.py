"""The arms of the experiment on the choice of prompts, and their configs.

An arm is a sweep over seeds. `base` imitates a teacher. Every other arm begins
with the policy of `base` of its seed, draws from the same pool of prompts, and
generates the same number of completions. These arms differ in
`config.rl.schedule`. `spo` draws one completion of each prompt and has an
algorithm of its own for that; all others draw eight of each and use GRPO.
"""

from __future__ import annotations

import pathlib
from typing import NamedTuple

import ml_collections

from experiments.sweeps import arms as sweeps_lib
from grpo_jax.configs import curriculum

NUM_SEEDS = 5
BASE = "base"
# Schedule -> its name on the page.
ARMS = {
  BASE: "imitation of a teacher; all others go on",
  "uniform": "all prompts alike",
  "ads": "windows of clusters that move to harder prompts (ADS)",
  "frontier": "most often those that are solved half of the time",
  "easy_to_hard": "the easiest fifth at first, all at the end",
  "target": "those nearest to being solved half of the time",
  "spo": "one completion per prompt against a tracker (SPO)",
}
CLUSTERS = "clusters.npz"
TEACHER_ERROR = 0.6  # Probability of a carry that the teacher forgets.


class Size(NamedTuple):
  """Amounts of computation.

  Attributes:
    num_seeds: Number of seeds of each arm.
    imitation: Number of steps of `base`.
    steps: Number of steps of each other arm.
    every: Steps between evaluations.
    batch: Number of completions of a step.
    pool: Number of prompts to choose from.
    held_out: Number of prompts of an evaluation, equally many of each number of
      digits.
  """

  num_seeds: int
  imitation: int
  steps: int
  every: int
  batch: int
  pool: int
  held_out: int


SIZES = {
  "full": Size(NUM_SEEDS, 2000, 100, 20, 256, 1024, 512),
  "smoke": Size(2, 5, 4, 2, 64, 64, 16),
}
DIGITS = (1, 2, 3, 4)
DOMAINS = tuple(f"digits_{n}" for n in DIGITS)
TITLES = tuple(f"{n} digit{'s' * (n > 1)}" for n in DIGITS)  # Of these.
_GROUP = 8  # Completions of a prompt.
_DRAWN = 4  # Clusters of a step of `ads`.
_SIZED = sweeps_lib.Sized(ARMS, SIZES)
sweep = _SIZED.sweep


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on."""
  name, size = _SIZED.parsed(argument)
  config = curriculum.get_config("spo" if name == "spo" else "grpo")
  config.data.source = "mixture"
  config.data.mixture = tuple(
    {
      "name": "add",
      "domain": domain,
      "task_options": {
        "level": digits,
        "tags": False,
        "teacher_error": TEACHER_ERROR,
      },
    }
    for digits, domain in zip(DIGITS, DOMAINS, strict=True)
  )
  config.rewards.functions = ("accuracy",)
  config.phases = ("sft",) if name == BASE else ("rl",)
  config.sft.steps = size.imitation
  config.sft.optimizer.schedule = "cosine"
  config.rl.steps = size.steps
  config.rl.num_lengths = 1  # Compiles faster.
  config.rl.group_size = 1 if name == "spo" else _GROUP
  config.rl.num_prompts = size.batch // config.rl.group_size
  schedule = config.rl.schedule
  schedule.name = "uniform" if name == BASE else name
  schedule.pool = size.pool
  if name == "easy_to_hard":
    schedule.pace_steps = size.steps // 2
  if name == "ads":
    schedule.drawn_clusters = _DRAWN
    schedule.window = window(size)
  config.eval.num_prompts = config.eval.batch_size = size.held_out
  config.eval.temperature = 1.0
  config.eval.every = 0 if name == BASE else size.every
  config.checkpoint.every = 0
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  config.log.traces_every = 0
  return config


def window(size: Size) -> int:
  """Prompts of a cluster that a step of `ads` draws."""
  return size.batch // _GROUP // _DRAWN


def embedding(size: Size) -> list[str]:
  """Flags of `experiments.embed` for the clusters of a pool."""
  return [
    f"--num_prompts={size.pool}",
    f"--num_clusters={size.pool // (4 * window(size))}",
    f"--least={window(size)}",
  ]


def follows_on(name: str, root: pathlib.Path) -> list[str]:
  """Overrides that name the run that an arm follows on, of its own seed."""
  if name == BASE:
    return []
  start = f"{root}/{BASE}/seed={{seed}}"
  found = [f"--config.start_workdir={start}"]
  if name == "ads":
    found.append(f"--config.rl.schedule.clusters={start}/{CLUSTERS}")
  return found

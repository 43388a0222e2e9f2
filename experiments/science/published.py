"""Seven algorithms on a published model, at equal completions.

SmolLM2-135M-Instruct learns the sums of `configs/published.py`. Known before
the rules were written: five seeds of GRPO, fifteen steps each, which rose from
0.37 to between 0.82 and 0.85, and Dr. GRPO's of the comparison with TRL. No
other algorithm had been run on this model.

Every arm draws 1024 completions, 64 a step, as eight of each of 8 prompts, or
("single") as one of each of 64. The learning rate is 2e-5 for all. PPO's critic
is a copy of the model with a head of its own, and the same rate; it learns
alone in the first four of PPO's sixteen steps. "Accuracy" is the share of right
greedy answers to the 100 held-out sums. Arms are compared seed by seed, with
the same prompts for the same seed in the same shape. Student's 95 % interval
over five seeds decides whether a check holds. A claim is confirmed if all of
its checks hold.

L1  Each of the seven ends above the published model.
G1  None of Dr. GRPO, DAPO, RLOO and GSPO ends below GRPO by a difference that
    the seeds show.
G2  Nor does one of them end above it.
R1  With GRPO's prompts REINFORCE++ does not end above GRPO.
M1  More prompts help REINFORCE++: one completion of each of 64 prompts is above
    eight of each of 8.
M2  More prompts help PPO.
C1  With GRPO's prompts PPO ends not below GRPO.
C2  With one completion a prompt the critic helps: PPO is above REINFORCE++.

Power: the accuracy of GRPO had a standard deviation of 0.025 over seeds. With
as much for every arm, five seeds show a difference of 0.04 with a probability
of 0.8; with 0.08, as in the shorter runs beside TRL, one of 0.14.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import ml_collections
import numpy as np

from experiments.science import arms, pages
from experiments.science.arms import Arm, Size
from experiments.science.claims import change, difference, table
from experiments.sweeps import figures
from grpo_jax.configs import published

MODEL = "smollm2"
# Two of its runs, side by side, would not fit into the memory of a laptop.
LAUNCHER = "local"
SINGLE = "-single"
SHAPES = {
  "grpo": Arm("GRPO", "grpo"),
  "reinforce_pp": Arm("REINFORCE++", "reinforce_pp"),
  "ppo": Arm("PPO", "ppo"),
  "rloo": Arm("RLOO", "rloo"),
  "dr_grpo": Arm("Dr. GRPO", "dr_grpo"),
  "gspo": Arm("GSPO", "gspo"),
  "dapo": Arm("DAPO", "dapo"),
  "reinforce_pp-single": Arm("REINFORCE++, single", "reinforce_pp"),
  "ppo-single": Arm("PPO, single", "ppo"),
}
ARMS = tuple(SHAPES)
ALGORITHMS = [name for name in ARMS if not name.endswith(SINGLE)]
STEPS = 16
CRITIC_STEPS = 4  # Of these, in which PPO's critic learns alone.
BATCH = 64
GROUP_SIZE = 8
RATE = 2e-5
LAST = 4  # Steps whose rewards are averaged.
ALL = arms.Arms(ARMS, {"full": Size(5)})
sweep, follows_on = ALL.sweep, ALL.follows_on


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm."""
  name, _ = ALL.parsed(argument)
  algorithm = SHAPES[name].algorithm
  config = published.get_config(f"{MODEL},{algorithm}")
  config.rl.steps = STEPS
  phases = [config.rl]
  if "critic" in config:
    config.phases = ("value", "rl")
    config.value.steps = CRITIC_STEPS
    config.rl.steps -= CRITIC_STEPS
    config.critic.optimizer.learning_rate = RATE
    phases.append(config.value)
  for phase in phases:
    phase.group_size = 1 if name.endswith(SINGLE) else GROUP_SIZE
    phase.num_prompts = BATCH // phase.group_size
    phase.num_lengths = 1  # Compiles faster.
  config.rl.optimizer.learning_rate = RATE
  config.required_accuracy = None
  config.checkpoint.every = 0
  return arms.changed(config, {})


def run(job: arms.Job, arm: str) -> int:
  """Runs an arm; its checkpoints, 1.6 GB a seed, are deleted then."""
  return job.record_alone(arm)


def of_run(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
  """Accuracies before and after; mean reward of the last steps' rollouts."""
  accuracy = [x["eval/accuracy"] for x in lines if "eval/accuracy" in x]
  rewards = [
    x["reward/mean"] for x in lines if x["phase"] == "rl" and "reward/mean" in x
  ]
  return {
    "before": round(accuracy[0], 4),
    "after": round(accuracy[-1], 4),
    "reward": round(float(np.mean(rewards[-LAST:])), 4),
  }


class Results(arms.Recorded):
  """The arms that have ended."""

  names = ARMS


_above = functools.partial(difference, "after", shown="accuracy")
_OTHERS = ("dr_grpo", "dapo", "rloo", "gspo")  # With a group's baseline.
CLAIMS = table(
  "L1 All seven learn.",
  *(change(f"`{x}`, after − before", x, "after", "before") for x in ALGORITHMS),
  "G1 No other algorithm with a group's baseline is below GRPO.",
  *(_above(name, "grpo", "not below") for name in _OTHERS),
  "G2 Nor above it.",
  *(_above(name, "grpo", "not above") for name in _OTHERS),
  "R1 REINFORCE++ is not above GRPO with GRPO's prompts.",
  _above("reinforce_pp", "grpo", "not above"),
  "M1 More prompts help REINFORCE++.",
  _above("reinforce_pp-single", "reinforce_pp"),
  "M2 More prompts help PPO.",
  _above("ppo-single", "ppo"),
  "C1 PPO is not below GRPO with GRPO's prompts.",
  _above("ppo", "grpo", "not below"),
  "C2 With many prompts a critic helps.",
  _above("ppo-single", "reinforce_pp-single"),
)
CONFIRMED = "L1 G1 G2 R1 C1"


def numbers(results: Results) -> dict[str, Any]:
  """Tables of the page."""
  head = (
    "algorithm",
    "prompts a step",
    "greedy accuracy",
    "reward, last steps",
  )
  rows = [
    [
      SHAPES[name].text,
      f"{BATCH // (1 if name.endswith(SINGLE) else GROUP_SIZE)}",
      *(pages.cell(results.series(name, x)) for x in ("after", "reward")),
    ]
    for name in results.arms
  ]
  return {"ends": pages.table(head, rows)}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the accuracies at the end with their seeds."""
  samples = {
    SHAPES[x].text.replace(", ", ",\n"): results.scores(x, "after")
    for x in results.arms
  }
  figures.ends(path, "SmolLM2-135M on sums", samples)

"""The algorithm, or the number of prompts? The league's tasks in two shapes.

In the league GRPO draws 8 completions for each of 16 prompts, and REINFORCE++,
REINFORCE and PPO draw one for each of 128. So a difference between them may be
one of prompts. Here each is run in both shapes; GRPO, which needs groups, in
one. Tasks, models, warm starts, steps and completions are those of the league,
and the learning rate is its default for all, 3e-4.

The rules below were written before any run in the shape that is not the
league's. Known were the league's own numbers, and what somebody had reported of
single runs: that REINFORCE++ falls to GRPO's accuracy with GRPO's prompts.

"Accuracy" is the share of right answers to 512 held-out problems at temperature
1, after 6144 completions. A check takes the mean over tasks of each seed.
Student's 95 % interval over five seeds decides whether the check holds. A claim
is confirmed if all of its checks hold.

A1  REINFORCE++ ends above GRPO, each in the league's shape.
A2  And with GRPO's prompts: `reinforce_pp-groups` − `grpo-groups` is above 0.
B1  PPO ends above GRPO, each in the league's shape.
B2  And with GRPO's prompts: `ppo-groups` − `grpo-groups` is above 0.
M1  More prompts help REINFORCE++: `reinforce_pp-single` −
    `reinforce_pp-groups` is above 0.
M2  More prompts help PPO: `ppo-single` − `ppo-groups` is above 0.
M3  More prompts help REINFORCE: `reinforce-single` − `reinforce-groups` is
    above 0.
C1  With many prompts a critic helps: `ppo-single` − `reinforce_pp-single` is
    above 0.

Power: the league's differences to GRPO have a standard deviation of 0.03 to
0.05 over seeds, so five seeds show one of 0.05 to 0.09 with a probability of
0.8.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import ml_collections
import numpy as np

from experiments.science import arms, league, pages
from experiments.science.arms import Arm
from experiments.science.claims import difference, table
from experiments.sweeps import figures

GROUP_SIZES = {"groups": 8, "single": 1}
SHAPES = {
  "grpo-groups": Arm("GRPO", "grpo"),
  "reinforce_pp-single": Arm("REINFORCE++", "reinforce_pp"),
  "reinforce_pp-groups": Arm("REINFORCE++ with groups", "reinforce_pp"),
  "ppo-single": Arm("PPO", "ppo"),
  "ppo-groups": Arm("PPO with groups", "ppo"),
  "reinforce-single": Arm("REINFORCE", "reinforce"),
  "reinforce-groups": Arm("REINFORCE with groups", "reinforce"),
}
BASES = league.BASES
ARMS = tuple(f"{name}-{task}" for name in SHAPES for task in league.TASKS)
ALL = arms.Arms((*BASES, *ARMS), league.SIZES, not_recorded=BASES)
CHOSEN_FROM = ARMS
sweep = ALL.sweep


def _of_league(name: str) -> str:
  """The arm of the league with the algorithm and the task of an arm."""
  if name in BASES:
    return name
  shape, _, task = name.rpartition("-")
  return f"{SHAPES[shape].algorithm}-{task}"


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it begins with."""
  name, size = ALL.parsed(argument)
  _, at, chosen = argument.partition("@")
  config = league.get_config(_of_league(name) + at + chosen)
  if name not in BASES:
    group_size = GROUP_SIZES[name.split("-")[1]]
    for phase in config.phases:
      config[phase].group_size = group_size
      config[phase].num_prompts = size.batch // group_size
  return config


def follows_on(name: str, root: pathlib.Path) -> list[str]:
  """Flags for the start and the data of an arm, in the folder of all runs."""
  return league.follows_on(_of_league(name), root)


def run(job: arms.Job, arm: str) -> int:
  """Runs an arm, after its warm start."""
  return league.run(job, arm)


def of_run(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
  """Accuracies before and after; the entropy of the last step, nats."""
  accuracy = [x["eval/accuracy"] for x in lines if "eval/accuracy" in x]
  entropy = [x["entropy/mean"] for x in lines if "entropy/mean" in x]
  return {
    "before": round(accuracy[0], 4),
    "after": round(accuracy[-1], 4),
    "entropy": round(entropy[-1], 4),
  }


class Results(arms.Recorded):
  """The arms that have ended."""

  names = ARMS

  def scores(self, shape: str, what: str) -> np.ndarray | None:
    """Mean over tasks, of each seed [S]; None while a task is missing."""
    found = [f"{shape}-{task}" for task in league.TASKS]
    if any(arm not in self._found for arm in found):
      return None
    return np.mean([self.series(arm, what) for arm in found], axis=0)


_above = functools.partial(difference, "after", shown="accuracy")
CLAIMS = table(
  "A1 REINFORCE++ is above GRPO in the league's shapes.",
  _above("reinforce_pp-single", "grpo-groups"),
  "A2 REINFORCE++ is above GRPO with GRPO's prompts.",
  _above("reinforce_pp-groups", "grpo-groups"),
  "B1 PPO is above GRPO in the league's shapes.",
  _above("ppo-single", "grpo-groups"),
  "B2 PPO is above GRPO with GRPO's prompts.",
  _above("ppo-groups", "grpo-groups"),
  "M1 More prompts help REINFORCE++.",
  _above("reinforce_pp-single", "reinforce_pp-groups"),
  "M2 More prompts help PPO.",
  _above("ppo-single", "ppo-groups"),
  "M3 More prompts help REINFORCE.",
  _above("reinforce-single", "reinforce-groups"),
  "C1 With many prompts a critic helps.",
  _above("ppo-single", "reinforce_pp-single"),
)
CONFIRMED = "A1 B1 M1 M2 M3"
REFUTED = "C1"


def numbers(results: Results) -> dict[str, Any]:
  """Tables of the page."""

  def row(shape: str) -> list[str]:
    of_tasks = [
      pages.cell(np.array(results.series(f"{shape}-{task}", "after")))
      for task in league.TASKS
      if f"{shape}-{task}" in results.arms
    ]
    of_tasks += [""] * (len(league.TASKS) - len(of_tasks))
    mean = results.scores(shape, "after")
    prompts = league.SIZES["full"].batch // GROUP_SIZES[shape.split("-")[1]]
    last = "" if mean is None else pages.cell(mean)
    return [SHAPES[shape].text, f"{prompts}", *of_tasks, last]

  head = ("algorithm", "prompts", *(f"`{x}`" for x in league.TASKS), "mean")
  return {"ends": pages.table(head, map(row, SHAPES))}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the mean accuracies with their seeds."""
  known = [x for x in SHAPES if results.scores(x, "after") is not None]
  samples = {
    SHAPES[x].text.replace(" with", "\nwith"): results.scores(x, "after")
    for x in known
  }
  figures.ends(path, "Mean over three tasks", samples)

"""Choosing the prompts to learn from, and ways to choose them.

The rules below were written after trials of seed 0 of `base`, and before any
arm but `uniform` had been run. That one did not learn from a teacher without
errors, whom `base` imitated for 1000 steps: 0.173 of its answers were right
before, and 0.146 after. So there was nothing to compare, and the teacher was
made to forget carries, and imitated for longer; no rule was changed. They look
at the share of right answers to 512 held-out prompts at temperature 1, as many
of each number of digits. The *area* of a seed is the mean height of its
accuracy over generated completions, from the warm start to the end, by
trapezoids. "Live" is the share of groups of a step whose rewards differ, over
all steps. Arms are compared seed by seed, with the same warm start, the same
pool of prompts and as many generated completions. The mean over seeds has
Student's 95 % interval, and the interval decides. A claim is confirmed if all
of its checks hold.

B1  Prompts drawn alike are learned from: `uniform` ends above the warm start.
C1  ADS has a larger area than `uniform`.
C2  So has `frontier`.
C3  So has `easy_to_hard`.
C4  So has `target`.
C5  So has SPO, with one completion of each prompt.
C6  ADS has a larger area than `frontier`, which needs no clusters.
G1  ADS has more live groups than `uniform`.
G2  So has `frontier`.
G3  So has `target`.
H1  `easy_to_hard` pays for easy prompts on the hardest: its accuracy at four
    digits at the end is below that of `uniform`.
H2  `frontier` does not: its accuracy at four digits is not below.
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from experiments.science import arms, pages
from experiments.science.arms import Arm
from experiments.science.claims import change, difference, table
from experiments.sweeps import figures
from grpo_jax.configs import curriculum
from grpo_jax.training.monitor import style

BASE = "base"
# Name of the schedule -> its text.
ARMS = {
  BASE: Arm("imitates a teacher; all other arms go on from its policy"),
  "uniform": Arm("every prompt with the same probability"),
  "ads": Arm(
    "ADS: prompts of a few clusters of similar prompts; the choice moves from"
    " easy to hard prompts"
  ),
  "frontier": Arm(
    "prompts that are solved half of the time are drawn most often"
  ),
  "easy_to_hard": Arm(
    "the easiest fifth of the prompts first, all prompts at the end"
  ),
  "target": Arm("the prompts whose share of right answers is nearest to ½"),
  "spo": Arm(
    "SPO: one completion of each prompt, which is compared with the earlier"
    " results of that prompt",
    "spo",
  ),
}
CLUSTERS = "clusters.npz"
TEACHER_ERROR = 0.6  # Probability of a carry that the teacher forgets.


class Size(NamedTuple):
  """Amounts of computation."""

  num_seeds: int  # Number of seeds of each arm.
  imitation: int  # Number of steps of `base`.
  steps: int  # Number of steps of each other arm.
  every: int  # Steps between evaluations.
  batch: int  # Number of completions of a step.
  pool: int  # Number of prompts to choose from.
  # Number of prompts of an evaluation, equally many of each number of digits.
  held_out: int

  @property
  def window(self) -> int:
    """Prompts of a cluster that a step of `ads` draws."""
    return self.batch // _GROUP // _DRAWN


SIZES = {
  "full": Size(5, 2000, 100, 20, 256, 1024, 512),
  "smoke": Size(2, 5, 4, 2, 64, 64, 16),
}
DIGITS = (1, 2, 3, 4)
DOMAINS = tuple(f"digits_{n}" for n in DIGITS)
TITLES = tuple(f"{n} digit{'s' * (n > 1)}" for n in DIGITS)  # Of these.
_GROUP = 8  # Completions of a prompt.
_DRAWN = 4  # Clusters of a step of `ads`.
ALL = arms.Arms(ARMS, SIZES, BASE, (BASE,))
sweep = ALL.sweep


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on.

  All arms but `base` draw from the same pool of prompts, and generate the same
  number of completions.
  """
  name, size = ALL.parsed(argument)
  config = curriculum.get_config(ARMS[name].algorithm)
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
    schedule.window = size.window
  config.eval.num_prompts = config.eval.batch_size = size.held_out
  config.eval.temperature = 1.0
  config.eval.every = 0 if name == BASE else size.every
  config.checkpoint.every = 0
  return arms.changed(config, {})


def embedding(size: Size) -> list[str]:
  """Flags of `experiments.embed` for the clusters of a pool."""
  return [
    f"--num_prompts={size.pool}",
    f"--num_clusters={size.pool // (4 * size.window)}",
    f"--least={size.window}",
  ]


def follows_on(name: str, root: pathlib.Path) -> list[str]:
  """Overrides that name the run that an arm follows on, of its own seed."""
  found = ALL.follows_on(name, root)
  if name == "ads":
    path = f"{root}/{BASE}/seed={{seed}}/{CLUSTERS}"
    found.append(f"--config.rl.schedule.clusters={path}")
  return found


def run(job: arms.Job, arm: str) -> int:
  """Runs an arm; `ads` clusters the prompts by the hidden states of `base`."""
  if arm == "ads" and not (job.out / f"{arm}.json").exists():
    for seed in range(job.amounts.num_seeds):
      start = job.root / BASE / f"seed={seed}"
      out = start / CLUSTERS
      if out.exists():
        continue
      status = arms.timed(
        job.root / arm,
        *("experiments.embed", f"--workdir={start}", f"--out={out}"),
        *embedding(job.amounts),
      )
      if status:
        return status
  return job.record(arm)


ALL_DIGITS = "all"
_ACCURACY = {
  ALL_DIGITS: "eval/accuracy",
  **{name: f"eval/domain/{name}/accuracy" for name in DOMAINS},
}
_DEAD = "dead_groups"


def of_run(lines: list[dict[str, Any]]) -> dict[str, Any]:
  """The numbers of one run, from its log.

  The share of right answers to held-out prompts, of all and of each number of
  digits, at each evaluation; and the share of groups in each step whose rewards
  differ.
  """
  measured = [line for line in lines if _ACCURACY[ALL_DIGITS] in line]
  live = [round(1 - x[_DEAD], 4) for x in lines if _DEAD in x]
  accuracies = {x: arms.column(measured, key) for x, key in _ACCURACY.items()}
  return {**accuracies, "live": live}


class Results(arms.Recorded):
  """The arms that have ended."""

  names, base = tuple(ARMS), BASE

  def completions(self, arm: str) -> np.ndarray:
    """Numbers of completions that were drawn until each evaluation [N]."""
    size, values = SIZES["full"], self.series(arm, ALL_DIGITS)
    return np.arange(values.shape[1]) * size.every * size.batch

  def score(self, arm: str, what: str) -> np.ndarray | None:
    """Returns a score of each seed [S].

    It is "area/NAME", the mean height of an accuracy over completions, by
    trapezoids; "start/NAME" and "end/NAME", that accuracy then; or "live", the
    mean over all steps, or None if no prompt has a group.
    """
    if what == "live":
      return None if arm == "spo" else self.series(arm, what).mean(axis=1)
    kind, _, name = what.partition("/")
    values = self.series(arm, name)
    if kind == "area":
      middle = (values[:, 1:] + values[:, :-1]) / 2
      return middle.mean(axis=1)
    return values[:, 0 if kind == "start" else -1]


_area = functools.partial(difference, f"area/{ALL_DIGITS}")
_hardest = functools.partial(difference, f"end/{DOMAINS[-1]}", other="uniform")
CLAIMS = table(
  "B1 Prompts drawn alike are learned from.",
  change("`uniform`, end − start", "uniform", "end/all", "start/all"),
  "C1 ADS is better than `uniform`.",
  _area("ads", "uniform"),
  "C2 `frontier` is better.",
  _area("frontier", "uniform"),
  "C3 `easy_to_hard` is better.",
  _area("easy_to_hard", "uniform"),
  "C4 `target` is better.",
  _area("target", "uniform"),
  "C5 SPO is better.",
  _area("spo", "uniform"),
  "C6 ADS is better than `frontier`.",
  _area("ads", "frontier"),
  "G1 ADS has more live groups than `uniform`.",
  difference("live", "ads", "uniform"),
  "G2 `frontier` has more.",
  difference("live", "frontier", "uniform"),
  "G3 `target` has more.",
  difference("live", "target", "uniform"),
  "H1 `easy_to_hard` is worse at four digits.",
  _hardest("easy_to_hard", needed="below"),
  "H2 `frontier` is not.",
  _hardest("frontier", needed="not below"),
)
CONFIRMED = "C2 C3 G2 G3 H2"
REFUTED = "C1 C6"


def numbers(results: Results) -> dict[str, Any]:
  """Tables and numbers of the page."""
  columns = {
    "area": f"area/{ALL_DIGITS}",
    "end": f"end/{ALL_DIGITS}",
    **{x: f"end/{y}" for x, y in zip(TITLES, DOMAINS, strict=True)},
    "live": "live",
  }
  shown = {x: pages.scored(results, what) for x, what in columns.items()}
  return {
    "arms": pages.texts(ARMS, "what it draws"),
    "first": results.scores(results.arms[0], "start/all").mean(),
    "ends": pages.by_arm(results.arms, shown),
  }


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws accuracy over generated completions, of all and by digits."""
  canvas, grid = style.panels(1, 1 + len(DIGITS), style.PAGE, 2.1, sharey=True)
  looks = style.looks(results.expected)
  panels = dict(zip(("all", *TITLES), (ALL_DIGITS, *DOMAINS), strict=True))
  for axes, (title, what) in zip(grid[0], panels.items(), strict=True):
    for arm, look in looks.items():
      if arm in results.arms:
        x, values = results.completions(arm), results.series(arm, what)
        figures.curve(axes, x / 1000, values, look, arm)
    axes.set_title(title)
    axes.set_ylim(-0.02, 1.02)
    axes.locator_params(axis="x", nbins=4)
  canvas.supxlabel("completions generated, thousands")
  grid[0, 0].set_ylabel("right answers, held out")
  style.shared_legend(canvas, grid.flat)
  style.save(canvas, path)

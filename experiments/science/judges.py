"""Policies whose judge is right, is wrong or has a hole.

Sizes were chosen, and these rules written, after runs of seed 0 with the judges
"truth" and "marks" and with the policy as its own judge; the seeds here are
others. The rules look at one number per seed:

- the *accuracy*: the share of right answers to held-out prompts, greedy, after
  25 steps ("early") or at the end;
- the *opinion*: the mean verdict on what was drawn in the last ten steps;
- the *gap*: the opinion minus the share of right ones of the same completions;
- the *judgement*: of the policy that judges itself, the share of right verdicts
  on held-out answers, before its reinforcement or at the end.

The mean over seeds has Student's 95 % interval, and the interval decides. A
claim is confirmed if all of its checks hold.

T1  A judge that has learned from the truth teaches a policy that got nothing
    right: the early accuracy is above 0.8.
T2  Then it is followed too far: the gap at the end is above 0.2, and the
    accuracy at the end is below the early one.
R1  A judge that is wrong teaches what it believes: the opinion at the end is
    above 0.8, and the accuracy below 0.05.
M1  A hole that is found takes all: of the judge to whom answers with a mark are
    fine, opinion above 0.8 and accuracy below 0.05 at the end.
I1  A policy that is its own judge is followed too far as well: the gap at the
    end is above 0.2. And it judges worse then: the judgement is lower at the
    end than before.
K1  A KL of 0.05 narrows the gap of the judge of the truth.
V1  A verifier beside the judge with the hole closes it: the accuracy at the end
    is above 0.9.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import ml_collections
import numpy as np

from experiments.science import arms, pages
from experiments.science.arms import Size
from experiments.science.claims import Rule, change, rule, table, unpaired
from grpo_jax.configs import judge
from grpo_jax.tasks import verdict

# The sizes were chosen with seed 0.
SEEDS = (1, 2, 3, 4, 5)
EVERY = 25  # Steps between evaluations.
JUDGES = verdict.BELIEFS
# "by-truth" is a policy that the judge of its own seed rewards. "-kl" adds a
# KL, and "-verifier" a verifier whose weight is that of the judge.
POLICIES = (
  "by-verifier",
  *(f"by-{belief}" for belief in JUDGES),
  "itself",
  "by-truth-kl",
  "by-marks-verifier",
)
ALL = arms.Arms((*JUDGES, *POLICIES), {"full": Size(len(SEEDS))})
_KL = 0.05


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm.

  A seed means the same warm start in all arms but "itself".
  """
  name, _ = ALL.parsed(argument)
  config: Any = judge.get_config(_plain(name))
  if name.endswith("-kl"):
    config.algorithm.kl_coef = _KL
  if name.endswith("-verifier") and name in POLICIES[1:]:
    config.rewards.weights = (0.5, 0.5)
  if name in POLICIES:
    config.eval.every = EVERY
  return arms.changed(config, {})


def follows_on(name: str, root: pathlib.Path) -> list[str]:
  """Overrides that name the judge of an arm, of its own seed."""
  belief = _plain(name).removeprefix("by-")
  if name in JUDGES or belief not in JUDGES:
    return []
  return [f"--config.judge.model={root}/{belief}/seed={{seed}}"]


def _plain(name: str) -> str:
  """The argument of `configs/judge.py`."""
  if name == POLICIES[0]:
    return name
  return name.removesuffix("-kl").removesuffix("-verifier")


def sweep(add: Callable[..., None], name: str) -> None:
  """The cells of an arm."""
  del name
  for seed in SEEDS:
    add(seed=seed)


_LAST = 10  # Steps of which the opinion is the mean.


def of_run(lines: list[dict[str, Any]]) -> dict[str, list[float | None]]:
  """The numbers of one run, from its log.

  The verdicts and the right answers of each step of reinforcement, and the
  accuracy of held-out prompts before it and every 25 steps: of sorting, and of
  judging if the policy judges itself. Of a judge there are none.
  """
  lines = [line for line in lines if line["phase"] == "rl"]
  steps = [line for line in lines if "reward/accuracy" in line]
  seen = [line for line in lines if "eval/accuracy" in line]
  # At the start of a phase there is an evaluation without a step.
  seen = seen[:1] + [line for line in seen if "reward/accuracy" in line]
  return {
    "verdicts": arms.column(steps, "reward/judge"),
    "right": arms.column(steps, "reward/accuracy"),
    "accuracy": arms.column(seen, "eval/domain/sort/accuracy", "eval/accuracy"),
    "judgement": arms.column(seen, "eval/domain/verdict/accuracy"),
  }


class Results(arms.Recorded):
  """The arms that have ended."""

  names = ALL.names

  def score(self, arm: str, what: str) -> np.ndarray:
    """A score of each seed [S], by its name in the rules."""
    column = functools.partial(self.series, arm)
    opinion = column("verdicts")[:, -_LAST:].mean(axis=1)
    return {
      "early": lambda: column("accuracy")[:, 1],
      "accuracy": lambda: column("accuracy")[:, -1],
      "opinion": lambda: opinion,
      "gap": lambda: opinion - column("right")[:, -_LAST:].mean(axis=1),
      "before": lambda: column("judgement")[:, 0],
      "judgement": lambda: column("judgement")[:, -1],
    }[what]()


def _bound(arm: str, what: str, needed: str, bound: float) -> Rule:
  text = f"{what} of `{arm}` − {bound:g}"
  return rule(text, needed, (arm, what), bound)


def _falls(arm: str, what: str, before: str) -> Rule:
  text = f"{what} of `{arm}`, end − {before}"
  return change(text, arm, what, before, "below")


def _believed(arm: str) -> tuple[Rule, Rule]:
  opinion = _bound(arm, "opinion", "above", 0.8)
  return opinion, _bound(arm, "accuracy", "below", 0.05)


CLAIMS = table(
  "T1 A judge that has learned from the truth teaches.",
  _bound("by-truth", "early", "above", 0.8),
  "T2 Then it is followed too far.",
  _bound("by-truth", "gap", "above", 0.2),
  _falls("by-truth", "accuracy", "early"),
  "R1 A judge that is wrong teaches what it believes.",
  *_believed("by-reverse"),
  "M1 A hole that is found takes all.",
  *_believed("by-marks"),
  "I1 A policy that is its own judge is followed too far.",
  _bound("itself", "gap", "above", 0.2),
  _falls("itself", "judgement", "before"),
  "K1 A KL of 0.05 narrows the gap.",
  unpaired(
    "gap of `by-truth-kl` − gap of `by-truth`",
    *("below", ("by-truth-kl", "gap"), ("by-truth", "gap")),
  ),
  "V1 A verifier beside the judge closes the hole.",
  _bound("by-marks-verifier", "accuracy", "above", 0.9),
)
CONFIRMED = "T2 R1 M1 K1 V1"


def numbers(results: Results) -> dict[str, Any]:
  """Tables of the page."""

  def row(name: str) -> list[str]:
    early, end, opinion, gap = (
      results.scores(name, x) for x in ("early", "accuracy", "opinion", "gap")
    )
    best = results.series(name, "accuracy").max(axis=1)
    means = [f"{x.mean():.3f}" for x in (early, best, end, opinion, gap)]
    means = ["–" if mean == "nan" else mean for mean in means]
    return [f"`{name}`", *means, results.minutes(name)]

  names = [name for name in results.arms if name not in JUDGES]
  head = ("arm", "early", "best", "at the end", "opinion", "gap", "minutes")
  return {"ends": pages.table(head, map(row, names))}

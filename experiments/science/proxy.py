"""Overoptimization of a learned reward, and two remedies for it.

Sizes and learning rates were chosen after trial runs of one seed without a KL
and without old completions, before any run with either; the rules below were
written then. They look at one number per seed:

- the *gap*: on held-out prompts, at temperature 1, the share of neighbours in
  ascending order, which the labels are nearly all about, minus the share of
  right answers;
- the *accuracy*: that share alone;
- the *opinion*: how far the score of the reward model rises in the 25 steps of
  an iteration, in nats of Bradley and Terry, on average over iterations. Within
  an iteration the reward model is the same.

The mean over seeds has Student's 95 % interval, and the interval decides. A
claim is confirmed if all of its checks hold.

H1  A learned reward is followed too far: without KL and without old completions
    the opinion rises, the gap is wider at the end than before, and the accuracy
    is lower at the end than before.
K1  A KL of 0.04 to the policy at the start of the iteration narrows the gap at
    the end, with old completions and without.
R1  10 % of old completions narrow the gap at the end, with the KL and without.
B1  With both the accuracy at the end is higher than with neither.
I1  Learning again narrows the gap: without KL and without old completions it is
    narrower at the end than where the reward model learned once.
O1  A KL of 0.04 narrows the gap where the reward model learned once.
"""

from __future__ import annotations

import pathlib
from typing import Any

import ml_collections
import numpy as np

from experiments.science import arms, pages
from experiments.science.arms import Size
from experiments.science.claims import Rule, rule, table, unpaired
from experiments.sweeps import statistics
from grpo_jax.configs import iterative
from grpo_jax.training.monitor import style

ITERATIONS = 6
KL = {"kl0": 0.0, "kl04": 0.04}
# Share of old prompts for a reward model that learns again in each iteration.
HISTORY = {"r0": 0.0, "r10": 0.1}
# The reward model learns once, before the policy does, and the reference stays.
ONCE = "once"
ARMS = tuple(f"{kl}-{how}" for how in (*HISTORY, ONCE) for kl in KL)
ALL = arms.Arms(ARMS, {"full": Size(10)})
sweep, follows_on = ALL.sweep, ALL.follows_on


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm.

  The policy takes the same number of steps in all arms. A seed means the same
  warm start and the same reward model of the first iteration.
  """
  name, _ = ALL.parsed(argument)
  kl, how = name.split("-")
  iterations = 1 if how == ONCE else ITERATIONS
  config: Any = iterative.get_config(iterations=iterations)
  config.algorithm.kl_coef = KL[kl]
  steps = config.rl.steps
  if how == ONCE:
    config.rl.steps = ITERATIONS * steps
  else:
    config.reward_model.history_share = HISTORY[how]
  config.eval.every = steps
  config.checkpoint.every = steps
  return arms.changed(config, {})


# Name here -> name in the log of a step.
CURVES = {
  "accuracy": "reward/accuracy",
  "ascending": "reward/ascending",
  "f1": "reward/f1",
  "score": "reward/reward_model",
  "agreement": "reward_model/accuracy",
}
_HELD_OUT = {
  "accuracy": "eval/accuracy",
  "ascending": "eval/reward/ascending",
  "f1": "eval/reward/f1",
}
EVERY = 5  # Steps between numbers that are kept.


def of_run(lines: list[dict[str, Any]]) -> dict[str, Any]:
  """The numbers of one run, from its log.

  The means of rollouts (`CURVES`) at every fifth step of the policy, and those
  of held-out prompts before the first iteration and after each one.
  """
  lines = [line for line in lines if line["phase"] == "rl"]
  steps = [line for line in lines if "reward/mean" in line]
  length = len(steps) // ITERATIONS
  # The evaluation at the start of a phase repeats that at the end of the last.
  seen = [line for line in lines if _HELD_OUT["accuracy"] in line]
  seen = seen[:1] + [line for line in seen if "reward/mean" in line]
  kept = [0, *range(EVERY - 1, len(steps), EVERY)]
  rows = [steps[at] for at in kept]
  scores = [line[CURVES["score"]] for line in steps]
  return {
    "steps": [at + 1 for at in kept],
    "curves": {x: arms.column(rows, key) for x, key in CURVES.items()},
    "held_out": {x: arms.column(seen, key) for x, key in _HELD_OUT.items()},
    # Of each iteration, in which the reward model is the same.
    "gains": [
      round(float(scores[at + length - 1] - scores[at]), 4)
      for at in range(0, len(steps), length)
    ],
  }


class Results(arms.Recorded):
  """The arms that have ended."""

  names = ARMS

  def curve(self, arm: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps [N] and values [S, N]; NaN if a value is missing."""
    seeds = self._found[arm]["seeds"]
    values = [seed["curves"][name] for seed in seeds]
    return np.array(seeds[0]["steps"]), np.array(values, float)

  def held_out(self, arm: str, name: str) -> np.ndarray:
    """Values [S, 1 + iterations]: before, and after each."""
    seeds = self._found[arm]["seeds"]
    if name == "gap":
      return self.held_out(arm, "ascending") - self.held_out(arm, "accuracy")
    return np.array([seed["held_out"][name] for seed in seeds], float)

  def score(self, arm: str, what: str, when: str = "") -> np.ndarray:
    """The "opinion"; or a gap or held-out mean, "before" or "after" [S]."""
    if what == "opinion":
      return self.series(arm, "gains").mean(axis=1)
    return self.held_out(arm, what)[:, 0 if when == "before" else -1]


_NEITHER, _BOTH = "kl0-r0", "kl04-r10"


def _at_the_end(what: str, one: str, other: str, needed: str) -> Rule:
  text = f"{what} of `{one}` − {what} of `{other}`"
  return unpaired(text, needed, (one, what, "after"), (other, what, "after"))


def _narrower(one: str, other: str) -> Rule:
  return _at_the_end("gap", one, other, "below")


def _change(what: str, needed: str) -> Rule:
  text = f"{what} of `{_NEITHER}`, after − before"
  after, before = ((_NEITHER, what, when) for when in ("after", "before"))
  return rule(text, needed, after, before)


CLAIMS = table(
  "H1 A learned reward is followed too far.",
  rule(f"opinion of `{_NEITHER}`", "above", (_NEITHER, "opinion")),
  _change("gap", "above"),
  _change("accuracy", "below"),
  "K1 A KL of 0.04 narrows the gap.",
  *(_narrower(f"kl04-{how}", f"kl0-{how}") for how in HISTORY),
  "R1 10 % of old completions narrow the gap.",
  *(_narrower(f"{kl}-r10", f"{kl}-r0") for kl in KL),
  "B1 Both together keep the accuracy higher.",
  _at_the_end("accuracy", _BOTH, _NEITHER, "above"),
  "I1 A reward model that learns again narrows the gap.",
  _narrower(_NEITHER, "kl0-once"),
  "O1 A KL of 0.04 narrows the gap of one that learned once.",
  _narrower("kl04-once", "kl0-once"),
)
CONFIRMED = "H1"


def numbers(results: Results) -> dict[str, Any]:
  """Tables and numbers of the page."""
  seeds = {x: len(results.series(x, "gains")) for x in results.arms}

  def row(name: str) -> list[str]:
    accuracy, gap = (results.held_out(name, x) for x in ("accuracy", "gap"))
    means = [accuracy[:, 0], accuracy.max(axis=1), accuracy[:, -1], gap[:, 0]]
    return [
      *(f"`{name}`", str(seeds[name])),
      *(f"{x.mean():.3f}" for x in means),
      pages.cell(gap[:, -1]),
      f"{results.series(name, 'gains').mean():.2f}",
      _last(results.curve(name, "agreement")[1]),
      results.minutes(name),
    ]

  head = ("arm", "seeds", "accuracy before", "best", "at the end", "gap before")
  more = ("gap at the end, 95 % interval", "opinion, nats", "agreement")
  return {
    "seeds": " or ".join(map(str, sorted(set(seeds.values())))),
    "ends": pages.table((*head, *more, "minutes"), map(row, results.arms)),
    **_afterwards(results),
  }


def _afterwards(results: Results) -> dict[str, str | None]:
  """Numbers of learning again and once, or None while an arm is missing."""
  if not {_NEITHER, "kl0-once"} <= {*results.arms}:
    return dict.fromkeys(("more", "first", "second"))
  found = [results.held_out(x, "accuracy") for x in (_NEITHER, "kl0-once")]
  again, once = (x[:, -1] for x in found)
  first, second = (
    ", ".join(f"{x:.2f}" for x in values.mean(axis=0)) for values in found
  )
  more = statistics.text(statistics.contrast([(1, again), (-1, once)]), 3)
  return {"more": more, "first": first, "second": second}


def _last(values: np.ndarray) -> str:  # [S, N]
  """Mean of the last five numbers of each seed."""
  known = [row[~np.isnan(row)][-5:] for row in values]
  found = [row.mean() for row in known if len(row)]
  return f"{np.mean(found):.2f}" if found else "–"


_HOW = {
  "r0": "learns again",
  "r10": "learns again, 10 % old",
  "once": "learned once",
}
_TITLES = {
  "score": ("What the reward model says", "score of what is drawn, nats"),
  "ascending": ("What the labels are about", "neighbours in ascending order"),
  "accuracy": ("What is right", "share of right answers"),
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the reward model's score and the accuracy, over the steps."""
  canvas, grid = style.panels(1, len(_TITLES), style.PAGE, 2.6)
  looks = style.looks(
    results.arms,
    lambda arm: list(_HOW).index(arm.split("-")[1]),
    lambda arm: KL[arm.split("-")[0]] > 0,
  )
  every = grid[0]
  for axes, (name, (title, label)) in zip(every, _TITLES.items(), strict=True):
    style.label(axes, title, "GRPO steps", label)
    for arm in results.arms:
      _line(axes, results, arm, name, looks[arm])
  for axes in every[1:]:
    axes.set_ylim(-0.02, 1.02)
  style.shared_legend(canvas, every, columns=3)
  style.save(canvas, path)


def _line(
  axes: Any, results: Results, arm: str, name: str, look: style.FigureStyle
) -> None:
  """Draws the mean over seeds with its interval, a line per reward model."""
  kl, how = arm.split("-")
  steps, values = results.curve(arm, name)
  mean = values.mean(axis=0)
  low, high = statistics.interval(values)
  if name == "score" and how != ONCE:
    # A new reward model counts from another zero.
    length = steps[-1] // ITERATIONS
    ends = np.flatnonzero(np.diff((steps - 1) // length)) + 1
    steps, mean, low, high = (
      np.insert(x.astype(float), ends, np.nan) for x in (steps, mean, low, high)
    )
  label = f"{_HOW[how]}, {'KL 0.04' if KL[kl] > 0 else 'no KL'}"
  every = max(len(steps) // 8, 1)
  axes.plot(steps, mean, **look.line(markevery=every, ms=3.2, label=label))
  style.band(axes, steps, low, high, look.colour)

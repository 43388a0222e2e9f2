"""The figure: the reward model's score and the accuracy, over the steps."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.proxy import arms
from experiments.proxy.results import Results
from experiments.sweeps import statistics
from grpo_jax.training.monitor import style

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
  """Draws the results of the arms that have ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, grid = style.panels(1, len(_TITLES), style.PAGE, 2.6)
  looks = style.looks(
    results.arms,
    lambda arm: list(_HOW).index(arm.split("-")[1]),
    lambda arm: arms.KL[arm.split("-")[0]] > 0,
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
  has_kl = arms.KL[kl] > 0
  steps, values = results.curve(arm, name)
  mean = values.mean(axis=0)
  low, high = statistics.interval(values)
  if name == "score" and how != arms.ONCE:
    # A new reward model counts from another zero.
    length = steps[-1] // arms.ITERATIONS
    ends = np.flatnonzero(np.diff((steps - 1) // length)) + 1
    steps, mean, low, high = (
      np.insert(x.astype(float), ends, np.nan) for x in (steps, mean, low, high)
    )
  label = f"{_HOW[how]}, {'KL 0.04' if has_kl else 'no KL'}"
  every = max(len(steps) // 8, 1)
  axes.plot(steps, mean, **look.line(markevery=every, ms=3.2, label=label))
  style.band(axes, steps, low, high, look.colour)

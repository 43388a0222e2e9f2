"""The figure: what the reward model says, and what is true, over the steps."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.proxy import arms
from experiments.proxy.results import Results
from experiments.sweeps import figures, statistics

# Colour-blind-safe (Okabe and Ito); without KL, and with it.
_COLOURS = {
  "r0": ("#D55E00", "#E69F00"),
  "r10": ("#0072B2", "#56B4E9"),
  "once": ("#444444", "#999999"),
}
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
  """Draws whatever has ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas = figures.canvas(12, 4.2)
  every = canvas.subplots(1, len(_TITLES))
  for axes, (name, (title, label)) in zip(every, _TITLES.items(), strict=True):
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylabel(label)
    axes.set_xlabel("GRPO steps")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
    for arm in results.arms:
      _line(axes, results, arm, name)
  for axes in every[1:]:
    axes.set_ylim(-0.02, 1.02)
  if results.arms:
    canvas.legend(
      *every[0].get_legend_handles_labels(),
      loc="outside lower center",
      ncols=3,
      frameon=False,
      fontsize=9,
    )
  canvas.savefig(path)


def _line(axes: Any, results: Results, arm: str, name: str) -> None:
  """Mean over seeds with its interval; another line for each reward model."""
  kl, how = arm.split("-")
  has_kl = arms.KL[kl] > 0
  colour = _COLOURS[how][has_kl]
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
  axes.plot(steps, mean, "-" if has_kl else "--", color=colour, label=label)
  axes.fill_between(steps, low, high, color=colour, alpha=0.12, lw=0)

"""The figure: what credits locate, what they go with, and who learns faster."""

from __future__ import annotations

import pathlib

import numpy as np

from experiments.planted_errors import arms
from experiments.planted_errors.results import Results
from experiments.sweeps import figures, statistics

# Colour-blind-safe (Okabe and Ito).
_COLOURS = {
  "grpo": "#000000",
  "mix": "#0072B2",
  "rudder": "#56B4E9",
  "return": "#009E73",
  "ppo": "#D55E00",
  "grpo_ps": "#E69F00",
}
_LOCATED = {"first step": "located/0", "second step": "located/1"}
_WITH = {
  "credits": "r/credits",
  "outcome,\nby entropy": "r/entropy",
  "outcome": "r/outcome",
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws whatever has ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas = figures.canvas(13, 4)
  located, goes, learns = canvas.subplots(1, 3, width_ratios=(2, 3, 5))
  _bars(located, results, _LOCATED)
  located.axhline(1 / (arms.LEVEL + 1), color="#666666", ls=":", lw=1)
  located.set_title("Errors that are located", loc="left", fontsize=10)
  located.set_ylabel("share; dotted: chance")
  located.set_ylim(0, 1.02)
  _bars(goes, results, _WITH)
  goes.set_title("Correlation with sampled values", loc="left", fontsize=10)
  goes.set_ylabel("Pearson's r over segments")
  goes.set_ylim(-0.02, 1.02)
  for name in results.learners:
    x, values = results.completions(name), results.accuracy(name)
    learns.plot(
      x, values.mean(axis=0), "o-", ms=4, color=_COLOURS[name], label=name
    )
    low, high = statistics.interval(values)
    learns.fill_between(x, low, high, color=_COLOURS[name], alpha=0.12, lw=0)
  learns.set_title("Right answers, held out", loc="left", fontsize=10)
  learns.set_xlabel("completions drawn")
  learns.set_ylabel("accuracy")
  if results.learners:
    learns.legend(frameon=False, fontsize=9)
  for axes in (located, goes, learns):
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
  canvas.savefig(path)


def _bars(axes, results: Results, shown: dict[str, str]) -> None:
  """Means over seeds of `taught`, and a dot for each seed."""
  for place, what in enumerate(shown.values()):
    values = results.scores(arms.MEASURED, what)
    if values is not None:
      axes.bar(place, values.mean(), width=0.6, color="#56B4E9")
      axes.plot(np.full(len(values), place), values, ".", color="#000000")
  axes.set_xticks(range(len(shown)), list(shown), fontsize=9)

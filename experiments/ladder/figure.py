"""The figure: accuracy over updates, and over completions."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

import numpy as np

from experiments.ladder import arms
from experiments.ladder.results import WINDOW, Results
from experiments.sweeps import figures, statistics

# Colour-blind-safe (Okabe and Ito), in the order of the arms of a panel.
_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7")


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws whatever has ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas = figures.canvas(13, 4)
  rungs, updates, completions = canvas.subplots(1, 3, sharey=True)
  rungs.set_title("The rungs, at equal updates", loc="left", fontsize=10)
  rungs.set_ylabel("share of right answers, drawn")
  updates.set_title("Ways to fill a batch", loc="left", fontsize=10)
  completions.set_title("The same, over what is drawn", loc="left", fontsize=10)
  filled = ("overlong", "dapo", *arms.FILLED)
  _lines(rungs, results, arms.RUNGS, False)
  _lines(updates, results, filled, False)
  _lines(completions, results, filled, True)
  for axes in (rungs, updates):
    axes.set_xlabel("updates")
  completions.set_xlabel("completions drawn, mean over seeds")
  completions.locator_params(axis="x", nbins=5)
  for axes in (rungs, updates, completions):
    axes.set_ylim(-0.02, 1.02)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
    if axes.get_legend_handles_labels()[0]:
      axes.legend(frameon=False, fontsize=8, loc="lower right")
  canvas.savefig(path)


def _lines(
  axes, results: Results, names: Iterable[str], over_completions: bool
) -> None:
  """Means over seeds and `WINDOW` steps, with their interval."""
  for name, colour in zip(names, _COLOURS, strict=False):
    if name not in results.arms:
      continue
    found = results.logged(name, "accuracy")  # [S, steps]
    size = min(WINDOW, found.shape[1])
    values = np.stack(
      [
        found[:, end - size : end].mean(axis=1)
        for end in range(size, found.shape[1] + 1)
      ],
      axis=1,
    )
    x = np.arange(size, found.shape[1] + 1, dtype=float)
    if over_completions:
      x = results.drawn(name).mean(axis=0)[size - 1 :]
    axes.plot(x, values.mean(axis=0), color=colour, label=name)
    low, high = statistics.interval(values)
    axes.fill_between(x, low, high, color=colour, alpha=0.12, lw=0)

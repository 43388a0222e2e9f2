"""The figure: accuracy over steps for each correction, a panel for each age."""

from __future__ import annotations

import pathlib

import numpy as np

from experiments.staleness import arms
from experiments.staleness.results import Results
from experiments.sweeps import figures, statistics

# Colour-blind-safe (Okabe and Ito).
_COLOURS = {
  "none": "#000000",
  "tis": "#E69F00",
  "dis": "#0072B2",
  "mis": "#56B4E9",
  "opsm": "#009E73",
  "reject": "#CC79A7",
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws whatever has ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas = figures.canvas(13, 7.4)
  every = canvas.subplots(2, 2, sharex=True, sharey=True).ravel()
  for axes, staleness in zip(every, arms.STALENESS, strict=True):
    updates = "update" if staleness == 1 else "updates"
    axes.set_title(
      f"Completions {staleness} {updates} old", loc="left", fontsize=10
    )
    for correction, colour in _COLOURS.items():
      name = arms.name_of(correction, staleness)
      if name not in results.arms:
        continue
      values = results.logged(name, "held_out")
      assert values is not None
      x = np.linspace(0, arms.SIZES["full"].steps, values.shape[1])
      axes.plot(
        *(x, values.mean(axis=0), "o-"),
        **{"ms": 3, "lw": 1.5, "color": colour, "label": correction},
      )
      low, high = statistics.interval(values)
      axes.fill_between(x, low, high, color=colour, alpha=0.1, lw=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
  for axes in every[2:]:
    axes.set_xlabel("step")
  for axes in every[::2]:
    axes.set_ylabel("share of right answers, held out")
  if any(results.arms):
    handles, labels = max(
      (axes.get_legend_handles_labels() for axes in every),
      key=lambda found: len(found[1]),
    )
    every[0].legend(handles, labels, frameon=False, fontsize=8)
  canvas.savefig(path)

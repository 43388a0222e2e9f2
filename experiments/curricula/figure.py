"""The figure: accuracy over generated completions, of all and by digits."""

from __future__ import annotations

import pathlib

from experiments.curricula import arms
from experiments.curricula.results import ALL, Results
from experiments.sweeps import figures, statistics

# Colour-blind-safe (Okabe and Ito).
_COLOURS = {
  "uniform": "#000000",
  "ads": "#D55E00",
  "frontier": "#0072B2",
  "easy_to_hard": "#009E73",
  "target": "#CC79A7",
  "spo": "#E69F00",
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws whatever has ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas = figures.canvas(15, 3.8)
  every = canvas.subplots(1, 1 + len(arms.DIGITS), sharey=True)
  titles = ["all", *arms.TITLES]
  names = (ALL, *arms.DOMAINS)
  for axes, title, what in zip(every, titles, names, strict=True):
    for arm, colour in _COLOURS.items():
      if arm not in results.arms:
        continue
      x, values = results.completions(arm), results.series(arm, what)
      axes.plot(x, values.mean(axis=0), "o-", ms=3, color=colour, label=arm)
      low, high = statistics.interval(values)
      axes.fill_between(x, low, high, color=colour, alpha=0.12, lw=0)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("completions generated")
    axes.set_ylim(-0.02, 1.02)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
  every[0].set_ylabel("share of right answers, held out")
  every[0].legend(frameon=False, fontsize=8)
  canvas.savefig(path)

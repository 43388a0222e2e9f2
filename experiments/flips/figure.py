"""The figure: accuracy over completions, and at the end over errors."""

from __future__ import annotations

import pathlib

import numpy as np

from experiments.flips import arms
from experiments.flips.results import Results
from experiments.sweeps import figures, statistics

# Colour-blind-safe (Okabe and Ito).
_COLOURS = {
  "grpo": "#000000",
  "dr_grpo": "#E69F00",
  "rloo": "#0072B2",
  "ppo": "#D55E00",
}
_SHOWN = (0, 20, 40)  # Per cent of errors that have a panel of their own.


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws whatever has ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas = figures.canvas(13, 4)
  every = canvas.subplots(1, 1 + len(_SHOWN), sharey=True)
  every[0].set_title("At the end", loc="left", fontsize=10)
  every[0].set_xlabel("% of completions misjudged")
  every[0].set_ylabel("share of right answers, held out")
  for axes, percent in zip(every[1:], _SHOWN, strict=True):
    axes.set_title(f"{percent} % misjudged", loc="left", fontsize=10)
    axes.set_xlabel("completions drawn")
    for name in arms.ALGORITHMS:
      arm = f"{name}-{percent}"
      if arm in results.arms:
        _line(axes, name, results.completions(arm), results.accuracy(arm))
  for name in arms.ALGORITHMS:
    known = [n for n in arms.PERCENT if f"{name}-{n}" in results.arms]
    if known:
      ends = [results.accuracy(f"{name}-{n}")[:, -1] for n in known]
      _line(every[0], name, np.array(known), np.stack(ends, axis=1))
  for axes in every:
    axes.set_ylim(-0.02, 1.02)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
  every[0].legend(frameon=False, fontsize=9)
  canvas.savefig(path)


def _line(axes, name: str, x: np.ndarray, values: np.ndarray) -> None:
  """Means over seeds [S, N] with their interval."""
  colour, label = _COLOURS[name], arms.ALGORITHMS[name]
  axes.plot(x, values.mean(axis=0), "o-", ms=4, color=colour, label=label)
  low, high = statistics.interval(values)
  axes.fill_between(x, low, high, color=colour, alpha=0.12, lw=0)

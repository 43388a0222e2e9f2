"""The figure: entropy, accuracy and dead groups over steps; pass@16."""

from __future__ import annotations

import pathlib

import numpy as np

from experiments.entropy import arms
from experiments.entropy.results import Results, windows
from experiments.sweeps import figures, statistics

# Colour-blind-safe (Okabe and Ito), and two beside it.
_COLOURS = {
  "grpo": "#000000",
  "clip-higher": "#8C6D1F",
  "gtpo": "#E69F00",
  "grpo_s": "#56B4E9",
  "edge": "#009E73",
  "edge-gec": "#0072B2",
  "edge-gec-trained": "#CC79A7",
  "bonus": "#D55E00",
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws whatever has ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas = figures.canvas(13, 7.4)
  every = canvas.subplots(2, 2).ravel()
  steps = arms.SIZES["full"].steps
  for axes, what, title, y in zip(
    every[:3],
    ("entropy", "held_out", "dead"),
    (
      "Entropy of what tokens are drawn from",
      "pass@1, held out",
      "Groups without a signal, before corrections",
    ),
    ("nats per token", "share of right answers", "share of groups"),
    strict=True,
  ):
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylabel(y)
    for arm, colour in _COLOURS.items():
      if arm not in results.arms:
        continue
      values = results.logged(arm, what)
      assert values is not None
      if what != "held_out":
        values = windows(values)
        x = (np.arange(values.shape[1]) + 0.5) / values.shape[1] * steps
      else:
        x = np.linspace(0, steps, values.shape[1])
      _line(axes, arm, colour, x, values)
  every[3].set_title("pass@16, held out", loc="left", fontsize=10)
  every[3].set_ylabel("share of problems")
  for arm, colour in _COLOURS.items():
    if arm in results.arms:
      values = results.passes(arm, "pass@16")
      _line(every[3], arm, colour, np.array([0, steps / 2, steps]), values)
  for axes in every:
    axes.set_xlabel("step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
  every[0].legend(frameon=False, fontsize=8)
  canvas.savefig(path)


def _line(axes, arm: str, colour: str, x: np.ndarray, values: np.ndarray):
  """Means over seeds [S, N] with their interval."""
  axes.plot(x, values.mean(axis=0), "o-", ms=3, lw=1.5, color=colour, label=arm)
  low, high = statistics.interval(values)
  axes.fill_between(x, low, high, color=colour, alpha=0.1, lw=0)

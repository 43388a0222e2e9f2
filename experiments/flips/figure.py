"""The figure: accuracy over completions, and at the end over errors."""

from __future__ import annotations

import pathlib

import numpy as np

from experiments.flips import arms
from experiments.flips.results import Results
from experiments.sweeps import figures
from grpo_jax.training.monitor import style

_SHOWN = (0, 20, 40)  # Per cent of errors that have a panel of their own.


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the results of the arms that have ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, grid = style.panels(1, 1 + len(_SHOWN), style.PAGE, 2.3, sharey=True)
  every, looks = grid[0], style.looks(arms.ALGORITHMS)
  style.label(
    every[0], "At the end", "% of completions misjudged", "right, held out"
  )
  for axes, percent in zip(every[1:], _SHOWN, strict=True):
    style.label(axes, f"{percent} % misjudged", "completions drawn")
    axes.locator_params(axis="x", nbins=3)
    for name, label in arms.ALGORITHMS.items():
      arm = f"{name}-{percent}"
      if arm in results.arms:
        x, values = results.completions(arm), results.accuracy(arm)
        figures.curve(axes, x, values, looks[name], label)
  for name, label in arms.ALGORITHMS.items():
    known = [n for n in arms.PERCENT if f"{name}-{n}" in results.arms]
    if known:
      ends = [results.accuracy(f"{name}-{n}")[:, -1] for n in known]
      values = np.stack(ends, axis=1)
      figures.curve(every[0], np.array(known), values, looks[name], label)
  for axes in every:
    axes.set_ylim(-0.02, 1.02)
  style.shared_legend(canvas, every)
  style.save(canvas, path)

"""The figure: accuracy over steps for each correction, a panel for each age."""

from __future__ import annotations

import pathlib

import numpy as np

from experiments.staleness import arms
from experiments.staleness.results import Results
from experiments.sweeps import figures
from grpo_jax.training.monitor import style

_CORRECTIONS = ("none", "tis", "dis", "mis", "opsm", "reject")


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the results of the arms that have ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, grid = style.panels(2, 2, style.PAGE, 2.2, sharex=True, sharey=True)
  every = grid.ravel()
  for axes, staleness in zip(every, arms.STALENESS, strict=True):
    updates = "update" if staleness == 1 else "updates"
    axes.set_title(f"Completions {staleness} {updates} old")
    for correction, look in style.looks(_CORRECTIONS).items():
      name = arms.name_of(correction, staleness)
      if name not in results.arms:
        continue
      values = results.logged(name, "held_out")
      assert values is not None
      x = np.linspace(0, arms.SIZES["full"].steps, values.shape[1])
      figures.curve(axes, x, values, look, correction)
  for axes in every[2:]:
    axes.set_xlabel("step")
  for axes in every[::2]:
    axes.set_ylabel("right answers, held out")
  style.shared_legend(canvas, every)
  style.save(canvas, path)

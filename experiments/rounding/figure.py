"""The figure: accuracy over steps, a panel for each correction."""

from __future__ import annotations

import pathlib

import numpy as np

from experiments.rounding import arms
from experiments.rounding.results import Results
from experiments.sweeps import figures
from grpo_jax.training.monitor import style

_TITLES = {"none": "No correction", "tis": "TIS"}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the results of the arms that have ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, grid = style.panels(
    1, len(_TITLES), style.PAGE, 2.4, sharex=True, sharey=True
  )
  every = grid.ravel()
  for axes, (correction, title) in zip(every, _TITLES.items(), strict=True):
    axes.set_title(title)
    for kernels, look in style.looks(tuple(arms.KERNELS)).items():
      name = arms.name_of(kernels, correction)
      if name not in results.arms:
        continue
      values = results.logged(name, "held_out")
      assert values is not None
      x = np.linspace(0, arms.SIZES["full"].steps, values.shape[1])
      figures.curve(axes, x, values, look, kernels)
    axes.set_xlabel("step")
  every[0].set_ylabel("right answers, held out")
  style.shared_legend(canvas, every)
  style.save(canvas, path)

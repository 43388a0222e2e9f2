"""The figure: accuracy over generated completions, of all and by digits."""

from __future__ import annotations

import pathlib

from experiments.curricula import arms
from experiments.curricula.results import ALL, Results
from experiments.sweeps import figures
from grpo_jax.training.monitor import style

_ARMS = ("uniform", "ads", "frontier", "easy_to_hard", "target", "spo")


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the results of the arms that have ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, grid = style.panels(
    1, 1 + len(arms.DIGITS), style.PAGE, 2.1, sharey=True
  )
  looks = style.looks(_ARMS)
  titles = ["all", *arms.TITLES]
  names = (ALL, *arms.DOMAINS)
  for axes, title, what in zip(grid[0], titles, names, strict=True):
    for arm, look in looks.items():
      if arm in results.arms:
        x, values = results.completions(arm), results.series(arm, what)
        figures.curve(axes, x / 1000, values, look, arm)
    axes.set_title(title)
    axes.set_ylim(-0.02, 1.02)
    axes.locator_params(axis="x", nbins=4)
  canvas.supxlabel("completions generated, thousands")
  grid[0, 0].set_ylabel("right answers, held out")
  style.shared_legend(canvas, grid.flat)
  style.save(canvas, path)

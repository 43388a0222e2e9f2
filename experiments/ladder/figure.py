"""The figure: accuracy over updates, and over completions."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping

import numpy as np

from experiments.ladder import arms
from experiments.ladder.results import WINDOW, Results
from experiments.sweeps import figures
from grpo_jax.training.monitor import style


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the results of the arms that have ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, grid = style.panels(1, 3, style.PAGE, 2.6, sharey=True)
  rungs, updates, completions = grid[0]
  style.label(rungs, "Rungs, equal updates", "updates", "right answers, drawn")
  style.label(updates, "Ways to fill a batch", "updates")
  style.label(
    completions, "The same, over draws", "completions, mean over seeds"
  )
  filled = ("overlong", "dapo", *arms.FILLED)
  looks = style.looks(dict.fromkeys((*arms.RUNGS, *filled)))
  _lines(rungs, results, looks, arms.RUNGS, False)
  _lines(updates, results, looks, filled, False)
  _lines(completions, results, looks, filled, True)
  completions.locator_params(axis="x", nbins=4)
  style.shared_legend(canvas, grid.flat)
  style.save(canvas, path)


def _lines(
  axes,
  results: Results,
  looks: Mapping[str, style.FigureStyle],
  names: Iterable[str],
  over_completions: bool,
) -> None:
  """Means over seeds and `WINDOW` steps, with their interval."""
  for name in names:
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
    figures.curve(axes, x, values, looks[name], name)

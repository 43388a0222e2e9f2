"""Shared parts of figures about experiments, in the project's style."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.sweeps import statistics
from grpo_jax.training.monitor import style
from grpo_jax.training.monitor.style import FigureStyle


def curve(
  axes: Any,
  x: np.ndarray,  # [N]
  values: np.ndarray,  # [S, N]
  look: FigureStyle,
  label: str = "",
  statistic: Callable[..., np.ndarray] = np.mean,
  **line: Any,
) -> None:
  """Draws a statistic over seeds, with its 95 % bootstrap interval as a band.

  One seed has no band. `line` has further arguments of `Axes.plot`.
  """
  every = max(len(x) // 8, 1)
  drawn = look.line(markevery=every, ms=3.2, label=label or None) | line
  axes.plot(x, statistic(values, axis=0), **drawn)
  if len(values) > 1:
    low, high = statistics.interval(values, statistic)
    style.band(axes, x, low, high, look.colour)


def ends(path: pathlib.Path, title: str, samples: Mapping[str, Any]) -> None:
  """A figure of the right answers of arms at the end: the seeds and means."""
  canvas, grid = style.panels(1, 1, style.PAGE, 2.6)
  axes = grid.ravel()[0]
  style.label(axes, title, "", "right answers, held out")
  for place, values in enumerate(samples.values()):
    axes.plot([place] * len(values), values, ".", color=style.BLUE, alpha=0.4)
    axes.plot([place], [values.mean()], "_", color=style.BLUE, markersize=18)
  axes.set_xticks(range(len(samples)))
  axes.set_xticklabels(samples, fontsize=7)
  style.save(canvas, path)


def bars(
  axes: Any,
  samples: Sequence[np.ndarray],  # Of [S]
  colours: Sequence[str],
) -> None:
  """A bar for each sample: the mean over seeds, its interval, and the seeds."""
  for place, (values, colour) in enumerate(zip(samples, colours, strict=True)):
    axes.bar(place, values.mean(), color=colour, width=0.7)
    if len(values) > 1:
      axes.plot([place] * 2, statistics.interval(values), color="black", lw=1)
    axes.plot(
      np.full(len(values), place), values, ".", color="black", ms=2.5, alpha=0.6
    )

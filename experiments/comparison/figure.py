"""Figures of a comparison: curves, aggregates, profiles, improvements."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.comparison import aggregates
from experiments.comparison import runs as runs_lib
from experiments.comparison import scores as scores_lib
from experiments.comparison.scores import Comparison
from experiments.sweeps import figures, groups, statistics
from experiments.sweeps.statistics import Estimate
from grpo_jax.training.monitor import style

_MOST_COLUMNS = 4  # Panels side by side on a page.


def write(
  found: Comparison,
  out: pathlib.Path,
  formats: Sequence[str],
  x: str,
  width: float,
) -> list[pathlib.Path]:
  """Draws all figures, and returns their paths.

  `formats` are some of `style.FORMATS`, `x` is the quantity on the horizontal
  axis of curves, and `width` that of each figure, inches.

  Raises:
    ImportError: matplotlib is not installed.
    ValueError: A run has not logged the quantity of the horizontal axis.
  """
  looks = _looks(found)
  drawn: dict[str, Any] = {"curves": _curves(found, looks, x, width)}
  if any(found.matrix(name) is not None for name in found.algorithms):
    drawn["aggregates"] = _aggregates(found, looks, width)
    drawn["profiles"] = _profiles(found, looks, width)
    if len(found.algorithms) > 1:
      drawn["improvement"] = _improvement(found, looks, width)
  written = []
  for name, canvas in drawn.items():
    for kind in formats:
      path = out / f"{name}.{kind}"
      style.save(canvas, path)
      written.append(path)
  return written


def _looks(found: Comparison) -> dict[str, style.FigureStyle]:
  """Looks of algorithms, whose variants are alike in colour."""
  bases = {run.algorithm: run.base for run in found.runs}
  variants: dict[str, list[str]] = {}
  for name in found.algorithms:
    variants.setdefault(bases[name], []).append(name)
  return style.looks(
    found.algorithms,
    bases.__getitem__,
    lambda name: variants[bases[name]].index(name),
  )


def _curves(
  found: Comparison, looks: dict[str, style.FigureStyle], x: str, width: float
) -> Any:
  """A panel for each task: interquartile means over seeds, and intervals."""
  columns = min(len(found.tasks), _MOST_COLUMNS if width > 4 else 1)
  rows = -(-len(found.tasks) // columns)
  canvas, grid = style.panels(rows, columns, width, 1.9, sharey=True)
  for axes in grid.flat[len(found.tasks) :]:
    axes.set_visible(False)
  for task, axes in zip(found.tasks, grid.flat, strict=False):
    style.label(axes, found.name(task), runs_lib.X_LABELS[x])
    for name in found.algorithms:
      curves = [
        runs_lib.curve(run, found.metric, x)
        for run in found.runs
        if (run.algorithm, run.task) == (name, task) and run.value is not None
      ]
      places, values = groups.common(curves)
      if not len(places):
        continue
      middle = statistics.interquartile_mean
      figures.curve(axes, places, values, looks[name], found.name(name), middle)
  for axes in grid[:, 0]:
    axes.set_ylabel(found.name(found.metric))
  if len(found.tasks) == 1:
    style.name_lines(canvas, grid[0, 0])
  elif len(found.algorithms) > 1:
    style.shared_legend(canvas, grid.flat)
  return canvas


def _rows(axes: Any, found: Comparison, names: Sequence[str]) -> None:
  axes.set_yticks(range(len(names)), [found.name(name) for name in names])
  axes.set_ylim(len(names) - 0.5, -0.5)
  axes.grid(visible=False, axis="y")
  axes.tick_params(axis="y", length=0)


def mark(
  axes: Any,
  place: int,
  estimate: Estimate | None,
  look: style.FigureStyle,
  lw: float = 2,
  ms: float | None = None,
) -> None:
  """Draws an estimate and its interval in a row."""
  if estimate is None:
    return
  if estimate.low is not None:
    ends = [estimate.low, estimate.high]
    axes.plot(ends, [place] * 2, color=look.colour, lw=lw, alpha=0.5)
  axes.plot([estimate.value], [place], look.marker, color=look.colour, ms=ms)


def _aggregates(
  found: Comparison, looks: dict[str, style.FigureStyle], width: float
) -> Any:
  """A panel for each aggregate, a row for each algorithm."""
  kinds = list(scores_lib.AGGREGATES)
  if width < 4:
    kinds = kinds[:2]
  height = 0.75 + 0.2 * len(found.algorithms)
  canvas, grid = style.panels(1, len(kinds), width, height, sharey=True)
  for kind, axes in zip(kinds, grid[0], strict=True):
    for place, name in enumerate(found.algorithms):
      mark(axes, place, found.aggregate(name, kind), looks[name])
    _rows(axes, found, found.algorithms)
    axes.locator_params(axis="x", nbins=4)
    axes.set_title(kind)
  canvas.supxlabel(found.name(found.metric))
  return canvas


def _profiles(
  found: Comparison, looks: dict[str, style.FigureStyle], width: float
) -> Any:
  """Share of the runs above each score."""
  matrices = {
    name: scores
    for name in found.algorithms
    if (scores := found.matrix(name)) is not None
  }
  every = np.concatenate([x.ravel() for x in matrices.values()])
  low, high = min(every.min(), 0.0), max(every.max(), 1e-9)
  thresholds = np.linspace(low, high, 101)
  canvas = style.canvas(width, 2.2)
  axes = canvas.subplots()

  def profile(scores: np.ndarray) -> np.ndarray:
    return aggregates.performance_profile(scores, thresholds)

  for name, scores in matrices.items():
    look = looks[name]
    line = look.line(marker="", label=found.name(name), drawstyle="steps-post")
    axes.plot(thresholds, profile(scores), **line)
    if len(scores) > 1:
      ends = aggregates.interval(
        [scores], profile, aggregates.PROFILE_RESAMPLES
      )
      style.band(axes, thresholds, *ends, look.colour)
  axes.set_ylim(-0.02, 1.02)
  style.label(
    axes, "", f"{found.name(found.metric)} (τ)", "share of runs above τ"
  )
  style.shared_legend(canvas, [axes])
  return canvas


def _improvement(
  found: Comparison, looks: dict[str, style.FigureStyle], width: float
) -> Any:
  """Probability of improvement over the baseline, a row for each algorithm."""
  names = [name for name in found.algorithms if name != found.baseline]
  canvas = style.canvas(width, 0.75 + 0.22 * len(names))
  axes = canvas.subplots()
  axes.axvline(0.5, color=style.GREY, lw=0.8)
  for place, name in enumerate(names):
    mark(axes, place, found.improvement(name), looks[name])
  _rows(axes, found, names)
  axes.set_xlim(-0.02, 1.02)
  axes.set_xlabel(f"P(better than {found.name(found.baseline)})")
  return canvas

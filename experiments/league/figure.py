"""The figure: accuracy of all algorithms, and probabilities of improvement."""

from __future__ import annotations

import pathlib
from typing import Any

from experiments.comparison.scores import Estimate
from experiments.league import arms
from experiments.league.results import DEFAULT, Results
from grpo_jax.training.monitor import style

_KINDS = ("groups", "one completion a prompt", "a critic")
_ROW = 0.135  # Inches.


def kind(algorithm: str) -> str:
  """The kind of baseline that an algorithm compares a completion with."""
  if arms.has_critic(algorithm):
    return _KINDS[2]
  return _KINDS[1] if arms.ENTRIES[algorithm].group_size == 1 else _KINDS[0]


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the algorithms that have ended on all tasks.

  Raises:
    ImportError: matplotlib is not installed.
  """
  names = [x for x in results.ranked() if x in results.complete]
  height = 1.0 + _ROW * max(len(names), 4)
  canvas, grid = style.panels(1, 3, style.PAGE, height, sharey=True)
  reached, better, rates = grid[0]
  looks = style.looks(_KINDS)
  for place, name in enumerate(names):
    look = looks[kind(name)]
    best = results.comparison("best")
    default = results.comparison("default").aggregate(name, "IQM")
    _mark(reached, place, best.aggregate(name, "IQM"), look)
    if default is not None:
      reached.plot(default.value, place, "|", color=style.GREY, ms=5)
    if name != arms.BASELINE:
      _mark(better, place, results.improvement(name), look)
    _rates(rates, place, name, look, results)
  style.label(reached, "Right, all tasks", "interquartile mean")
  style.label(better, "Against GRPO", "P(better than GRPO)")
  style.label(rates, "Three learning rates", "mean of a rate − default")
  better.axvline(0.5, color=style.GREY, lw=0.8)
  better.set_xlim(-0.02, 1.02)
  rates.axvline(0.0, color=style.GREY, lw=0.8)
  reached.set_yticks(
    range(len(names)), [arms.ENTRIES[x].shown for x in names], fontsize=5.5
  )
  reached.set_ylim(len(names) - 0.5, -0.5)
  for axes in grid[0]:
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
  for name in _KINDS:
    look = looks[name]
    reached.plot([], [], look.marker, color=look.colour, ms=3, label=name)
  reached.plot([], [], "|", color=style.GREY, ms=5, label="at the default rate")
  style.shared_legend(canvas, [reached])
  style.save(canvas, path)


def _mark(
  axes: Any, place: int, estimate: Estimate | None, look: style.FigureStyle
) -> None:
  """Draws an estimate and its interval in a row."""
  if estimate is None:
    return
  if estimate.low is not None:
    ends = [estimate.low, estimate.high]
    axes.plot(ends, [place] * 2, color=look.colour, lw=1.5, alpha=0.5)
  axes.plot(estimate.value, place, look.marker, color=look.colour, ms=3)


def _rates(
  axes: Any, place: int, name: str, look: style.FigureStyle, results: Results
) -> None:
  """Draws the gains of the other two learning rates over the default."""
  means = results.by_rate(name)
  if means is None:
    return
  for i, value in enumerate(means - means[DEFAULT]):
    if i != DEFAULT:
      axes.plot(value, place, "<>"[i > DEFAULT], color=look.colour, ms=3)

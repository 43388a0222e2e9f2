"""The figure of an experiment: scores at the end, and on the way there."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.sweeps import figures, statistics
from experiments.sweeps.groups import Group
from grpo_jax.training.monitor import style


def plot(
  path: pathlib.Path,
  scores: Mapping[str, Sequence[Group]],
  curves: Mapping[str, Sequence[Group]],
  labels: tuple[str, str],
  varied: tuple[str, Sequence[float]] | None,
) -> None:
  """Draws an experiment.

  Args:
    path: PNG to write.
    scores: Groups of scores of each arm, one for each value of the varied
      setting.
    curves: The same for a metric of the steps.
    labels: Names of scores and curves.
    varied: Name and values of the varied setting; None: curves are drawn.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, grid = style.panels(1, 2, style.PAGE, 2.6)
  left, right = grid[0]
  if varied is None:
    _ends(left, scores)
    left.set_xlabel(labels[0])
    left.set_title("At the end: seeds, mean and 95 % interval")
    _curves(right, curves)
    right.set_ylabel(labels[1])
    right.set_xlabel("step of the run, in all its phases")
    right.set_title("Mean over seeds and 95 % interval")
  else:
    name, values = varied
    _lines(left, scores, values)
    left.set_ylabel(labels[0])
    left.set_title("Mean over seeds and 95 % interval")
    left.legend()
    _gaps(right, scores, values)
    for axes in (left, right):
      axes.set_xlabel(name)
      axes.set_xscale("log", base=2)
      axes.set_xticks(values, [f"{x:g}" for x in values])
      axes.minorticks_off()
  style.save(canvas, path)


def _interval(values: Any) -> tuple[float, float, float]:
  """Mean, and Student's 95 % interval of it; of one value, no width."""
  values = np.asarray(values)
  if len(values) < 2:
    return (float(values.mean()),) * 3
  found = statistics.contrast([(1, values)])
  return found.estimate, found.low, found.high


def _ends(axes: Any, scores: Mapping[str, Sequence[Group]]) -> None:
  looks = style.looks(scores)
  for place, (name, [group]) in enumerate(scores.items()):
    look, values = looks[name], group.values
    axes.plot(
      *(values, [place] * len(values), look.marker),
      **{"color": look.colour, "alpha": 0.35},
    )
    mean, low, high = _interval(values)
    axes.plot([mean], [place], look.marker, color=look.colour, ms=6)
    axes.plot([low, high], [place] * 2, color=look.colour, lw=2)
  axes.set_yticks(range(len(scores)), list(scores))
  axes.set_ylim(len(scores) - 0.5, -0.5)


def _curves(axes: Any, curves: Mapping[str, Sequence[Group]]) -> None:
  looks = style.looks(curves)
  for name, [group] in curves.items():
    if group.curves:
      steps = group.curves[0][0]
      values = np.array([_smooth(points) for _, points in group.curves])
      figures.curve(axes, steps, values, looks[name], name)
  axes.legend()


def _smooth(values: np.ndarray) -> np.ndarray:
  """Means over up to five neighbours."""
  window = np.ones(min(5, len(values)))
  sums = np.convolve(values, window, mode="same")
  return sums / np.convolve(np.ones(len(values)), window, mode="same")


def _lines(
  axes: Any, scores: Mapping[str, Sequence[Group]], values: Sequence[float]
) -> None:
  looks = style.looks(scores)
  for name, groups in scores.items():
    found = [
      (value, *_interval(group.values))
      for value, group in zip(values, groups, strict=True)
      if group.values
    ]
    if found:
      places, means, low, high = np.transpose(found)
      style.band(axes, places, low, high, looks[name].colour)
      axes.plot(places, means, **looks[name].line(label=name))


def _gaps(
  axes: Any, scores: Mapping[str, Sequence[Group]], values: Sequence[float]
) -> None:
  (one, first), (other, second) = scores.items()
  for value, a, b in zip(values, first, second, strict=True):
    if len(a.values) > 1 and len(b.values) > 1:
      pairs = np.array(a.values) - np.array(b.values)
      found = statistics.contrast([(1, pairs)])
      axes.plot([value] * 2, [found.low, found.high], color=style.BLACK, lw=1.5)
      axes.plot([value], [found.estimate], "o", color=style.BLACK)
  axes.axhline(0, color=style.GREY, lw=0.8)
  axes.set_ylabel(f"{one} − {other}")
  axes.set_title("Mean difference by seed and 95 % interval")

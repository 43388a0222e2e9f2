"""The figure of an experiment: scores at the end, and on the way there."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.sweeps import figures, statistics
from experiments.sweeps.groups import Group

# Colour-blind-safe (Okabe and Ito) and told apart by the marker, too.
_STYLES = (
  ("#000000", "o"),
  ("#D55E00", "^"),
  ("#0072B2", "s"),
  ("#009E73", "D"),
  ("#CC79A7", "v"),
  ("#E69F00", "P"),
  ("#56B4E9", "X"),
)


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
    scores: Of each arm, a group for each value of what is varied.
    curves: The same of a metric of the steps.
    labels: What scores and curves are.
    varied: Name and values of what is varied; None: curves are drawn.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas = figures.canvas(11, 4.2, dpi=110)
  left, right = canvas.subplots(1, 2)
  if varied is None:
    _ends(left, scores)
    left.set_xlabel(labels[0])
    left.set_title("At the end: seeds, mean and 95 % interval", loc="left")
    _curves(right, curves)
    right.set_ylabel(labels[1])
    right.set_xlabel("step of the run, in all its phases")
    right.set_title("Mean over seeds and 95 % interval", loc="left")
  else:
    name, values = varied
    _lines(left, scores, values)
    left.set_ylabel(labels[0])
    left.set_title("Mean over seeds and 95 % interval", loc="left")
    left.legend(frameon=False)
    _gaps(right, scores, values)
    for axes in (left, right):
      axes.set_xlabel(name)
      axes.set_xscale("log", base=2)
      axes.set_xticks(values, [f"{x:g}" for x in values])
      axes.minorticks_off()
  for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
  # Without the name of the library that drew it: the same bytes everywhere.
  canvas.savefig(path, format="png", metadata={"Software": None})


def _interval(values: Any) -> tuple[float, float, float]:
  """Mean, and Student's 95 % interval of it; of one value, no width."""
  values = np.asarray(values)
  if len(values) < 2:
    return (float(values.mean()),) * 3
  found = statistics.contrast([(1, values)])
  return found.estimate, found.low, found.high


def _ends(axes: Any, scores: Mapping[str, Sequence[Group]]) -> None:
  for place, ((_, [group]), style) in enumerate(
    zip(scores.items(), _STYLES, strict=False)
  ):
    colour, marker = style
    values = group.values
    axes.plot(values, [place] * len(values), marker, color=colour, alpha=0.35)
    mean, low, high = _interval(values)
    axes.plot([mean], [place], marker, color=colour, ms=9)
    axes.plot([low, high], [place] * 2, color=colour, lw=2)
  axes.set_yticks(range(len(scores)), list(scores))
  axes.set_ylim(len(scores) - 0.5, -0.5)


def _curves(axes: Any, curves: Mapping[str, Sequence[Group]]) -> None:
  for (name, [group]), (colour, marker) in zip(
    curves.items(), _STYLES, strict=False
  ):
    if not group.curves:
      continue
    steps = group.curves[0][0]
    values = np.array([_smooth(points) for _, points in group.curves])
    every = max(len(steps) // 8, 1)
    axes.plot(
      steps,
      values.mean(axis=0),
      color=colour,
      marker=marker,
      markevery=every,
      ms=4,
      lw=1.4,
      label=name,
    )
    if len(values) > 1:
      low, high = statistics.interval(values)
      axes.fill_between(steps, low, high, color=colour, alpha=0.12, lw=0)
  axes.legend(frameon=False)


def _smooth(values: np.ndarray) -> np.ndarray:
  """Means over up to five neighbours."""
  window = np.ones(min(5, len(values)))
  sums = np.convolve(values, window, mode="same")
  return sums / np.convolve(np.ones(len(values)), window, mode="same")


def _lines(
  axes: Any, scores: Mapping[str, Sequence[Group]], values: Sequence[float]
) -> None:
  for (name, groups), (colour, marker) in zip(
    scores.items(), _STYLES, strict=False
  ):
    found = [
      (value, *_interval(group.values))
      for value, group in zip(values, groups, strict=True)
      if group.values
    ]
    if found:
      places, means, low, high = np.transpose(found)
      axes.fill_between(places, low, high, color=colour, alpha=0.12, lw=0)
      axes.plot(places, means, color=colour, marker=marker, label=name)


def _gaps(
  axes: Any, scores: Mapping[str, Sequence[Group]], values: Sequence[float]
) -> None:
  (one, first), (other, second) = scores.items()
  for value, a, b in zip(values, first, second, strict=True):
    if len(a.values) > 1 and len(b.values) > 1:
      pairs = np.array(a.values) - np.array(b.values)
      found = statistics.contrast([(1, pairs)])
      axes.plot([value] * 2, [found.low, found.high], color="#000000", lw=1.5)
      axes.plot([value], [found.estimate], "o", color="#000000")
  axes.axhline(0, color="#888888", lw=0.8)
  axes.set_ylabel(f"{one} − {other}")
  axes.set_title("Mean difference by seed and 95 % interval", loc="left")

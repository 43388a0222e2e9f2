"""The cells of a sweep that differ in the seed alone, and their metrics."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.sweeps import cells as cells_lib
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Estimate


@dataclasses.dataclass(frozen=True)
class Group:
  """Cells that differ in the seed alone."""

  overrides: dict[str, Any]  # Overrides that they share.
  num_cells: int  # Number of cells.
  values: list[float]  # Metric of the cells that have it.
  # (steps [N], values [N]) of the metric in the log, for these cells.
  curves: list[tuple[np.ndarray, np.ndarray]]


def collect(
  root: pathlib.Path, metric: str
) -> tuple[list[Group], dict[str, str]]:
  """Reads the runs of a sweep.

  Returns:
    The groups, in the order of the sweep; and folder -> reason for each cell
    without a value.

  Raises:
    FileNotFoundError: The folder has no sweep.
    KeyError: No run has this metric; the message lists those that exist.
  """
  manifest = cells_lib.read_manifest(root)
  values = cells_lib.read_metrics([root / x for x in manifest], metric)
  groups: dict[str, Group] = {}
  missing: dict[str, str] = {}
  for (folder, overrides), (value, why) in zip(
    manifest.items(), values, strict=True
  ):
    shared = {k: v for k, v in overrides.items() if k != "seed"}
    key = json.dumps(shared, sort_keys=True)
    group = groups.get(key, Group(shared, 0, [], []))
    groups[key] = dataclasses.replace(group, num_cells=group.num_cells + 1)
    if value is None:
      missing[folder] = why
    else:
      group.values.append(value)
      group.curves.append(cells_lib.read_curve(root / folder, metric))
  return list(groups.values()), missing


def summarize(
  values: Sequence[float],
) -> tuple[Estimate | None, float | None]:
  """Mean with its interval, and interquartile mean; None without a value."""
  if not values:
    return None, None
  array = np.array(values)
  mean, iqm = float(array.mean()), float(statistics.interquartile_mean(array))
  if len(values) == 1:
    return Estimate(mean), iqm
  low, high = statistics.interval(array)
  return Estimate(mean, float(low), float(high)), iqm


def common(
  curves: Sequence[tuple[np.ndarray, np.ndarray]], most: int = 200
) -> tuple[np.ndarray, np.ndarray]:  # [N], [S, N]
  """Curves of seeds at the same places, where all of them are known.

  Equal places stay as they are. Others, as numbers of tokens, are those of the
  first curve between the largest start and the smallest end, and values between
  two points of a curve lie on the line through them.
  """
  curves = [curve for curve in curves if len(curve[0])]
  if not curves:
    return np.zeros(0), np.zeros((0, 0))
  first = curves[0][0]
  if any(len(x) != len(first) or (x != first).any() for x, _ in curves):
    low = max(x[0] for x, _ in curves)
    high = min(x[-1] for x, _ in curves)
    inside = first[(first > low) & (first < high)]
    first = np.unique([low, *inside, high]) if high > low else np.array([low])
  if len(first) > most:
    first = first[np.linspace(0, len(first) - 1, most).round().astype(int)]
  return first, np.stack([np.interp(first, *curve) for curve in curves])

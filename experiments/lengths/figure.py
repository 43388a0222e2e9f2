"""The figure: lengths over steps, accuracy over length, right and wrong."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from experiments.lengths.results import Results
from experiments.sweeps import figures
from grpo_jax.training.monitor import style

_ARMS = (
  *("all", "grpo", "dr_grpo", "shortest-8of16", "shortest-8of24"),
  *("shortest-4of16", "efficiency", "adaptive"),
)
_MENDED = ("grpo-mended", "dr_grpo-mended")
_SMOOTHED = 10  # Steps of a mean, for the eye.


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the results of the arms that have ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, grid = style.panels(1, 3, style.PAGE, 2.8)
  over, end, wrong = grid[0]
  looks = style.looks(_ARMS)
  for arm, look in looks.items():
    if arm not in results.arms:
      continue
    _curve(over, results.drawn(arm, "length"), look, arm)
    lengths, accuracy = results.end(arm, "length"), results.end(arm, "accuracy")
    end.plot(
      lengths, accuracy, look.marker, color=look.colour, alpha=0.4, ms=2.5
    )
    end.plot(lengths.mean(), accuracy.mean(), look.marker, color=look.colour)
  for arm in _MENDED:
    name = arm.removesuffix("-mended")
    for what, dashes in zip(("right", "wrong"), style.DASHES, strict=False):
      if arm in results.arms:
        look = dataclasses.replace(looks[name], dashes=dashes)
        _curve(wrong, results.drawn(arm, what), look, f"{name}, {what}")
  style.label(over, "All that is drawn", "step", "tokens")
  style.label(end, "In the last steps", "tokens", "accuracy")
  style.label(wrong, "The reward has no bug", "step", "tokens")
  if wrong.get_legend_handles_labels()[0]:
    wrong.legend()
  style.shared_legend(canvas, [over], columns=4)
  style.save(canvas, path)


def _curve(
  axes, values: np.ndarray, look: style.FigureStyle, label: str
) -> None:
  """Means over seeds [S, steps] of a few steps each, with their interval."""
  num = values.shape[1] // _SMOOTHED
  if not num:
    return
  parts = values[:, : num * _SMOOTHED].reshape(len(values), num, _SMOOTHED)
  values = np.nanmean(parts, axis=-1)
  steps = (np.arange(num) + 0.5) * _SMOOTHED
  figures.curve(axes, steps, values, look, label)

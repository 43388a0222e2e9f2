"""The figure: lengths over steps, accuracy over length, right and wrong."""

from __future__ import annotations

import pathlib

import numpy as np

from experiments.lengths.results import Results
from experiments.sweeps import figures, statistics

# Colour-blind-safe (Okabe and Ito).
_COLOURS = {
  "all": "#000000",
  "shortest-8of16": "#56B4E9",
  "shortest-8of24": "#0072B2",
  "shortest-4of16": "#009E73",
  "efficiency": "#D55E00",
  "adaptive": "#CC79A7",
  "grpo": "#E69F00",
  "dr_grpo": "#8C6D1F",
}
_MENDED = ("grpo-mended", "dr_grpo-mended")
_SMOOTHED = 10  # Steps of a mean, for the eye.


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws whatever has ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas = figures.canvas(13, 4.2)
  over, end, wrong = canvas.subplots(1, 3)
  shown = [arm for arm in _COLOURS if arm in results.arms]
  for arm in shown:
    style = {"color": _COLOURS[arm], "label": arm}
    _curve(over, results.drawn(arm, "length"), **style)
    lengths, accuracy = results.end(arm, "length"), results.end(arm, "accuracy")
    end.plot(lengths, accuracy, ".", color=_COLOURS[arm], alpha=0.5, ms=5)
    end.plot(lengths.mean(), accuracy.mean(), "o", ms=9, **style)
  for arm, colour in zip(_MENDED, ("#E69F00", "#8C6D1F"), strict=True):
    if arm not in results.arms:
      continue
    for what, dashes in (("right", "-"), ("wrong", "--")):
      style = {"color": colour, "ls": dashes, "label": f"{arm}, {what}"}
      _curve(wrong, results.drawn(arm, what), **style)
  for axes, title, x, y in (
    (over, "Tokens of all completions drawn", "step", "tokens"),
    (end, "The same, in the last steps", "tokens", "accuracy"),
    (wrong, "The reward has no bug", "step", "tokens"),
  ):
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
    if axes.get_legend_handles_labels()[0]:
      axes.legend(frameon=False, fontsize=8)
  canvas.savefig(path)


def _curve(axes, values: np.ndarray, **style) -> None:  # [S, steps]
  """Means over seeds of a few steps each, with their interval."""
  num = values.shape[1] // _SMOOTHED
  if not num:
    return
  parts = values[:, : num * _SMOOTHED].reshape(len(values), num, _SMOOTHED)
  values = np.nanmean(parts, axis=-1)
  steps = (np.arange(num) + 0.5) * _SMOOTHED
  low, high = statistics.interval(values)
  axes.plot(steps, values.mean(axis=0), lw=1.5, **style)
  axes.fill_between(steps, low, high, color=style["color"], alpha=0.12, lw=0)

"""Curves of a finished or running run, from its `metrics.jsonl`."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo_jax.training.monitor import style
from grpo_jax.training.runtime import metrics_log, paths

if TYPE_CHECKING:
  from matplotlib.figure import Figure

CURVES = "curves.png"  # In the folder of a run.


def plot_run(workdir: str | os.PathLike, path: str | os.PathLike) -> None:
  """Writes `figure_of` a run as a PNG.

  Args:
    workdir: Folder of the run, local or gs://.
    path: PNG to write, the same; its folder must exist.

  Raises:
    ImportError, FileNotFoundError, ValueError: See `figure_of`.
  """
  paths.parse(path).write_bytes(png(figure_of(workdir)))


def figure_of(workdir: str | os.PathLike) -> Figure:
  """Reward, accuracy, completion length and entropy of a run.

  Covers the steps of the reinforcement phases. A faint line shows every step,
  a strong one its moving average.

  Args:
    workdir: Folder of the run, local or gs://.

  Returns:
    A figure of matplotlib, which a notebook shows.

  Raises:
    ImportError: If matplotlib is not installed.
    FileNotFoundError: If the run has no `metrics.jsonl`.
    ValueError: If no reinforcement step was logged yet.
  """
  try:
    import matplotlib
    from matplotlib import figure
  except ImportError as error:
    raise ImportError(
      "plot_run: matplotlib is not installed; run"
      " `pip install 'grpo_jax[plot]'`."
    ) from error
  source = paths.parse(workdir) / metrics_log.METRICS
  if not source.exists():
    raise FileNotFoundError(
      f"plot_run: {source} does not exist; pass the --workdir of a run."
    )
  every = list(metrics_log.read_lines(source))
  # Phases that draw completions and train the policy on them.
  names = {
    line["phase"]
    for line in every
    if {"reward/mean", "learning_rate"} <= line.keys()
  }
  lines = [line for line in every if line.get("phase") in names]
  if not lines:
    raise ValueError(
      f"plot_run: {source} has no line of a reinforcement phase yet; wait for"
      " its first step."
    )

  class Shown(figure.Figure):
    """A figure of its own, not pyplot's: no display and no global state."""

    def _repr_png_(self) -> bytes:
      """What notebooks show, whatever their backend is."""
      return png(self)

  # A notebook has settings of its own, which stay.
  with matplotlib.rc_context():
    canvas = style.canvas(style.PAGE, 4.6, kind=Shown)
    name = source.parent.resolve().name
    canvas.suptitle(f"Reinforcement phase of {name}")
    reward, accuracy, length, entropy = canvas.subplots(2, 2).flat

    _curve(reward, lines, "reward/mean", style.BLUE, "training")
    _finish(reward, "Reward", "mean reward of a completion")

    _curve(accuracy, lines, "accuracy", style.BLUE, "training")
    steps, values = _series(lines, "eval/accuracy")
    if len(steps):
      accuracy.plot(
        steps, values, "o-", color=style.ORANGE, ms=3.2, label="evaluation"
      )
    _finish(accuracy, "Accuracy", "fraction of right answers")
    if accuracy.lines:
      accuracy.set_ylim(-0.03, 1.03)

    _curve(length, lines, "length/mean", style.BLUE, "all")
    _curve(length, lines, "length/correct", style.GREEN, "right answers")
    _curve(length, lines, "length/incorrect", style.RED, "wrong answers")
    _finish(length, "Completion length", "mean length (tokens)")

    _curve(entropy, lines, "entropy/mean", style.BLUE, "training")
    _finish(entropy, "Entropy", "mean entropy (nats per token)")
  return canvas


def png(canvas: Figure) -> bytes:
  """A figure as the bytes of a PNG."""
  picture = io.BytesIO()
  canvas.savefig(picture, format="png")
  return picture.getvalue()


def _series(
  lines: list[dict[str, Any]], name: str
) -> tuple[np.ndarray, np.ndarray]:  # [N], [N]
  points = [
    (line["step"], line[name]) for line in lines if line.get(name) is not None
  ]
  steps, values = np.array(points, dtype=float).reshape(-1, 2).T
  return steps, values


def smoothed(values: np.ndarray) -> np.ndarray:  # [N] -> [N]
  """Moving average of the neighbours within a fortieth of the curve."""
  index = np.arange(len(values))
  reach = len(values) // 40
  # Near the ends fewer neighbours are averaged.
  first = np.maximum(index - reach, 0)
  last = np.minimum(index + reach + 1, len(values))
  sums = np.concatenate([[0.0], np.cumsum(values)])
  return (sums[last] - sums[first]) / (last - first)


def _curve(axes: Any, lines: list, name: str, color: str, label: str) -> None:
  steps, values = _series(lines, name)
  if not len(steps):
    return
  axes.plot(steps, values, color=color, lw=0.5, alpha=0.3)
  marker = "o" if len(steps) == 1 else None  # A line of one point is invisible.
  axes.plot(steps, smoothed(values), color=color, label=label, marker=marker)


def _finish(axes: Any, title: str, unit: str) -> None:
  style.label(axes, title, "step", unit)
  if not axes.lines:
    axes.text(
      0.5,
      0.5,
      "not recorded",
      ha="center",
      va="center",
      color="0.5",
      transform=axes.transAxes,
    )
    axes.set(xticks=[], yticks=[])
    return
  axes.xaxis.get_major_locator().set_params(integer=True)
  axes.margins(x=0.02)
  _, labels = axes.get_legend_handles_labels()
  if len(labels) > 1:
    axes.legend()

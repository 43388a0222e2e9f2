"""Curves and arrays of a finished or running run, from its logs.

history = grpo_jax.load("runs/quickstart").history
plt.plot(history.steps, history["reward/mean"])
plt.plot(*history.points("eval/accuracy"))
history.to_pandas().groupby("phase").mean()
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo_jax import ranges
from grpo_jax.settings.groups import nearest
from grpo_jax.training.monitor import style
from grpo_jax.training.runtime import files, log

if TYPE_CHECKING:
  from matplotlib.figure import Figure
if TYPE_CHECKING:
  import pandas as pd

CURVES = "curves.png"  # File in the folder of a run.


def plot_run(workdir: str | os.PathLike, path: str | os.PathLike) -> None:
  """Writes `figure_of` a run as a PNG.

  Args:
    workdir: Folder of the run, local or gs://.
    path: PNG to write, local or gs://; its folder must exist.

  Raises:
    ImportError, FileNotFoundError, ValueError: See `figure_of`.
  """
  files.parse(path).write_bytes(png(figure_of(workdir)))


def figure_of(workdir: str | os.PathLike) -> Figure:
  """Draws reward, accuracy, completion length and entropy of a run.

  The curves cover the steps of the reinforcement phases. A faint line shows
  every step, a strong one its moving average.

  Args:
    workdir: Folder of the run, local or gs://.

  Raises:
    ImportError: matplotlib is not installed.
    FileNotFoundError: The run has no `metrics.jsonl`.
    ValueError: No reinforcement step was logged yet.
  """
  try:
    import matplotlib
    from matplotlib import figure
  except ImportError as error:
    raise ImportError(
      "plot_run: matplotlib is not installed; run"
      " `pip install 'grpo_jax[plot]'`."
    ) from error
  source = files.parse(workdir) / log.METRICS
  if not source.exists():
    raise FileNotFoundError(
      f"plot_run: {source} does not exist; pass the --workdir of a run."
    )
  log_lines = list(log.read_lines(source))
  # Phases that draw completions and train the policy on them.
  names = {
    line["phase"]
    for line in log_lines
    if {"reward/mean", "learning_rate"} <= line.keys()
  }
  lines = [line for line in log_lines if line.get("phase") in names]
  if not lines:
    raise ValueError(
      f"plot_run: {source} has no line of a reinforcement phase yet; wait for"
      " its first step."
    )

  class PngFigure(figure.Figure):
    """A figure of its own, not pyplot's: no display and no global state."""

    def _repr_png_(self) -> bytes:
      """The picture that notebooks show, with any backend."""
      return png(self)

  # The notebook's own settings come back afterwards.
  with matplotlib.rc_context():
    canvas = style.canvas(style.PAGE, 4.6, kind=PngFigure)
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
  """The bytes of a figure as a PNG."""
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
  """The moving average over neighbours within a fortieth of the curve."""
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


class RunHistory(Mapping[str, np.ndarray]):
  """Metric -> its value in each of N lines of the log, [N] float64.

  A line is a step, or the evaluation before the first step of a phase, which
  has the number of the step before it. A number that a line lacks, as between
  two evaluations, and a mean over nothing are NaN.

  Attributes:
    steps: [N] int, over all phases.
    phases: [N] str, the phase of each line.
  """

  def __init__(self, lines: list[dict[str, Any]]):
    """Takes lines of `metrics.jsonl`, merged with those of `timings.jsonl`."""
    self.steps = np.array([line["step"] for line in lines], np.int64)
    self.phases = np.array([line["phase"] for line in lines], np.str_)
    self._lines = lines
    names = {name: None for line in lines for name in line}
    self._names = [name for name in names if name not in ("step", "phase")]

  def __getitem__(self, name: str) -> np.ndarray:  # [N]
    if name not in self._names:
      raise KeyError(
        f"history: this run has logged no {name!r}{nearest(name, self._names)}."
        f" It has: {', '.join(sorted(self._names))}."
      )
    return np.array(
      [line.get(name) for line in self._lines], np.float64
    )  # None is NaN.

  def __iter__(self) -> Iterator[str]:
    return iter(self._names)

  def __len__(self) -> int:
    return len(self._names)

  def __contains__(self, name: object) -> bool:
    return name in self._names

  def __repr__(self) -> str:
    lines = ranges.counted(len(self.steps), "line")
    return f"History({lines} of {ranges.counted(len(self), 'metric')})"

  def points(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which there is a number, and the numbers, each [M]."""
    values = self[name]
    has_value = ~np.isnan(values)
    return self.steps[has_value], values[has_value]

  def to_pandas(self) -> pd.DataFrame:
    """A table with a column for each metric, and "step" and "phase".

    Raises:
      ImportError: pandas is not installed.
    """
    try:
      import pandas
    except ImportError as error:
      raise ImportError(
        "history.to_pandas: pandas is not installed; run `pip install pandas`,"
        " or use history[name], which are NumPy arrays."
      ) from error
    columns = {"step": self.steps, "phase": self.phases, **self}
    return pandas.DataFrame(columns)


def read(workdir: str | os.PathLike) -> RunHistory:
  """Reads the log of a run so far; empty if nothing has been logged.

  Args:
    workdir: Folder of the run, local or gs://.

  Raises:
    ValueError: A line of the log is damaged.
  """
  lines: dict[tuple[str, int], dict[str, Any]] = {}
  for name in (log.METRICS, log.TIMINGS):
    path = files.parse(workdir) / name
    for line in log.read_lines(path) if path.exists() else []:
      lines.setdefault((line["phase"], line["step"]), {}).update(line)
  return RunHistory(list(lines.values()))

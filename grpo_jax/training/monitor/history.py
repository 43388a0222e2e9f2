"""What a run has logged, as arrays.

history = grpo_jax.load("runs/quickstart").history
plt.plot(history.steps, history["reward/mean"])
plt.plot(*history.points("eval/accuracy"))
history.to_pandas().groupby("phase").mean()
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo_jax import ranges
from grpo_jax.settings.settings import nearest
from grpo_jax.training.runtime import metrics_log, paths

if TYPE_CHECKING:
  import pandas as pd


class History(Mapping[str, np.ndarray]):
  """Metric -> its value in each of N lines of the log, [N] float64.

  A line is a step, or the evaluation before the first step of a phase; that one
  has the number of the step before it. Where a line has no such number, as
  between two evaluations, or a mean was over nothing, there is NaN.

  Attributes:
    steps: [N] int, over all phases.
    phases: [N] str, the phase of each line.
  """

  def __init__(self, lines: list[dict[str, Any]]):
    """Takes lines of `metrics.jsonl`, with what `timings.jsonl` has of each."""
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
    known = ~np.isnan(values)
    return self.steps[known], values[known]

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


def read(workdir: str | os.PathLike) -> History:
  """What has been logged until now; empty if nothing has.

  Args:
    workdir: Folder of the run, local or gs://.

  Raises:
    ValueError: A line of the log is damaged.
  """
  lines: dict[tuple[str, int], dict[str, Any]] = {}
  for name in (metrics_log.METRICS, metrics_log.TIMINGS):
    path = paths.parse(workdir) / name
    for line in metrics_log.read_lines(path) if path.exists() else []:
      lines.setdefault((line["phase"], line["step"]), {}).update(line)
  return History(list(lines.values()))

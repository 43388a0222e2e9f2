"""Tables of a comparison.

The caption has the number of runs and the kind of interval.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator

from experiments.comparison import scores as scores_lib
from experiments.comparison.scores import Comparison
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Estimate
from experiments.sweeps.tables import Cell, Table
from grpo_jax import ranges


def _seeds(found: Comparison) -> str:
  """n, in words."""
  counts = sorted(
    {len(found.seeds(x, y)) for x in found.algorithms for y in found.tasks}
  )
  if len(counts) == 1:
    return f"n = {ranges.counted(counts[0], 'seed')}"
  return f"n = {counts[0]} to {counts[-1]} seeds"


def _tasks(found: Comparison) -> str:
  count = len(found.tasks)
  return "one task" if count == 1 else f"{count} tasks"


_BOOTSTRAP = (
  "95 % intervals are those of the percentile bootstrap over seeds,"
  " stratified by task (50 000 resamples)."
)


def every(found: Comparison) -> Iterator[Table]:
  """Yields all tables of a comparison."""
  yield _by_task(found)
  # Over one task, median and mean are one number, and the third is above.
  if len(found.tasks) > 1 and (aggregates := _aggregates(found)):
    yield aggregates
  if len(found.algorithms) > 1:
    yield _improvements(found)
    yield _differences(found)


def _by_task(found: Comparison) -> Table:
  rows: list[list[Cell]] = [
    [found.name(x), *(found.of_task(x, y) for y in found.tasks)]
    for x in found.algorithms
  ]
  head, shown = (
    ["algorithm", *map(found.name, found.tasks)],
    "Interquartile mean",
  )
  if len(found.tasks) == 1:  # No table of all tasks.
    mean = scores_lib.AGGREGATES["mean"]
    for row, name in zip(rows, found.algorithms, strict=True):
      row.append(found.of_task(name, found.tasks[0], mean))
    head.append("mean")
    shown = "Interquartile mean and mean"
  caption = (
    f"{shown} over seeds of {found.name(found.metric)} at the end of training;"
    f" {_seeds(found)} for each algorithm and task. {_BOOTSTRAP}"
  )
  return Table("tasks", "Each task", caption, head, rows)


def _aggregates(found: Comparison) -> Table | None:
  rows: list[list[Cell]] = []
  for name in found.algorithms:
    scores = found.matrix(name)
    if scores is None:
      rows.append(
        [found.name(name), None, *[None] * len(scores_lib.AGGREGATES)]
      )
      continue
    estimates = [found.aggregate(name, x) for x in scores_lib.AGGREGATES]
    rows.append([found.name(name), scores.size, *estimates])
  if all(row[1] is None for row in rows):
    return None
  scale = f" {found.scale}" if found.scale else ""
  caption = (
    f"Scores over {_tasks(found)} with {_seeds(found)} each:"
    f" {found.name(found.metric)} at the end of training. Each row pools the"
    " number of runs shown, over the seeds available for every task. The"
    f" optimality gap is the mean shortfall from 1.{scale} {_BOOTSTRAP}"
  )
  head = ["algorithm", "runs", *scores_lib.AGGREGATES]
  return Table("aggregates", "All tasks together", caption, head, rows)


def _improvements(found: Comparison) -> Table:
  rows = [
    [found.name(x), found.improvement(x)]
    for x in found.algorithms
    if x != found.baseline
  ]
  base = found.name(found.baseline)
  caption = (
    f"Probability that a run of the algorithm is better than a run of {base}"
    f" on a task, mean over {_tasks(found)} with {_seeds(found)} each; 0.5"
    " means no difference. 95 % intervals are those of the stratified"
    " percentile bootstrap (50 000 resamples)."
  )
  title = f"Probability of improvement over {base}"
  head = ["algorithm", "P(better)"]
  return Table("improvement", title, caption, head, rows)


def _differences(found: Comparison) -> Table:
  rows: list[list[Cell]] = []
  for one in found.differences():
    contrast = one.contrast
    if contrast is None:
      rows.append(
        [found.name(one.algorithm), found.name(one.task), one.n, *[None] * 3]
      )
      continue
    estimate = Estimate(contrast.estimate, contrast.low, contrast.high)
    p, adjusted = (statistics.p_text(x) for x in (contrast.p, one.p_holm))
    rows.append(
      [
        *(found.name(one.algorithm), found.name(one.task), one.n),
        *(estimate, p, adjusted),
      ]
    )
  base = found.name(found.baseline)
  caption = (
    f"Difference to {base} in {found.name(found.metric)}, seed by seed; n is"
    " the number of seeds that both have. 95 % intervals and p are those of"
    " Student's t of the differences; p (Holm) is corrected for all"
    f" {sum(row[3] is not None for row in rows)} comparisons of this table."
  )
  head = ["algorithm", "task", "n", "difference", "p", "p (Holm)"]
  return Table(
    *("differences", f"Paired differences to {base}", caption, head, rows, 2)
  )


def runs_csv(found: Comparison) -> str:
  """Returns a CSV line for each run, those without a value included."""
  file = io.StringIO()
  writer = csv.writer(file, lineterminator="\n")
  writer.writerow(
    ["algorithm", "task", "seed", found.metric, "missing", "workdir"]
  )
  for run in found.runs:
    value = "" if run.value is None or math.isnan(run.value) else run.value
    writer.writerow(
      [run.algorithm, run.task, run.seed, value, run.why, run.workdir]
    )
  return file.getvalue()

"""Tables of a comparison, each written as Markdown, CSV and LaTeX.

A table is made once, of texts, numbers and estimates with their intervals. In
LaTeX, numbers stand in columns of siunitx, under rules of booktabs. The caption
has the number of runs and the kind of interval.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Iterator, Sequence

from experiments.comparison import scores as scores_lib
from experiments.comparison.scores import Comparison, Estimate
from experiments.sweeps import latex, pages, statistics
from grpo_jax import ranges

_NONE = "–"
PREAMBLE = "% Needs \\usepackage{booktabs} and \\usepackage{siunitx}."

Cell = str | float | Estimate | None


@dataclasses.dataclass(frozen=True)
class Table:
  """Table of a comparison."""

  name: str  # Name of its files, and of its label in LaTeX.
  title: str  # Title in a few words.
  caption: str  # Description of the numbers, their runs and their interval.
  head: Sequence[str]  # A name for each column; the first columns are text.
  rows: Sequence[Sequence[Cell]]  # Rows with as many cells as `head` has names.
  num_text: int = 1  # Number of columns of text.


def digits(table: Table) -> list[int]:
  """Digits behind the point of each column: three significant ones.

  A column whose largest number is 0.5 has three, as has one of 12.3; one of
  0.004 has five, and one of thousands has one.
  """
  found = []
  for column in zip(*table.rows, strict=True):
    numbers = [x.value if isinstance(x, Estimate) else x for x in column]
    sizes = [abs(x) for x in numbers if isinstance(x, float) and x]
    largest = math.floor(math.log10(max(sizes))) if sizes else 0
    found.append(min(max(2 - largest, 3 if largest < 3 else 1), 9))
  return found


def text(cell: Cell, digits: int) -> str:
  """Text of a cell in one piece."""
  if cell is None:
    return _NONE
  if isinstance(cell, str | int):
    return str(cell)
  if isinstance(cell, float):
    return f"{cell:.{digits}f}"
  if cell.low is None or cell.high is None:
    return f"{cell.value:.{digits}f}"
  low, high = f"{cell.low:.{digits}f}", f"{cell.high:.{digits}f}"
  return f"{cell.value:.{digits}f} [{low}, {high}]"


def texts(table: Table) -> list[list[str]]:
  """Cells of all rows as text, each cell in one piece."""
  places = digits(table)
  return [
    [text(cell, place) for cell, place in zip(row, places, strict=True)]
    for row in table.rows
  ]


def markdown(table: Table) -> str:
  """A heading, the table, and its caption."""
  numbers = len(table.head) - table.num_text
  align = ["---"] * table.num_text + ["---:"] * numbers
  lines = [
    f"## {table.title}",
    "",
    *pages.table(table.head, texts(table), align),
    "",
    table.caption,
  ]
  return "\n".join(lines) + "\n"


def as_csv(table: Table) -> str:
  """Numbers in full; an estimate has three columns, NAME, low and high."""
  file = io.StringIO()
  writer = csv.writer(file, lineterminator="\n")
  wide = _estimates(table)
  head: list[str] = []
  for i, name in enumerate(table.head):
    head += [name, f"{name}, low", f"{name}, high"] if i in wide else [name]
  writer.writerow(head)
  for row in table.rows:
    cells: list[str | float | None] = []
    for i, cell in enumerate(row):
      if isinstance(cell, Estimate):
        cells += [cell.value, cell.low, cell.high]
      else:
        cells += [cell, *([None] * 2 if i in wide else [])]
    writer.writerow("" if cell is None else cell for cell in cells)
  return file.getvalue()


def as_latex(table: Table) -> str:
  """A floating table; an estimate has a column and one for its interval."""
  wide, places = _estimates(table), digits(table)
  columns, head = "", []
  for i, name in enumerate(map(latex.escape, table.head)):
    if i < table.num_text:
      columns += "l"
      head.append(name)
    elif i in wide:
      columns += f"S[table-format={_format(table, i, places[i])}]@{{\\,}}l"
      head.append(f"\\multicolumn{{2}}{{c}}{{{name}}}")
    elif any(isinstance(row[i], str) for row in table.rows):
      columns += "r"
      head.append(name)
    else:
      columns += f"S[table-format={_format(table, i, places[i])}]"
      head.append(f"{{{name}}}")
  body = [
    [
      part
      for i, cell in enumerate(row)
      for part in _latex_cell(cell, i in wide, places[i])
    ]
    for row in table.rows
  ]
  lines = latex.tabular(columns, head, body)
  caption = latex.escape(table.caption)
  return "\n".join(latex.table(lines, caption, f"tab:{table.name}")) + "\n"


def _latex_cell(cell: Cell, is_wide: bool, digits: int) -> list[str]:
  """A cell, and the one of its interval."""
  more = [""] if is_wide else []
  if cell is None:
    return [f"{{{latex.escape(_NONE)}}}", *more]
  if isinstance(cell, str):
    return [latex.escape(cell), *more]
  if not isinstance(cell, Estimate):
    return [text(cell, digits), *more]
  value = f"{cell.value:.{digits}f}"
  if cell.low is None or cell.high is None:
    return [value, *more]
  low, high = f"{cell.low:.{digits}f}", f"{cell.high:.{digits}f}"
  return [value, f"[\\num{{{low}}}, \\num{{{high}}}]"]


def _estimates(table: Table) -> set[int]:
  """Indices of the columns that have an estimate."""
  return {
    i
    for row in table.rows
    for i, cell in enumerate(row)
    if isinstance(cell, Estimate)
  }


def _format(table: Table, column: int, digits: int) -> str:
  """Column format for siunitx: the digits on both sides of the point."""
  cells = [row[column] for row in table.rows]
  numbers = [x.value if isinstance(x, Estimate) else x for x in cells]
  shown = [text(x, digits) for x in numbers if isinstance(x, float | int)]
  whole = max((len(x.lstrip("-").partition(".")[0]) for x in shown), default=1)
  sign = "-" if any(x.startswith("-") for x in shown) else ""
  is_whole = all("." not in x for x in shown)
  return f"{sign}{whole}" if is_whole else f"{sign}{whole}.{digits}"


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

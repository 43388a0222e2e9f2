"""Tables that are written as Markdown, CSV and LaTeX.

A table is made once, of texts, numbers and estimates with their intervals. In
LaTeX, numbers stand in columns of siunitx, under rules of booktabs.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Sequence

from experiments.sweeps import latex, pages
from experiments.sweeps.statistics import Estimate

_NONE = "–"
PREAMBLE = "% Needs \\usepackage{booktabs} and \\usepackage{siunitx}."

Cell = str | float | Estimate | None


@dataclasses.dataclass(frozen=True)
class Table:
  """Table of numbers."""

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

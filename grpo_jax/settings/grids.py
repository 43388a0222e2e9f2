"""Cells of a sweep: products, values side by side, seeds.

    def sweep(add):
      for cell in grids.product(
        {"rl.optimizer.learning_rate": (1e-3, 3e-3)}, grids.seeds(5)
      ):
        add(**cell)

Each function returns a list of cells, and a cell is a dictionary: dotted name
of a setting -> value. `product` also takes lists of cells, so that functions
can be nested.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Cells: TypeAlias = list[dict[str, Any]]
Grid: TypeAlias = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]


def product(*grids: Grid) -> Cells:
  """Combines every cell of each grid with every cell of the other grids.

  Args:
    *grids: Grids. A grid is a dictionary, name -> values, in which each value
      is combined with every value of the other names; or a list of cells.

  Returns:
    Cells, the last grid fastest; one empty cell without grids.

  Raises:
    ValueError: Two grids set the same name, or a grid has no cell.
  """
  parts = [_cells(grid) for grid in grids]
  all_names: set[str] = set()
  for part in parts:
    names = {name for cell in part for name in cell}
    if shared := sorted(all_names & names):
      raise ValueError(
        f"product: {', '.join(shared)} is in two grids; leave it out of one."
      )
    all_names |= names
  return [
    {name: value for cell in cells for name, value in cell.items()}
    for cells in itertools.product(*parts)
  ]


def zipped(axes: Mapping[str, Sequence[Any]]) -> Cells:
  """Combines the first values of all names, the second values, and so on.

  Args:
    axes: Name -> values, equally many for each name.

  Raises:
    ValueError: Names have different numbers of values, or none.
  """
  counts = {name: len(values) for name, values in axes.items()}
  if len({*counts.values()}) != 1 or not all(counts.values()):
    text = ", ".join(f"{name} has {count}" for name, count in counts.items())
    raise ValueError(
      f"zipped: needs as many values for each name; {text or 'no name'}."
    )
  rows = zip(*axes.values(), strict=True)
  return [dict(zip(axes, row, strict=True)) for row in rows]


def seeds(count: int, first: int = 0) -> Cells:
  """Cells that differ in the seed alone.

  Args:
    count: Number of seeds.
    first: The first seed.

  Raises:
    ValueError: The count is below 1.
  """
  if count < 1:
    raise ValueError(f"seeds: received {count}; needs at least 1.")
  return [{"seed": first + number} for number in range(count)]


def _cells(grid: Grid) -> Cells:
  if isinstance(grid, Mapping):
    for name, values in grid.items():
      if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(
          f"product: {name} got {values!r}; needs several values, as"
          f" ({values!r},)."
        )
    cells = [
      dict(zip(grid, row, strict=True))
      for row in itertools.product(*grid.values())
    ]
  else:
    cells = [dict(cell) for cell in grid]
  if not cells:
    raise ValueError(f"product: {grid!r} has no cell; leave it out.")
  return cells

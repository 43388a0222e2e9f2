"""Cells of sweeps as few compiled programs, one after another."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from experiments.sweeps import cells as cells_lib
from experiments.sweeps.cells import Cell
from grpo_jax.cli import flags as flags_lib
from grpo_jax.settings import overrides
from grpo_jax.training import many
from grpo_jax.training.runtime import hyperparameters


def programs(cells: Sequence[Cell]) -> list[list[Cell]]:
  """The cells that one program can compute, as far as their configs tell."""
  found = collections.defaultdict(list)
  for cell in cells:
    key = cells_lib.program(
      cell.config, many.may_differ(cell.config), hyperparameters.CONSTANT
    )
    found[key].append(cell)
  return list(found.values())


def train(group: Sequence[Cell]) -> list[Any]:
  """Trains the cells of one program.

  Returns:
    The end of each run, or its error, which is also at the end of the cell's
    `log.txt`.
  """
  try:
    results = many.train(
      [cell.config for cell in group], [cell.workdir for cell in group]
    )
  except flags_lib.USER_ERRORS as error:
    # As with processes, the others go on.
    results = [error] * len(group)
  for cell, result in zip(group, results, strict=True):
    if isinstance(result, Exception):
      cell.workdir.mkdir(parents=True, exist_ok=True)
      path = cell.workdir / cells_lib.LOG
      with path.open("a", encoding="utf-8") as log:
        text = f"error: {overrides.text_of(result)}"
        print(flags_lib.wrapped(text), file=log)
  return results

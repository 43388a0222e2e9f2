r"""Trains the cells of a profile and writes page and figures about them.

    python -m experiments.critics.report --profile=smoke --out=FOLDER
    python -m experiments.critics.report --profile=full --out=FOLDER --cells=D1

Writes FOLDER/PROFILE.md and FOLDER/PROFILE_*.png; each cell is a file in
FOLDER/cells, and the same command trains only what is missing. --cells takes a
regular expression that is searched in the names of cells, such as

    D1 D2 CartPole-v1 ppo gamma=0.99 horizon=128 envs=8

The page is about all cells that are there. Needs the extra `rl`.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import re
import time
from collections.abc import Sequence

import jax
import numpy as np
from absl import flags

from experiments.critics import environments, protocol, training, writing
from experiments.critics.protocol import Cell
from experiments.critics.results import Record
from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.runtime import files

_PROFILE = flags.DEFINE_enum(
  "profile", "smoke", list(protocol.PROFILES), "Which grid."
)
_OUT = flags.DEFINE_string("out", None, "Folder of all files.", required=True)
_CELLS = flags.DEFINE_string("cells", "", "Cells whose name has a match of it.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "Seeds of a cell, at least 2.", 2)


def main(argv: Sequence[str]) -> int:
  """Trains the missing cells, and writes the page."""
  del argv
  make(_PROFILE.value, pathlib.Path(_OUT.value), _CELLS.value, _SEEDS.value)
  return 0


def make(name: str, out: pathlib.Path, only: str, num_seeds: int) -> None:
  """Trains the missing cells of a profile, and writes its page and figures.

  Cells without a match of `only` in their name wait.

  Raises:
    ValueError: No cell has a match.
  """
  cells = protocol.cells(protocol.PROFILES[name], num_seeds)
  chosen = [cell for cell in cells if re.search(only, cell.name)]
  if not chosen:
    raise ValueError(
      f"report: --cells={only} is found in no name of the"
      f" {len(cells)} cells; the first of them is {cells[0].name!r}."
    )
  folder = out / "cells"
  folder.mkdir(parents=True, exist_ok=True)
  pending = [cell for cell in chosen if not writing.path(folder, cell).exists()]
  environments.make(cells[0].setting.environment)  # Or says what is missing.
  print(
    f"{name}: {len(pending)} of {len(chosen)} cells to be trained, about"
    f" {writing.expected_seconds(pending) / 60:.0f} minutes on two cores",
    flush=True,
  )
  for number, cell in enumerate(pending, start=1):
    record = train(cell)
    text = json.dumps(dataclasses.asdict(record)) + "\n"
    files.write(writing.path(folder, cell), text.encode())
    print(
      f"{number}/{len(pending)} {cell.key} {cell.name}:"
      f" {record.final_scores().mean():.1f}, {record.seconds:.0f} s +"
      f" {record.compile_seconds:.0f} s",
      flush=True,
    )
  records = writing.read(folder, cells)
  path = writing.write(name, cells, records, num_seeds, out, said=str(out))
  print(f"{path}: {len(records)} of {len(cells)} cells")


def train(cell: Cell) -> Record:
  """Trains a cell, all seeds together."""
  start = time.monotonic()
  program = training.program(cell.setting, cell.num_seeds)
  compiled = time.monotonic()
  result = jax.tree.map(np.asarray, program())
  ended = time.monotonic()
  counts = result.num_episodes
  means = result.score_sums / np.maximum(counts, 1)
  return Record(
    key=cell.key,
    name=cell.name,
    means=[[round(float(x), 2) for x in row] for row in means],
    counts=counts.astype(int).tolist(),
    steps=result.steps.tolist(),
    seconds=round(ended - compiled, 1),
    compile_seconds=round(compiled - start, 1),
    date=datetime.date.today().isoformat(),
    cores=os.cpu_count() or 1,
  )


if __name__ == "__main__":
  flags_lib.run(main)

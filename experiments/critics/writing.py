"""Reads the cells of a profile, and writes its page and figures."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from experiments.critics import figure, page, protocol
from experiments.critics.protocol import Cell
from experiments.critics.results import Record
from experiments.critics.settings import Setting

# Seconds per million environment steps of one seed, of five trained together on
# two cores that other programs used too, and seconds to compile a program.
_RATES = {
  ("CartPole-v1", 128): 14,
  ("CartPole-v1", 0): 33,
  ("Acrobot-v1", 128): 18,
  ("Acrobot-v1", 0): 25,
  ("MountainCarContinuous-v0", 128): 12,
  ("MountainCarContinuous-v0", 0): 14,
  ("Pendulum-v1", 128): 13,
  ("Pendulum-v1", 0): 12,
}
_COMPILE_S = 23


def path(folder: pathlib.Path, cell: Cell) -> pathlib.Path:
  """The file of a cell."""
  return folder / f"{cell.key}.json"


def read(folder: pathlib.Path, cells: Iterable[Cell]) -> dict[Setting, Record]:
  """The records of the cells that have been trained."""
  return {
    cell.setting: Record(**json.loads(path(folder, cell).read_text("utf-8")))
    for cell in cells
    if path(folder, cell).exists()
  }


def expected_seconds(cells: Iterable[Cell]) -> float:
  """Estimated seconds of these cells on two cores, compilation included."""
  cells = list(cells)
  programs = {dataclasses.replace(x.setting, gamma=0.0) for x in cells}
  return _COMPILE_S * len(programs) + sum(
    _RATES[x.setting.environment, x.setting.horizon]
    * x.setting.total_steps
    / 1e6
    * x.num_seeds
    for x in cells
  )


def write(
  name: str,
  cells: Sequence[Cell],
  records: Mapping[Setting, Record],
  num_seeds: int,
  out: pathlib.Path,
  said: str,
) -> pathlib.Path:
  """Writes page and figures; returns the path of the page.

  The command that the page shows has the folder `said`.
  """
  figures = figure.plot(protocol.PROFILES[name], cells, records, out / name)
  command = f"python -m experiments.critics.report --profile={name}"
  command += f" --seeds={num_seeds} --out={said}"
  text = page.markdown(
    name, command, cells, records, figures, expected_seconds(cells) / 3600
  )
  (out / f"{name}.md").write_text(text, encoding="utf-8")
  return out / f"{name}.md"

"""Writes pages and figures of experiments from their recorded numbers."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from experiments.science import experiments
from experiments.sweeps.made import ROOT


@dataclasses.dataclass(frozen=True)
class Science:
  """Writer of an experiment of `experiments.science`, by its name."""

  name: str

  def __call__(self, out: pathlib.Path) -> None:
    """Writes page and figure into a folder."""
    module = experiments.load(self.name)
    experiments.write(module, ROOT / experiments.folder(module), out)


@dataclasses.dataclass(frozen=True)
class Critics:
  """Writer of a profile of the experiment on critics."""

  folder: str
  profile: str
  seeds: int

  def __call__(self, out: pathlib.Path) -> None:
    """Writes page and figures into a folder."""
    # gymnax takes a second.
    from experiments.critics import protocol, writing

    cells = protocol.cells(protocol.PROFILES[self.profile], self.seeds)
    records = writing.read(ROOT / self.folder / "cells", cells)
    writing.write(
      self.profile, cells, records, self.seeds, out, said=self.folder
    )


def read(path: pathlib.Path) -> Any:
  """A record."""
  return json.loads(path.read_text("utf-8"))

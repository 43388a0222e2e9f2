"""Writes pages and figures of experiments from their recorded numbers."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pathlib
from typing import Any

from experiments.sweeps.made import ROOT


@dataclasses.dataclass(frozen=True)
class Sweep:
  """Writer of an experiment with the modules `results`, `page` and `figure`.

  Attributes:
    name: Name of the experiment.
    page: Name of its files.
  """

  name: str
  page: str

  def __call__(self, out: pathlib.Path) -> None:
    """Writes page and figure into a folder."""
    module = f"experiments.{self.name}"
    results: Any = importlib.import_module(f"{module}.results")
    page: Any = importlib.import_module(f"{module}.page")
    found = results.Results(ROOT / "benchmarks" / self.name)
    plot = getattr(page, "plot", None)
    if (
      plot is None and (ROOT / "experiments" / self.name / "figure.py").exists()
    ):
      plot = importlib.import_module(f"{module}.figure").plot
    if plot is not None:
      plot(out / f"{self.page}.png", found)
    text = page.markdown(found)
    (out / f"{self.page}.md").write_text(text, encoding="utf-8")


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

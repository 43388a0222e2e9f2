"""Table of the experiments, and the report of one."""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from experiments.science import claims, pages

NAMES = (
  *("bias", "curricula", "entropy", "experts", "flips", "judges", "ladder"),
  *("league", "lengths", "long_horizons", "objectives", "planted_errors"),
  *("proxy", "published", "rounding", "shapes", "stages", "staleness"),
  "vision",
)
ACTIONS = ("run", "report")
HERE = pathlib.Path(__file__).parent


def load(name: str) -> Any:
  """The module of an experiment.

  Raises:
    ValueError: No experiment has this name.
  """
  if name not in NAMES:
    raise ValueError(
      f"science: no experiment {name!r}; choose one of {', '.join(NAMES)}."
    )
  return importlib.import_module(f"experiments.science.{name}")


def parsed(words: Sequence[str]) -> tuple[Any, str]:
  """The module and the action of a command line.

  Raises:
    ValueError: The words are not an action and a name.
  """
  if len(words) != 2 or words[0] not in ACTIONS:
    raise ValueError(
      f"science: received {' '.join(words)!r}; needs run NAME or report"
      f" NAME, where NAME is one of {', '.join(NAMES)}."
    )
  return load(words[1]), words[0]


def name_of(module: ModuleType) -> str:
  return module.__name__.rpartition(".")[2]


def folder(module: ModuleType) -> str:
  """The folder of its numbers."""
  return getattr(module, "RECORDS", f"benchmarks/{name_of(module)}")


def page_of(module: ModuleType) -> str:
  """Name of its page and its figure."""
  return getattr(module, "PAGE", name_of(module))


def arms_of(module: Any) -> Sequence[str]:
  """The arms of which a user chooses some."""
  return getattr(module, "CHOSEN_FROM", module.ALL.names)


def needed(module: Any, chosen: list[str]) -> list[str]:
  """The arms that are run for the chosen ones, in order."""
  return module.needed(chosen) if hasattr(module, "needed") else chosen


def markdown(module: Any, results: Any) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(module.CLAIMS, getattr(results, "scores", results))
  values = {
    **vars(module),
    **pages.values_of(
      found, getattr(module, "CONFIRMED", ""), getattr(module, "REFUTED", "")
    ),
    "size": module.ALL.sizes["full"],
    "ended": len(results.arms),
    "num_arms": len(results.expected),
    "minutes": sum(map(results.seconds, results.arms)) / 60,
    "cores": pages.CORES,
    "missing": pages.missing(results.expected, results.arms),
    "rules": pages.rules(module),
    **module.numbers(results),
  }
  template = (HERE / f"{name_of(module)}.md").read_text("utf-8")
  return pages.filled(template, values)


def write(
  module: Any, records: pathlib.Path, out: pathlib.Path
) -> list[pathlib.Path]:
  """Writes page and figure of recorded numbers, and returns their paths.

  Raises:
    FileNotFoundError: No arm has ended.
    ImportError: matplotlib is not installed.
  """
  results = module.Results(records)
  if not results.arms:
    raise FileNotFoundError(
      f"--results={records}: nothing has ended there; run"
      f" `python -m experiments.science run {name_of(module)}` first."
    )
  written = [out / f"{page_of(module)}.md"]
  if hasattr(module, "plot"):
    written.append(out / f"{page_of(module)}.png")
    module.plot(written[1], results)
  written[0].write_text(markdown(module, results), encoding="utf-8")
  return written

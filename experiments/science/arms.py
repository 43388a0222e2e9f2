"""Arms of an experiment: sweeps over seeds, run one after another.

An experiment compares arms, such as two algorithms. Each arm is a folder:

| in the folder  | content                                   |
|----------------|-------------------------------------------|
| `sweep.json`   | its cells, one for each seed (`cells.py`) |
| `output.txt`   | the output of its programs                |
| `seconds.json` | the seconds of each start                 |

An arm that has ended is left alone, and one that was stopped goes on from its
last checkpoints, so an experiment is continued by the command that began it.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from experiments.sweeps import cells as cells_lib
from experiments.sweeps import made
from grpo_jax.training.runtime import log

OUTPUT = "output.txt"
SECONDS = "seconds.json"
STOPPED = 143  # Exit status of a program that a signal stopped.


class Arm(NamedTuple):
  """Arm of a comparison."""

  text: str
  algorithm: str = "grpo"
  # Settings of its own, by dotted name.
  settings: Mapping[str, Any] = types.MappingProxyType({})


class Size(NamedTuple):
  """Amounts of computation."""

  num_seeds: int  # Number of seeds of each arm.
  imitation: int = 0  # Number of steps of the arm that all others follow on.
  steps: int = 0  # Number of steps of each other arm.
  num_prompts: int = 0  # Number of prompts of a step.
  num_held_out: int = 0  # Number of prompts of an evaluation.


@dataclasses.dataclass(frozen=True)
class Arms:
  """The arms of an experiment, as NAME or NAME@SIZE."""

  names: Collection[str]  # The names of the arms.
  # Amounts of computation by name, with "full", which is meant by NAME.
  sizes: Mapping[str, Any]
  base: str = ""  # Arm that all others follow on; "" without one.
  # Arms that others need and that leave no numbers.
  not_recorded: Collection[str] = ()

  def parsed(self, argument: str) -> tuple[str, Any]:
    """Splits NAME or NAME@SIZE into an arm and its size.

    Raises:
      ValueError: No arm has this name.
    """
    name, _, size = argument.partition("@")
    if name not in self.names or (size or "full") not in self.sizes:
      small = ", and @smoke behind it for a small one"
      raise ValueError(
        f"arms: no arm {argument!r}; choose one of {', '.join(self.names)}"
        f"{small if len(self.sizes) > 1 else ''}."
      )
    return name, self.sizes[size or "full"]

  def sweep(self, add: Callable[..., None], argument: str) -> None:
    """Adds the cells of an arm, one for each seed."""
    _, size = self.parsed(argument)
    for seed in range(size.num_seeds):
      add(seed=seed)

  def follows_on(self, name: str, root: pathlib.Path) -> list[str]:
    """Overrides that name the run of `base` that an arm follows on, by seed."""
    if name == self.base or not self.base:
      return []
    return [f"--config.start_workdir={root}/{self.base}/seed={{seed}}"]


def changed(
  config: ml_collections.ConfigDict, settings: Mapping[str, Any]
) -> ml_collections.ConfigDict:
  """The config with settings, by dotted name, and few files in a workdir."""
  config.checkpoint.keep = 1
  config.log.trackers = ()
  config.log.traces_every = 0
  config.update_from_flattened_dict(settings)
  return config


@dataclasses.dataclass(frozen=True)
class Job:
  """Runs of an experiment that a command has to make."""

  module: Any
  root: pathlib.Path  # Folder of all runs.
  out: pathlib.Path  # Folder of the files ARM.json.
  size: str = "full"  # Name of the size of each arm.

  @property
  def amounts(self) -> Any:
    return self.module.ALL.sizes[self.size]

  def config(self, arm: str) -> str:
    """FILE:ARGUMENT of the config of an arm."""
    name = self.module.__name__.replace(".", "/")
    size = f"@{self.size}" if len(self.module.ALL.sizes) > 1 else ""
    return f"{name}.py:{arm}{size}"

  def run(self, arm: str) -> int:
    """Runs an arm, if it has not ended, and records it; returns the status."""
    special = getattr(self.module, "run", None)
    return self.record(arm) if special is None else special(self, arm)

  def record(self, arm: str) -> int:
    """Runs the sweep of an arm, and writes `ARM.json` if it leaves numbers.

    An arm with such a file is left alone. A run that halted itself counts as
    failed for the sweep, but not here: the numbers decide whether an arm has
    ended.
    """
    path, folder = self.out / f"{arm}.json", self.root / arm
    if path.exists():
      return 0
    config = self.config(arm)
    overrides = self.module.follows_on(arm, self.root)
    launcher = getattr(self.module, "LAUNCHER", "vmap")
    status = sweep(folder, config, *overrides, launcher=launcher)
    if arm in self.module.ALL.not_recorded:
      return status
    has_begun = (folder / cells_lib.MANIFEST).exists()
    numbers = self._collected(folder) if has_begun else None
    if numbers is None:
      return status or 1
    about = {"seconds": seconds(folder), "made": made.by(config)}
    log.write_json(path, numbers | about)
    return 0

  def record_alone(self, arm: str) -> int:
    """Runs and records an arm, and deletes its checkpoints then."""
    status = self.record(arm)
    if not status:
      for folder in (self.root / arm).glob("*/checkpoints"):
        shutil.rmtree(folder)
    return status

  def _collected(self, folder: pathlib.Path) -> dict[str, Any] | None:
    if hasattr(self.module, "collected"):
      return self.module.collected(folder, size=self.amounts)
    return collected(self.module.of_run, folder)


def chosen(names: Iterable[str], pattern: str) -> list[str]:
  """The arms whose name has a match of a regular expression, in order.

  Raises:
    ValueError: No arm has a match.
  """
  known = list(names)
  found = [name for name in known if re.search(pattern, name)]
  if not found:
    raise ValueError(
      f"--arms={pattern} is found in no arm; they are {', '.join(known)}."
    )
  return found


def go_through(names: Iterable[str], run: Callable[[str], int]) -> int:
  """Runs arms one after another; an arm that has ended returns 0 at once.

  Returns:
    0 if all have ended, 1 if some have failed, `STOPPED` if a signal came.
  """
  failed = []
  for name in names:
    status = run(name)
    if status == STOPPED:
      print("Stopped by a signal; the same command continues.")
      return status
    if status:
      failed.append(name)
  if failed:
    print(f"Failed: {', '.join(failed)}")
  return int(bool(failed))


def sweep(
  folder: pathlib.Path, config: str, *overrides: str, launcher: str = "vmap"
) -> int:
  """Runs the cells of an arm, unless they have ended; returns the exit status.

  The launcher is "vmap", all cells as one program, or "local", one after
  another.
  """
  if has_ended(folder):
    return 0
  return timed(
    folder,
    *("experiments.sweeps.run", f"--launcher={launcher}", f"--root={folder}"),
    *(f"--config={config}", *overrides),
  )


def collected(
  of_run: Callable[[list[dict[str, Any]]], Any], folder: pathlib.Path
) -> dict[str, Any] | None:
  """Numbers of an arm's runs, of their logs; None while one has not ended."""
  found = []
  for name in cells_lib.read_manifest(folder):
    if cells_lib.read_result(folder / name) is None:
      return None
    lines = log.read_lines(folder / name / log.METRICS)
    found.append(of_run(lines))
  return {"seeds": found}


def column(
  lines: Iterable[Mapping[str, Any]], *names: str, digits: int = 4
) -> list[float | None]:
  """Values of the first of these metrics that a line has, rounded, or None."""
  values = (next((z[x] for x in names if x in z), None) for z in lines)
  return [None if x is None else round(float(x), digits) for x in values]


class Recorded:
  """Arms that have ended; an experiment adds its own numbers.

  Attributes:
    names: The names of all arms, in their order; of the class.
    base: Arm with which all others began, and which does not count; or "".

  Args:
    folder: The folder of the files ARM.json.
  """

  names: Collection[str] = ()
  base = ""

  def __init__(self, folder: pathlib.Path):
    self._found: dict[str, dict[str, Any]] = {
      name: json.loads((folder / f"{name}.json").read_text("utf-8"))
      for name in self.names
      if (folder / f"{name}.json").exists()
    }

  @property
  def expected(self) -> list[str]:
    """The arms that count, whether they have ended or not."""
    return [name for name in self.names if name != self.base]

  @property
  def arms(self) -> list[str]:
    """The arms that count and have ended."""
    return [name for name in self._found if name != self.base]

  @property
  def num_seeds(self) -> int:
    """Number of seeds that each arm has at least."""
    return min(len(one["seeds"]) for one in self._found.values())

  def seconds(self, arm: str) -> float:
    """Seconds of all starts of an arm."""
    return self._found[arm]["seconds"]

  def minutes(self, arm: str) -> str:
    """Its minutes, in a cell of a table."""
    return f"{self.seconds(arm) / 60:.1f}"

  def series(self, arm: str, what: str) -> np.ndarray | None:
    """Values of all seeds [S, N]; NaN if one is missing, None without any."""
    seeds = self._found[arm]["seeds"]
    if what not in seeds[0]:
      return None
    return np.array([seed[what] for seed in seeds], float)

  def scores(self, arm: str, *what: Any) -> np.ndarray | None:
    """Returns `score` of each seed [S]; None while the arm is missing."""
    return self.score(arm, *what) if arm in self._found else None

  def score(self, arm: str, what: str) -> np.ndarray | None:
    """A score of an arm that has ended, of each seed [S]."""
    return self.series(arm, what)


def timed(folder: pathlib.Path, module: str, *arguments: str) -> int:
  """Runs a program and adds its seconds to its folder; returns the status."""
  folder.mkdir(parents=True, exist_ok=True)
  started = time.monotonic()
  with (folder / OUTPUT).open("ab") as output:
    status = subprocess.run(
      [sys.executable, "-m", module, *arguments],
      check=False,
      stdout=output,
      stderr=subprocess.STDOUT,
    ).returncode
  taken = round(time.monotonic() - started)
  path = folder / SECONDS
  past = json.loads(path.read_text("utf-8")) if path.exists() else []
  path.write_text(json.dumps([*past, taken]), encoding="utf-8")
  end = f", exit status {status}: see {folder / OUTPUT}"
  print(f"{folder.name}: {taken} s{end if status else ''}", flush=True)
  return status


def has_ended(folder: pathlib.Path) -> bool:
  """True if all cells of an arm have ended."""
  if not (folder / cells_lib.MANIFEST).exists():
    return False
  return all(
    cells_lib.read_result(folder / name) is not None
    for name in cells_lib.read_manifest(folder)
  )


def seconds(folder: pathlib.Path) -> float:
  """Seconds of all starts, compilation and evaluation included; or NaN."""
  path = folder / SECONDS
  if not path.exists():
    return float("nan")
  return sum(json.loads(path.read_text("utf-8")))

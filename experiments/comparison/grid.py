"""Algorithms by tasks by seeds, trained as few programs, and resumed.

| in the root               | content                                        |
|---------------------------|------------------------------------------------|
| `compare.json`            | seconds of the programs that have ended        |
| `ALGORITHM/TASK`          | a sweep over seeds: `sweep.json` and the runs  |
| `ALGORITHM/TASK/seed=N`   | a run, which `experiments.train` could resume  |

Cells whose configs differ in seeds and in numbers that are not whole are one
program: all seeds of an algorithm on a task, and variants of it such as
`grpo:clip_high=0.4`.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from experiments.comparison import runs as runs_lib
from experiments.sweeps import cells as cells_lib
from experiments.sweeps import pool, together
from experiments.sweeps.cells import Cell, Source
from grpo_jax import algorithms, ranges
from grpo_jax.settings import overrides
from grpo_jax.training.runtime import log

BOOK = "compare.json"


@dataclasses.dataclass(frozen=True)
class Variant:
  """Algorithm or task, with its settings."""

  label: str  # The text of the flag: NAME or NAME:SETTING=VALUE:….
  name: str
  settings: Mapping[str, Any]  # Setting -> number, text or truth value.


@dataclasses.dataclass(frozen=True)
class GridCell(Cell):
  """Cell of the grid."""

  algorithm: str
  task: str

  @property
  def seed(self) -> int:
    return self.overrides["seed"]


def parse(text: str) -> Variant:
  """Parses NAME or NAME:SETTING=VALUE:SETTING=VALUE; a name may have colons.

  Raises:
    ValueError: A value is neither a number nor a word.
  """
  parts = text.split(":")
  names = [part for part in parts if "=" not in part]
  settings = {}
  for part in parts:
    key, found, value = part.partition("=")
    if found:
      settings[key] = _value(value)
  name = ":".join(names)
  if not name or any(not key for key in settings):
    raise ValueError(
      f"compare: {text!r} has no name, or a setting without one; needs"
      " NAME or NAME:SETTING=VALUE, as in grpo:clip_high=0.4."
    )
  return Variant(text, name, settings)


def _value(text: str) -> Any:
  try:
    is_truth = text.lower() in ("true", "false")
    return ast.literal_eval(text.capitalize() if is_truth else text)
  except (ValueError, SyntaxError):
    return text


def cells(
  file: str,
  common: Mapping[str, Any],
  chosen: Sequence[Variant],
  tasks: Sequence[Variant],
  seeds: Sequence[int],
  root: pathlib.Path,
) -> list[GridCell]:
  """Cells of a grid, checked.

  Args:
    file: Config file that takes an algorithm as its argument.
    common: Settings of all cells, from the command line.
    chosen, tasks, seeds: The grid; without a task, that of the file.
    root: Folder of the grid.

  Raises:
    KeyError: An algorithm does not exist.
    ValueError: Settings do not fit, or two cells would share a folder.
  """
  found = []
  for algorithm in chosen:
    algorithms.get_algorithm(algorithm.name)  # Raises with the nearest name.
    config = overrides.load(file, algorithm.name)
    for task in tasks or (None,):
      own = {f"algorithm.{k}": v for k, v in algorithm.settings.items()}
      if task is None:
        label = runs_lib.task_of(json.loads(config.to_json()))
      else:
        label = task.label
        own |= _of_task(task, config)
      both = {**common, **{k: str(v) for k, v in own.items()}}
      if clash := sorted(own.keys() & common.keys()):
        raise ValueError(
          f"compare: {algorithm.label} on {label} sets {', '.join(clash)},"
          f" which --config.{clash[0]} sets for all cells; leave one of the"
          " two out."
        )
      folder = root / _folder(algorithm.label) / _folder(label)
      source = Source(f"{file}:{algorithm.name}", both)
      for seed in seeds:
        cell = source.cell(folder, {"seed": seed})
        names = {"algorithm": algorithm.label, "task": label}
        found.append(GridCell(**vars(cell), **names))
  folders: dict[pathlib.Path, GridCell] = {}
  for one in found:
    first = folders.setdefault(one.workdir, one)
    if first is not one:
      raise ValueError(
        f"compare: {one.algorithm} on {one.task} with seed {one.seed} is asked"
        " for twice; name each algorithm, task and seed once."
      )
  return found


def _folder(label: str) -> str:
  """Name of the folder of an algorithm or a task, as for cells."""
  name, _, settings = label.partition(":")
  return cells_lib.folder_name({name: settings}) if settings else label


def _of_task(
  task: Variant, config: ml_collections.ConfigDict
) -> dict[str, str]:
  """Overrides of a task: its name, and its options as a whole.

  Options of the file stay where the file has the same task; those of another
  one would be refused.
  """
  same = (config.data.source, config.data.name) == ("task", task.name)
  options = config.data.task_options.to_dict() if same else {}
  return {
    "data.source": "task",
    "data.name": task.name,
    "data.task_options": repr({**options, **task.settings}),
  }


class Progress:
  """Progress of a grid in words, with an estimate of the time that is left.

  The estimate is the mean seconds of the runs that have ended in this grid,
  compilation included, times the runs that are left. Runs of one program differ
  little, and programs may differ much: the estimate improves with each run.
  """

  def __init__(self, root: pathlib.Path, total: int, left: int):
    self._path = root / BOOK
    self._total, self._left, self._failed = total, left, 0
    self._book = (
      json.loads(self._path.read_text("utf-8")) if self._path.exists() else []
    )

  def ended(self, runs: int, seconds: float, failed: int = 0) -> None:
    """Counts the runs of a program that has ended, and its seconds.

    Args:
      failed: Number of these runs that have failed.
    """
    self._left -= runs
    self._failed += failed
    if failed == runs:
      return  # How long they took says nothing about others.
    self._book.append({"runs": runs, "seconds": round(seconds, 1)})
    log.write_json(self._path, self._book)

  def text(self) -> str:
    """Line about the progress."""
    ended = self._total - self._left - self._failed
    done = f"{ended} of {ranges.counted(self._total, 'cell')} done"
    if self._failed:
      done += f", {self._failed} failed"
    if not self._left:
      return done
    runs = sum(entry["runs"] for entry in self._book)
    if not runs:
      return f"{done}; no estimate before the first program has"
    seconds = sum(entry["seconds"] for entry in self._book) / runs * self._left
    return f"{done}; about {duration(seconds)} left"


def duration(seconds: float) -> str:
  """Formats a duration in seconds, minutes or hours."""
  if seconds < 90:
    return f"{seconds:.0f} s"
  if seconds < 5400:
    return f"{seconds / 60:.0f} min"
  return f"{seconds / 3600:.1f} h"


def train(
  root: pathlib.Path, grid: Sequence[GridCell], launcher: str = "vmap"
) -> bool:
  """Trains the cells that have not ended; True if a signal stopped it.

  The launcher is "vmap", as few programs as possible; or "local", processes one
  after another, for runs that cannot be one program, such as those with answers
  that are verified on the host.

  Raises:
    ValueError: The root holds runs with other settings, or its runs are under
      way.
  """
  by_folder: dict[pathlib.Path, list[GridCell]] = {}
  for one in grid:
    by_folder.setdefault(one.workdir.parent, []).append(one)
  for folder, seeds in by_folder.items():
    # Seeds of an earlier start stay, though they are not asked for now.
    cells_lib.check_root(folder, seeds, may_have_more=True)
    cells_lib.write_manifest(folder, seeds)
  root.mkdir(parents=True, exist_ok=True)
  left = [one for one in grid if cells_lib.read_result(one.workdir) is None]
  progress = Progress(root, len(grid), len(left))
  print(f"compare: {root}: {progress.text()}", flush=True)
  if launcher == "local":
    return _processes(root, left, progress)
  programs = together.programs(left)
  with pool.lock(root):
    for number, group in enumerate(programs, start=1):
      what = dict.fromkeys(f"{x.algorithm} on {x.task}" for x in group)
      print(
        f"program {number} of {len(programs)},"
        f" {ranges.counted(len(group), 'run')}:"
        f" {', '.join(what)}",
        flush=True,
      )
      for one in group:
        _describe(one, len(group))
      started = time.monotonic()
      results = together.train(group)
      for cell, result in zip(group, results, strict=True):
        if isinstance(result, Exception):
          print(
            f"FAILED: {cell.workdir}: {overrides.text_of(result)}", flush=True
          )
        elif result.preempted:
          return True
      failed = sum(isinstance(result, Exception) for result in results)
      progress.ended(len(group), time.monotonic() - started, failed)
      print(progress.text(), flush=True)
  return False


def _describe(one: GridCell, runs: int) -> None:
  """Leaves the names of a cell in its folder."""
  one.workdir.mkdir(parents=True, exist_ok=True)
  names = {"algorithm": one.algorithm, "task": one.task}
  log.write_json(one.workdir / runs_lib.CELL, names | {"runs": runs})


def _processes(
  root: pathlib.Path, left: Sequence[GridCell], progress: Progress
) -> bool:
  waiting = list(left)
  started = time.monotonic()

  def next_cell() -> GridCell | None:
    nonlocal started
    if not waiting:
      return None
    started = time.monotonic()
    cell = waiting.pop(0)
    _describe(cell, 1)
    print(f"run: {cell.workdir}", flush=True)
    return cell

  def ended(cell: Cell, status: int) -> None:
    has_failed = cells_lib.read_result(cell.workdir) is None
    if has_failed:
      print(f"FAILED, exit status {status}: {cell.workdir}", flush=True)
    progress.ended(1, time.monotonic() - started, int(has_failed))
    print(progress.text(), flush=True)

  return pool.run(root, next_cell, ended, 1)

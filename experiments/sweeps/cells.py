"""Cells of a sweep, each with a config and a folder of its own.

A config file defines, beside `get_config`, one or both of

    def sweep(add):
      for seed in range(3):
        add(**{"rl.optimizer.learning_rate": 1e-3, "seed": seed})

    def search(trial):  # An optuna.Trial.
      rate = trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True)
      return {"rl.optimizer.learning_rate": rate}

`add` is called once for each cell with the cell's differences from the config.
Either function may take the argument of the file, as in FILE:ARGUMENT, as its
second argument. Some files take an algorithm. If such a file is given without
one, `add(algorithm="rloo", …)` is a cell of FILE:rloo. A cell is the config
that `experiments.train` makes of its command line, so its run can be started,
looked at and resumed without the sweep.

| in the root      | content                                                |
|------------------|--------------------------------------------------------|
| `sweep.json`     | the cells: folders and overrides                       |
| a folder a cell  | a run; `log.txt` is the output of a local one          |
| `study.db`       | Optuna's record of a search                            |
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import pathlib
import re
import runpy
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np
from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides as overrides_lib
from grpo_jax.training import run as run_lib
from grpo_jax.training.runtime import log

MANIFEST = "sweep.json"
LOG = "log.txt"
# Folder names may have 255 bytes, and some tools add to them.
_MAX_NAME = 150
_COLUMNS = 80
_MAX_ERROR_LINES = 100


@dataclasses.dataclass(frozen=True)
class Cell:
  """Cell of a sweep."""

  # Differences from the config of the file: dotted name -> value.
  overrides: dict[str, Any]
  # Arguments of `experiments.train`, without --workdir.
  arguments: tuple[str, ...]
  config: ml_collections.ConfigDict  # Config that results from them.
  workdir: pathlib.Path  # Folder of the run, in the root.

  @property
  def command(self) -> list[str]:
    """The command that runs it on this machine."""
    return [
      *(sys.executable, "-m", "experiments.train", *self.arguments),
      f"--workdir={self.workdir}",
    ]


@dataclasses.dataclass(frozen=True)
class Source:
  """A config file with `sweep` or `search`."""

  config: str  # FILE or FILE:ARGUMENT.
  common: Mapping[str, Any]  # Overrides of every cell, from the command line.

  def function(self, name: str) -> Callable[..., Any]:
    """The function `name` of the file, as one of a single argument.

    Raises:
      ValueError: The file does not define it.
    """
    path, _, argument = self.config.partition(":")
    function = runpy.run_path(path).get(name)
    if function is None:
      raise ValueError(
        f"sweep: {path} defines no {name}(); see"
        " configs/sweeps/lr_by_clip.py for one that does."
      )
    if len(inspect.signature(function).parameters) < 2:
      return function
    return lambda first: function(first, argument)

  def cell(
    self, root: pathlib.Path, overrides: Mapping[str, Any], prefix: str = ""
  ) -> Cell:
    """The cell with these overrides: dotted name -> number, text, bool, tuple.

    Raises:
      ValueError: A name or a value does not fit the config, or is also set for
        all cells.
    """
    where = f"sweep: cell {describe(overrides)}"
    overrides = {name: _plain(overrides[name]) for name in sorted(overrides)}
    for name, value in overrides.items():
      if not _is_simple(value):
        raise ValueError(
          f"{where}: {name} got {value!r}; needs a number, text, bool or"
          " a tuple of them."
        )
    if both := sorted(overrides.keys() & self.common.keys()):
      raise ValueError(
        f"{where} sets {', '.join(both)}, which the command line sets for all"
        f" cells; leave --config.{both[0]} out of it."
      )
    try:
      arguments, config = self._parsed(overrides)
      if {*config.log.trackers} - {"tensorboard"} and not config.log.group:
        # W&B and Trackio show the cells of a sweep together.
        group = {"log.group": root.absolute().name}
        arguments, config = self._parsed({**overrides, **group})
    except (KeyError, TypeError, ValueError) as error:
      raise ValueError(f"{where}: {overrides_lib.text_of(error)}") from error
    workdir = root / (prefix + folder_name(overrides))
    return Cell(overrides, arguments, config, workdir)

  def _parsed(
    self, overrides: Mapping[str, Any]
  ) -> tuple[tuple[str, ...], ml_collections.ConfigDict]:
    """Arguments of a cell, and the config that results from them."""
    config, changed = self.config, {**self.common, **overrides}
    algorithm = changed.pop("algorithm", None)
    if algorithm is not None:
      if ":" in config:
        raise ValueError(
          f"algorithm={algorithm!r} is the argument of the config file, and"
          f" --config={config} has one already; leave the part after the colon"
          " out of --config."
        )
      config = f"{config}:{algorithm}"
    arguments = (
      f"--config={config}",
      *(f"--config.{name}={flag_value(x)}" for name, x in changed.items()),
    )
    values = flags.FlagValues()
    flags_lib.define_config(values, ["sweep", *arguments])
    flags_lib.parse(["sweep", *arguments], values)
    config_lib.resolve(values.config)
    return arguments, values.config

  def cells(self, root: pathlib.Path) -> list[Cell]:
    """The cells of `sweep`, in its order.

    Raises:
      ValueError: The sweep has no cell, a cell does not fit, or two are the
        same.
    """
    cells: list[Cell] = []

    def add(**overrides: Any) -> None:
      cells.append(self.cell(root, overrides))

    self.function("sweep")(add)
    if not cells:
      raise ValueError(
        f"sweep: sweep() of {self.config} added no cell; call add(...) once"
        " for each."
      )
    seen: dict[str, Cell] = {}
    for number, cell in enumerate(cells, start=1):
      first = seen.setdefault(cell.config.to_json(), cell)
      if first is not cell:
        raise ValueError(
          f"sweep: cell {number}, {describe(cell.overrides)}, has the config of"
          f" cell {cells.index(first) + 1}, {describe(first.overrides)}; add"
          " each once."
        )
    return cells


def _plain(value: Any) -> Any:
  """A value whose `repr` can be read back, and is the same after JSON."""
  if isinstance(value, (list, tuple)):
    return tuple(map(_plain, value))
  return value.item() if isinstance(value, np.generic) else value


def _is_simple(value: Any) -> bool:
  if isinstance(value, (tuple, list)):
    return all(_is_simple(item) for item in value)
  return isinstance(value, (str, bool, int, float))


def flag_value(value: Any) -> str:
  """The value as it is written on a command line."""
  return value if isinstance(value, str) else repr(value)


def folder_name(overrides: Mapping[str, Any]) -> str:
  """Makes the name of a folder, the same for overrides in any order.

  Characters that a shell or a file system could misread are replaced; a hash
  then keeps names apart.
  """
  settings = [f"{k}={flag_value(v)}" for k, v in sorted(overrides.items())]
  text = ",".join(settings) or "base"
  name = re.sub(r"[^A-Za-z0-9_.,=+-]", "_", text)[:_MAX_NAME]
  if name == text:
    return name
  return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def short_names(names: Iterable[str]) -> dict[str, str]:
  """Shortens dotted names to the last parts that no other name ends in."""
  parts = {name: name.split(".") for name in names}
  short = {}
  for name, path in parts.items():
    others = [other for other in parts.values() if other is not path]
    for length in range(1, len(path) + 1):
      end = path[-length:]
      if all(other[-length:] != end for other in others):
        break
    short[name] = ".".join(end)
  return short


def describe(
  overrides: Mapping[str, Any], short: Mapping[str, str] | None = None
) -> str:
  """Overrides in words, by their short names."""
  short = short or short_names(overrides)
  settings = [
    f"{short[k]}={flag_value(_plain(v))}" for k, v in overrides.items()
  ]
  return " ".join(settings) or "(no override)"


def program(
  config: ml_collections.ConfigDict,
  may_differ: Collection[str],
  constant: Collection[str] = (),
) -> str:
  """Key that is equal for configs that one program can compute.

  Those that `may_differ` and are not `constant` do not count. Groups among them
  may differ in their floats, but not between 0, which leaves a term out, and
  another value.
  """
  settings = log.flatten(json.loads(config.to_json()))
  for name, text in settings.items():
    value = json.loads(text)
    numbers = value if isinstance(value, list) and value else [value]
    if name in constant or not any(
      f"{name}.".startswith(f"{group}.") for group in may_differ
    ):
      continue
    if all(isinstance(x, float) for x in numbers):
      settings[name] = " ".join("any" if x else "0" for x in numbers)
    elif name in may_differ:
      settings[name] = "any"
  return json.dumps(settings, sort_keys=True)


def parse_root(text: str) -> pathlib.Path:
  """Raises ValueError unless --root is a folder of this machine."""
  if "://" in text:
    raise ValueError(
      f"--root={text}: needs a local folder, because the list of cells,"
      " the logs and the locks of a sweep are files."
    )
  return pathlib.Path(text)


def check_root(
  root: pathlib.Path, cells: Sequence[Cell], may_have_more: bool = False
) -> None:
  """Raises if the root holds runs that are not of these cells.

  A sweep may grow. A run that has a checkpoint or a result must have the config
  that its cell has now. With `may_have_more`, runs of other cells may stay.

  Raises:
    ValueError: The root has another sweep, or other settings; the message has
      the differences.
  """
  advice = (
    f"sweep: {root} holds another sweep, or this one with other settings. Pass"
    " another --root, or delete the runs that are no longer wanted."
  )
  known = {cell.workdir.name for cell in cells}
  strays = sorted(
    path.parent.name
    for path in root.glob(f"*/{log.CONFIG}")
    if path.parent.name not in known
  )
  if strays and not may_have_more:
    raise ValueError(f"{advice} Of no cell: {' '.join(strays)}")
  for cell in cells:
    checkpoints = cell.workdir / "checkpoints"
    if read_result(cell.workdir) or any(checkpoints.glob("*")):
      try:
        log.check_config(
          cell.workdir, json.loads(cell.config.to_json()), run_lib.MAY_CHANGE
        )
      except ValueError as error:
        raise ValueError(f"{advice}\n{error}") from error


def write_manifest(root: pathlib.Path, cells: Iterable[Cell]) -> None:
  """Writes the list of cells, which `collect` reads."""
  root.mkdir(parents=True, exist_ok=True)
  table = [
    {"folder": cell.workdir.name, "overrides": cell.overrides} for cell in cells
  ]
  log.write_json(root / MANIFEST, table)


def read_manifest(root: pathlib.Path) -> dict[str, dict[str, Any]]:
  """Folder -> overrides, for each cell of the sweep in `root`, in order.

  Raises:
    FileNotFoundError: The folder has no sweep.
  """
  path = root / MANIFEST
  if not path.exists():
    raise FileNotFoundError(
      f"collect: {path} does not exist; pass the --root of a sweep that was"
      " started by experiments.sweeps.run."
    )
  table = json.loads(path.read_text("utf-8"))
  return {entry["folder"]: entry["overrides"] for entry in table}


def read_result(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Reads the results that a run wrote at its end; None if it has not ended."""
  path = workdir / log.RESULT
  return json.loads(path.read_text("utf-8")) if path.exists() else None


def read_metric(workdir: pathlib.Path, name: str) -> float | None:
  """Reads a metric at the end of a run.

  It is a held-out mean, or a metric of the last step that logged it; None if
  the run has not ended, or the value was not finite.

  Raises:
    KeyError: A run that has ended lacks the metric.
  """
  result = read_result(workdir)
  if result is None:
    return None
  after = result["after"] or {}
  if name in after:
    return after[name]
  lines = log.read_lines(workdir / log.METRICS)
  for line in reversed(lines):
    if name in line:
      return line[name]
  known = sorted({*after, *(key for line in lines for key in line)})
  raise KeyError(
    f"--metric={name}: {workdir} has no such metric. It has:"
    f" {', '.join(key for key in known if key not in ('step', 'phase'))}."
  )


def read_metrics(
  workdirs: Iterable[pathlib.Path], name: str
) -> list[tuple[float | None, str]]:
  """Reads a metric of runs; of each the value, or None and why it is missing.

  Raises:
    KeyError: No run has this metric; the message lists those that exist.
  """
  values: list[tuple[float | None, str]] = []
  unknown: list[KeyError] = []
  for workdir in workdirs:
    try:
      value = read_metric(workdir, name)
      values.append((value, why_missing(workdir) if value is None else ""))
    except KeyError as error:
      unknown.append(error)
      values.append((None, "the run has no such metric"))
  if unknown and all(value is None for value, _ in values):
    raise unknown[0]
  return values


def read_curve(
  workdir: pathlib.Path, name: str
) -> tuple[np.ndarray, np.ndarray]:  # [N], [N]
  """Steps of a run, and its metric there."""
  # A phase begins at the step at which the one before has ended: by step, the
  # later line counts.
  points = {
    line["step"]: line[name]
    for line in log.read_lines(workdir / log.METRICS)
    if line.get(name) is not None
  }
  steps = sorted(points)
  return np.array(steps), np.array([points[step] for step in steps])


def last_lines(workdir: pathlib.Path, count: int) -> str:
  """End of the output of a local run, or ""."""
  path = workdir / LOG
  if not path.exists():
    return ""
  text = path.read_text("utf-8", errors="replace")
  lines = [line for line in text.splitlines() if line.strip()]
  return "\n".join(lines[-count:])


def last_error(workdir: pathlib.Path) -> str:
  """The error that ended a local run, or "" if its log ends otherwise."""
  end = "\n" + last_lines(workdir, _MAX_ERROR_LINES)
  _, found, message = end.rpartition("\nerror: ")
  message, _, later = message.partition("\n(--debug shows the traceback.)")
  if found and not later:
    return message
  # A defect leaves a traceback, whose unindented line is the error.
  _, found, message = end.rpartition("\nTraceback ")
  lines = [line for line in message.splitlines()[1:] if line[:1] != " "]
  return lines[0] if found and lines == message.splitlines()[-1:] else ""


def why_missing(workdir: pathlib.Path) -> str:
  """Reason in words why a metric of a run is missing."""
  if read_result(workdir) is not None:
    return "the metric is not a finite number"
  if not workdir.exists():
    return "not started"
  if error := last_error(workdir):
    return f"failed: {error}"
  return "no result yet"


def fit(text: str, width: int = _COLUMNS) -> str:
  """The text in one line of a terminal."""
  return textwrap.shorten(text, width, placeholder=" …")

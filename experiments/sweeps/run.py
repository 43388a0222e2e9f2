r"""Runs a config once per cell of its sweep, or searches for good settings.

    python -m experiments.sweeps.run --config=configs/sweeps/lr_by_clip.py \
        --root=runs/sweeps/lr_by_clip --parallel=2
    python -m experiments.sweeps.collect --root=runs/sweeps/lr_by_clip

`cells.py` describes how a config file defines a sweep, and the files in the
root. Everything is checked before the first run starts. The launchers:

    local   processes on this machine, --parallel of them at a time. They share
            its devices: on an accelerator that one process fills, keep 1.
    vmap    cells that differ in seeds and float settings as one program
    print   one command per cell that has not ended, for any scheduler
    xpk, skypilot
            the launchers of experiments.launch, with their flags in --launch
            and a bucket in --workdirs; at most --parallel cells at a time
    slurm   an array of jobs, of which at most --parallel run; the root is on a
            disk that all nodes have, and --launch has flags of sbatch

The same command continues stopped runs, and leaves runs that have ended alone.
--config.name=value changes a setting of all cells. With --trials=N and a file
that defines `search`, Optuna (extra `search`) chooses N cells one after the
other, to make --metric large.

Exit status: 0 all cells have ended, 1 some have failed, 2 a mistake in the
command or the config, 143 stopped; the runs have saved.
"""

from __future__ import annotations

import collections
import pathlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from experiments.launch import job
from experiments.sweeps import cells as cells_lib
from experiments.sweeps import clouds, pool, together
from experiments.sweeps.cells import Cell, Source
from grpo_jax import ranges
from grpo_jax.cli import flags as flags_lib

_CONFIG = flags_lib.define_config()
_ROOT = flags.DEFINE_string("root", None, "Folder of the sweep.", required=True)
_LAUNCHER = flags.DEFINE_enum(
  "launcher",
  "local",
  ["local", "vmap", "print", *clouds.CLOUDS, "slurm"],
  "What runs the cells.",
)
_LAUNCH = flags.DEFINE_string(
  "launch", "", "Flags of the launcher, as '--project=… --topology=v5e-16'."
)
_WORKDIRS = flags.DEFINE_string(
  "workdirs", "", "gs://BUCKET/FOLDER, with a folder for each cell."
)
_DRY_RUN = flags.DEFINE_bool(
  "dry_run", False, "Print what cells on other machines would be started with."
)
_PARALLEL = flags.DEFINE_integer("parallel", 1, "Cells at a time.", 1)
_TRIALS = flags.DEFINE_integer("trials", None, "Cells of a search, in all.", 1)
_METRIC = flags.DEFINE_string(
  "metric", "eval/accuracy", "What is shown, and what a search is for."
)
_MINIMIZE = flags.DEFINE_bool("minimize", False, "Search for a small metric.")
_NUM_LINES = 8  # Of the log of a run that failed.


def main(argv: Sequence[str]) -> int:
  """Checks all cells, then runs them."""
  del argv
  flag = flags.FLAGS["config"]
  source = Source(
    config_flags.get_config_filename(flag),
    config_flags.get_override_values(flag),
  )
  root = cells_lib.parse_root(_ROOT.value)
  if _TRIALS.value is not None:
    if _LAUNCHER.value != "local":
      raise ValueError(
        f"sweep: --launcher={_LAUNCHER.value} knows all cells in advance, and"
        " a search does not; leave --launcher or --trials out."
      )
    return _search(source, root, _TRIALS.value)
  cells = source.cells(root)
  cells_lib.check_root(root, cells)
  cells_lib.write_manifest(root, cells)
  left = [c for c in cells if cells_lib.read_result(c.workdir) is None]
  summary = (
    f"sweep: {ranges.counted(len(cells), 'cell')} in {root},"
    f" {len(cells) - len(left)} of them"
    " have ended"
  )
  if _LAUNCHER.value == "print":
    print(summary, file=sys.stderr)  # Only commands go to the output.
    for cell in left:
      print(shlex.join(["python", *cell.command[1:]]))
    return 0
  cloud = None
  if _LAUNCHER.value in clouds.CLOUDS:
    cloud = clouds.Cloud(
      _LAUNCHER.value, root.absolute().name, _WORKDIRS.value, _LAUNCH.value
    )
    cloud.check(left)
  if _DRY_RUN.value:
    return _print_plan(root, left, cloud)
  print(summary, flush=True)
  if _LAUNCHER.value == "slurm":
    return _submit(root, left)
  if _LAUNCHER.value == "vmap":
    return _run_vmapped(root, cells, left)
  return _run_processes(root, cells, left, cloud)


def _run_processes(
  root: pathlib.Path,
  cells: Sequence[Cell],
  left: Sequence[Cell],
  cloud: clouds.Cloud | None,
) -> int:
  """Runs cells here or on other machines, and fetches results from there."""
  waiting = collections.deque(left)
  report = _Report(len(left))

  def ended(cell: Cell, status: int) -> None:
    if cloud is not None:
      cloud.ended(cell)
    report(cell, status)

  stopped = pool.run(
    root,
    lambda: waiting.popleft() if waiting else None,
    ended,
    _PARALLEL.value,
    cloud and cloud.start,
  )
  return _finish(root, cells, stopped)


def _print_plan(
  root: pathlib.Path, left: Sequence[Cell], cloud: clouds.Cloud | None
) -> int:
  """Prints the planned starts.

  Raises:
    ValueError: The launcher starts nothing on other machines.
  """
  if cloud is not None:
    print(f"# At most {_PARALLEL.value} of these at a time:")
    for cell in left:
      for command in (cloud.start(cell), cloud.finish(cell)):
        print(shlex.join(command))
    return 0
  if _LAUNCHER.value != "slurm":
    raise ValueError(
      f"sweep: --dry_run is for cells on other machines, and --launcher is"
      f" {_LAUNCHER.value}; --launcher=print prints a command for each cell."
    )
  path, text, command = clouds.slurm(root, left, _PARALLEL.value, _LAUNCH.value)
  print(f"cat > {path} <<'EOF'\n{text}EOF\n{shlex.join(command)}")
  return 0


def _submit(root: pathlib.Path, left: Sequence[Cell]) -> int:
  """Gives the cells that are left to SLURM."""
  if not left:
    return 0
  path, text, command = clouds.slurm(root, left, _PARALLEL.value, _LAUNCH.value)
  path.write_text(text, encoding="utf-8")
  try:
    job.execute([command])
  except job.CommandError as error:
    raise ValueError(f"sweep: {error}") from error
  print("The same command, when the array has ended, says what is left.")
  return 0


class _Report:
  """Prints how each run has ended."""

  def __init__(self, total: int):
    self._num_ended, self._total = 0, total

  def __call__(self, cell: Cell, status: int | None = None) -> None:
    self._num_ended += 1
    where = f"[{self._num_ended}/{self._total}]"
    name = cells_lib.describe(cell.overrides)
    result = cells_lib.read_result(cell.workdir)
    if result is not None:
      _, outcome = _metric(cell)
      end = f"{_METRIC.value} {outcome}, {result['seconds']:.0f} s"
      print(cells_lib.fit(f"{where} {end}: {name}"), flush=True)
      return
    how = "" if status is None else f", exit status {status}"
    print(cells_lib.fit(f"{where} FAILED{how}: {name}"))
    print(f"The end of {cell.workdir / cells_lib.LOG}:")
    print(cells_lib.last_lines(cell.workdir, _NUM_LINES), flush=True)


def _metric(cell: Cell) -> tuple[float | None, str]:
  """Metric of a run that has ended, and its text."""
  try:
    value = cells_lib.read_metric(cell.workdir, _METRIC.value)
  except KeyError:  # `collect` says what there is.
    return None, "missing"
  return value, "not finite" if value is None else f"{value:.4g}"


def _finish(root: pathlib.Path, cells: Sequence[Cell], stopped: bool) -> int:
  """Prints the remaining cells; returns the exit status."""
  left = [c for c in cells if cells_lib.read_result(c.workdir) is None]
  ended = len(cells) - len(left)
  print(f"{ended} of {ranges.counted(len(cells), 'cell')} done.")
  if stopped:
    print("Stopped by a signal; the same command continues.")
    return 143
  if left:
    # Optuna has been told, and goes on with other settings.
    retry = "" if _TRIALS.value else "; the same command tries them again"
    print(f"Failed{retry}:")
    for cell in left:
      print(f"  {cells_lib.fit(cells_lib.describe(cell.overrides), 78)}")
  print(f"Tables: python -m experiments.sweeps.collect --root={root}")
  return 1 if left else 0


def _run_vmapped(
  root: pathlib.Path, cells: Sequence[Cell], left: Sequence[Cell]
) -> int:
  programs = together.programs(left)
  report = _Report(len(left))
  with pool.lock(root):
    for number, group in enumerate(programs, start=1):
      print(
        f"program {number} of {len(programs)}, of"
        f" {ranges.counted(len(group), 'run')}"
      )
      for cell, result in zip(group, together.train(group), strict=True):
        if not isinstance(result, Exception) and result.preempted:
          return _finish(root, cells, stopped=True)
        report(cell)
  return _finish(root, cells, stopped=False)


def _search(source: Source, root: pathlib.Path, num_trials: int) -> int:
  try:
    import optuna
  except ImportError as error:
    raise ImportError(
      "sweep: --trials needs Optuna, which is not installed; run"
      " `pip install 'grpo_jax[search]'`."
    ) from error
  suggest = source.function("search")
  root.mkdir(parents=True, exist_ok=True)
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  study = optuna.create_study(
    study_name="sweep",
    # A database outlives a kill at any moment.
    storage=f"sqlite:///{root / 'study.db'}",
    direction="minimize" if _MINIMIZE.value else "maximize",
    load_if_exists=True,
  )
  trials = study.get_trials()
  # A sampler does not remember its draws: continued with the same seed, a
  # study would begin again with the same cells.
  study.sampler = optuna.samplers.TPESampler(seed=len(trials))
  goal = {"metric": _METRIC.value, "minimize": _MINIMIZE.value}
  if study.user_attrs.get("goal", goal) != goal:
    raise ValueError(
      f"sweep: the study in {root} is for {study.user_attrs['goal']}, and this"
      f" one for {goal}; pass another --root."
    )
  study.set_user_attr("goal", goal)

  def make_cell(number: int, overrides: Mapping[str, Any]) -> Cell:
    return source.cell(root, overrides, prefix=f"{number:04d},")

  running = optuna.trial.TrialState.RUNNING
  failed = optuna.trial.TrialState.FAIL
  cells: dict[int, Cell] = {}
  waiting: list[int] = []
  for trial in trials:
    if "overrides" in trial.user_attrs:
      cells[trial.number] = make_cell(
        trial.number, trial.user_attrs["overrides"]
      )
      if trial.state == running:
        waiting.append(trial.number)
    elif trial.state == running:  # Killed before it was chosen.
      study.tell(trial.number, state=failed)
  cells_lib.check_root(root, list(cells.values()))
  report = _Report(len(waiting) + max(num_trials - len(trials), 0))
  print(
    f"sweep: {len(trials)} of {num_trials} trials were begun in {root}",
    flush=True,
  )

  def ended(cell: Cell, status: int) -> None:
    report(cell, status)
    number = next(n for n, other in cells.items() if other is cell)
    value, _ = _metric(cell)
    study.tell(number, value, state=failed if value is None else None)

  def next_cell() -> Cell | None:
    if waiting:
      return cells[waiting.pop(0)]
    if len(study.get_trials(deepcopy=False)) >= num_trials:
      return None
    trial = study.ask()
    try:
      overrides = suggest(trial)
      cell = make_cell(trial.number, overrides)
    except Exception:
      study.tell(trial, state=failed)
      raise
    trial.set_user_attr("overrides", cell.overrides)
    cells[trial.number] = cell
    cells_lib.write_manifest(root, cells.values())
    return cell

  stopped = pool.run(root, next_cell, ended, _PARALLEL.value)
  status = _finish(root, list(cells.values()), stopped)
  values = [t.value for t in study.get_trials() if t.value is not None]
  if values:
    best = study.best_trial
    text = f"Best, with {_METRIC.value} {best.value:.4g}:"
    print(flags_lib.wrapped(f"{text} {cells[best.number].workdir}"))
  return status


if __name__ == "__main__":
  flags_lib.run(main)

"""Runs as a comparison sees them: an algorithm, a task, a seed and a score.

A run is any folder that `experiments.train`, a sweep or `experiments.compare`
has written. Its algorithm and its task are read from `config.json`. If runs of
one algorithm differ in settings, these are part of its name, as in "grpo
clip_high=0.4". The same holds for tasks.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from experiments.sweeps import cells as cells_lib
from grpo_jax.training import run as run_lib
from grpo_jax.training.runtime import log

X = Literal["step", "tokens", "seconds"]
X_LABELS: dict[str, str] = {
  "step": "step of the run, in all its phases",
  "tokens": "tokens drawn",
  "seconds": "seconds of steps, without compilation",
}
# Beside a run's own files, of `experiments.compare`: "algorithm" and "task",
# its names there, and "runs", how many a program has trained together with it.
CELL = "compare.json"
_DRAWN = "tokens/generated"
# They say nothing about what is learned, or are the seed.
_IGNORED = (*run_lib.MAY_CHANGE, "seed", "checkpoint")


@dataclasses.dataclass(frozen=True)
class Run:
  """Settings and score of a run."""

  workdir: pathlib.Path
  # Names, unique for their settings.
  algorithm: str
  task: str
  base: str  # Name of the algorithm without settings.
  seed: int
  value: float | None  # Metric at the end; None if the run has none.
  why: str  # Reason why the value is missing; empty if there is a value.
  # Settings that differ between algorithms beside their own ones, as text by
  # name: for a warning.
  settings: Mapping[str, str]


def find(folders: Iterable[pathlib.Path]) -> list[pathlib.Path]:
  """Finds the folders of all runs, also inside of a folder, sorted.

  Folders of exported checkpoints are left out.

  Raises:
    FileNotFoundError: A folder has no run.
    ValueError: The config of a run is damaged.
  """
  found: dict[pathlib.Path, None] = {}
  for folder in folders:
    paths = [
      path
      for path in sorted(folder.rglob(log.CONFIG))
      if "algorithm" in log.read_json(path, dict)
    ]
    if not paths:
      raise FileNotFoundError(
        f"--runs: {folder} has no run: no {log.CONFIG} of one lies in it"
        " or in a folder of it. Pass a --workdir of experiments.train, or the"
        " --root of a sweep."
      )
    found |= dict.fromkeys(path.parent for path in paths)
  return list(found)


def read(workdirs: Sequence[pathlib.Path], metric: str) -> list[Run]:
  """Reads runs, with a metric of result.json or the last one of metrics.jsonl.

  Raises:
    KeyError: No run has the metric; the message lists those that exist.
    ValueError: Two runs have the same algorithm, task and seed.
  """
  configs = [
    json.loads((folder / log.CONFIG).read_text("utf-8")) for folder in workdirs
  ]
  flat = [log.flatten(config) for config in configs]
  for settings in flat:  # Each seed may begin with a run of that seed.
    settings["start_workdir"] = re.sub(
      rf"(seed\W?){settings['seed']}\b",
      r"\1{seed}",
      settings["start_workdir"],
    )
  algorithms = _labels([x["algorithm"]["name"] for x in configs], flat)
  tasks = _labels([task_of(x) for x in configs], flat, "data.")
  for i, folder in enumerate(workdirs):
    if cell := _cell(folder):
      algorithms[i], tasks[i] = cell["algorithm"], cell["task"]
  values = cells_lib.read_metrics(workdirs, metric)
  runs = []
  for folder, config, settings, algorithm, task, (value, why) in zip(
    workdirs, configs, flat, algorithms, tasks, values, strict=True
  ):
    base = config["algorithm"]["name"]
    others = {k: v for k, v in settings.items() if _is_shared(k)}
    seed = int(config["seed"])
    runs.append(Run(folder, algorithm, task, base, seed, value, why, others))
  _check_once(runs)
  return runs


def _cell(workdir: pathlib.Path) -> dict[str, Any]:
  """Reads the file of `experiments.compare` in a folder; {} without one."""
  path = workdir / CELL
  return json.loads(path.read_text("utf-8")) if path.exists() else {}


def task_of(config: Mapping[str, Any]) -> str:
  """Name of the task."""
  data = config["data"]
  if data["environment"]:
    return data["environment"]
  return data["name"] or pathlib.Path(data["train_path"]).stem or data["source"]


def _is_shared(name: str) -> bool:
  """True for a setting that belongs to neither the algorithm nor the task."""
  own = ("algorithm.", "data.")
  return not name.startswith(own) and not _is_in(name, _IGNORED)


def _is_in(name: str, groups: Iterable[str]) -> bool:
  return any(f"{name}.".startswith(f"{group}.") for group in groups)


def _labels(
  names: Sequence[str], flat: Sequence[Mapping[str, str]], prefix: str = ""
) -> list[str]:
  """Names, with the settings in which runs of one name differ.

  Settings count that begin with `prefix`; if it is empty, all but those of
  tasks.
  """
  labels = list(names)
  for name in dict.fromkeys(names):
    members = [i for i, other in enumerate(names) if other == name]
    keys = dict.fromkeys(key for i in members for key in flat[i])
    differing = [
      key
      for key in keys
      if (key.startswith(prefix) if prefix else not key.startswith("data."))
      and not _is_in(key, _IGNORED)
      # A setting of the task belongs to it alone, as a budget may.
      and len({flat[i].get(key) for i in members}) > 1
      and (prefix or _differs_within_tasks(key, members, flat))
    ]
    short = cells_lib.short_names(differing)
    for i in members:
      settings = [f"{short[key]}={flat[i].get(key, '–')}" for key in differing]
      labels[i] = " ".join([name, *settings])
  return labels


def _differs_within_tasks(
  key: str, members: Sequence[int], flat: Sequence[Mapping[str, str]]
) -> bool:
  """True if a setting differs between runs of the same task."""
  values = collections.defaultdict(set)
  for i in members:
    task = tuple(v for k, v in flat[i].items() if k.startswith("data."))
    values[task].add(flat[i].get(key))
  return any(len(of_task) > 1 for of_task in values.values())


def _check_once(runs: Iterable[Run]) -> None:
  """Raises ValueError if two runs are the same cell."""
  seen: dict[tuple[str, str, int], Run] = {}
  for run in runs:
    first = seen.setdefault((run.algorithm, run.task, run.seed), run)
    if first is not run:
      raise ValueError(
        f"--runs: {first.workdir} and {run.workdir} are both {run.algorithm} on"
        f" {run.task} with seed {run.seed} and the same settings. A run may"
        " count once: leave one of them out."
      )


def differing(runs: Sequence[Run]) -> dict[str, list[str]]:
  """Settings beside those of the algorithm that differ on a task, with values.

  A comparison of algorithms is fair in the settings that are not listed.
  """
  found: dict[str, dict[str, None]] = {}
  for task in dict.fromkeys(run.task for run in runs):
    members = [run for run in runs if run.task == task]
    for key in dict.fromkeys(k for run in members for k in run.settings):
      values = dict.fromkeys(run.settings.get(key, "–") for run in members)
      if len(values) > 1:
        found.setdefault(key, {}).update(values)
  return {key: list(values) for key, values in sorted(found.items())}


def curve(
  run: Run, metric: str, x: str
) -> tuple[np.ndarray, np.ndarray]:  # [N], [N]
  """A metric over the steps of a run.

  `x` is "step"; "tokens", the number drawn so far; or "seconds" of all steps so
  far, without compilation and evaluation, and divided by the number of runs
  that a program of `experiments.compare` has trained together.

  Raises:
    ValueError: The log lacks `x`.
  """
  steps, values = cells_lib.read_curve(run.workdir, metric)
  if x == "step":
    return steps, values
  if x == "tokens":
    at, amount = cells_lib.read_curve(run.workdir, _DRAWN)
  else:
    at, amount = _seconds(run.workdir)
  if not len(at):
    raise ValueError(
      f"--x={x}: {run.workdir} has not logged it; pass --x=step."
    )
  total = np.cumsum(amount)
  last = np.searchsorted(at, steps, side="right")
  return np.concatenate([[0.0], total])[last], values


def _seconds(workdir: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
  """Steps of a run, and the seconds of each without compilation."""
  path = workdir / log.TIMINGS
  lines = log.read_lines(path) if path.exists() else []
  lines = [line for line in lines if line.get("time/step_s") is not None]
  taken = [z["time/step_s"] - z.get("time/compile_s", 0.0) for z in lines]
  seconds = np.maximum(taken, 0.0) / _cell(workdir).get("runs", 1)
  return np.array([line["step"] for line in lines]), seconds

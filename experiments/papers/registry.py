"""The experiments of the project: records, pages, figures and commands."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shlex
from collections.abc import Callable

from experiments.science import experiments
from experiments.sweeps import made


@dataclasses.dataclass(frozen=True)
class Experiment:
  """Experiment whose outputs git holds."""

  name: str
  # Files and folders that make its numbers; see `made.READERS`.
  code: tuple[str, ...]
  outputs: tuple[str, ...]  # Pages and figures, which git holds.
  run: str  # The command that makes the numbers anew, into folders of its own.
  # Patterns of the files of numbers. Without any, the pages are the only
  # record.
  records: tuple[str, ...] = ()
  # True if a record NAME.json is of the config file `code[0]` with the argument
  # NAME.
  arms: bool = False
  # (folder to write to) writes all outputs from the records.
  write: Callable[[pathlib.Path], None] | None = None
  # Without `write`, the reason why outputs cannot be written again.
  why: str = ""


def command(experiment: Experiment, arm: str = "") -> str:
  """The command that runs an experiment anew, or an arm with its warm start.

  An arm that follows on several others needs these too: the command names the
  missing run. Without an arm it is about all of them.
  """
  if not arm:
    return experiment.run
  base = experiments.load(experiment.name).ALL.base
  names = dict.fromkeys([base or arm, arm])
  pattern = "|".join(map(re.escape, names))
  return f"{experiment.run} {shlex.quote(f'--arms=^({pattern})$')}"


def _science(name: str) -> Experiment:
  """An experiment of `experiments.science`, with a file for each arm."""
  module = experiments.load(name)
  page = experiments.page_of(module)
  figure = [f"docs/{page}.png"] if hasattr(module, "plot") else []

  def write(out: pathlib.Path) -> None:
    experiments.write(module, made.ROOT / experiments.folder(module), out)

  return Experiment(
    name,
    (f"experiments/science/{name}.py",),
    (f"docs/{page}.md", *figure),
    f"python -m experiments.science run {name} --root=runs/again/{name}"
    f" --results=runs/again/{name}/results",
    (f"benchmarks/{name}/*.json",),
    arms=True,
    write=write,
  )


def _measured(name: str, module: str, *outputs: str, code: str) -> Experiment:
  """Returns an experiment whose command measures and writes in one go."""
  return Experiment(
    name,
    (code,),
    outputs,
    f"python -m experiments.{module}",
    why="its program measures and writes in one go",
  )


def _critics(name: str, folder: str, profile: str, seeds: int) -> Experiment:
  figures = ("curves", "gamma", "groups") if profile == "smoke" else ()

  def write(out: pathlib.Path) -> None:
    # gymnax takes a second.
    from experiments.critics import protocol, writing

    cells = protocol.cells(protocol.PROFILES[profile], seeds)
    records = writing.read(made.ROOT / folder / "cells", cells)
    writing.write(profile, cells, records, seeds, out, said=folder)

  return Experiment(
    name,
    ("experiments/critics",),
    (
      f"{folder}/{profile}.md",
      *(f"{folder}/{profile}_{x}.png" for x in figures),
    ),
    f"python -m experiments.critics.report --profile={profile}"
    f" --seeds={seeds} --out=runs/again/{name}",
    (f"{folder}/cells/*.json",),
    write=write,
  )


EXPERIMENTS = {
  one.name: one
  for one in (
    *map(_science, (x for x in experiments.NAMES if x != "objectives")),
    Experiment(
      "objectives",
      ("experiments/science/objectives.py",),
      ("docs/objectives.md", "docs/objectives.png"),
      "python -m experiments.science run objectives"
      " --root=runs/again/objectives",
      why="its numbers are in the runs, which git does not hold",
    ),
    Experiment(
      "estimators",
      ("experiments/estimators", "grpo_jax/algorithms"),
      ("docs/estimators.md", "docs/estimators.png"),
      "python -m experiments.estimators.report --out=docs",
      why="its program enumerates anew, in one to three minutes",
    ),
    _critics("critics_smoke", "benchmarks/critics", "smoke", 5),
    _critics("critics_full", "benchmarks/critics", "full", 5),
    _critics("critics_seeds20", "benchmarks/critics_seeds20", "full", 20),
    _measured(
      *("reasoning_gym", "rewards.gym_table", "docs/reasoning_gym.md"),
      code="experiments/rewards/gym_table.py",
    ),
    _measured(
      *("textarena", "rewards.games_table", "docs/games_table.md"),
      code="experiments/rewards/games_table.py",
    ),
    _measured(
      *("verifiers", "rewards.agreement", "docs/verifiers.md"),
      code="experiments/rewards/agreement.py",
    ),
    _measured(
      *("interceptor", "interceptor.run --out=docs"),
      "docs/interceptor_rates.md",
      code="experiments/interceptor",
    ),
    _measured(
      *("false_alarms", "health.false_alarms --out=docs/false_alarms.md"),
      "docs/false_alarms.md",
      code="experiments/health",
    ),
  )
}

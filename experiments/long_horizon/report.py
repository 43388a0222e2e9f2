r"""Runs an experiment on long horizons, and writes its page.

    python -m experiments.long_horizon.report --experiment=E2 --profile=smoke \
        --root=runs/long_horizon --out=benchmarks/long_horizon

Each arm is a sweep in ROOT/HASH, the hash of all its settings; experiments that
share an arm share its runs. The same command runs only what is missing. --arms
takes a regular expression: others wait, and the page is about what is there.

Writes OUT/E2_smoke.md, .png and .json, and OUT/README.md, the table of all
pages. Needs the extra `plot`.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from experiments import cells as cells_lib
from experiments import flags as flags_lib
from experiments import groups as groups_lib
from experiments import statistics
from experiments.groups import Group
from experiments.long_horizon import arms as arms_lib
from experiments.long_horizon import claims, figure
from experiments.long_horizon.arms import Arm, Experiment
from experiments.statistics import Conclusion

_EXPERIMENT = flags.DEFINE_enum(
  "experiment", None, list(arms_lib.EXPERIMENTS), "Which one.", required=True
)
_PROFILE = flags.DEFINE_enum(
  "profile", "smoke", list(arms_lib.PROFILES), "Of which size."
)
_ROOT = flags.DEFINE_string("root", None, "Folder of all runs.", required=True)
_OUT = flags.DEFINE_string("out", None, "Folder of all pages.", required=True)
_ARMS = flags.DEFINE_string("arms", "", "Arms whose name has a match of it.")
_CONFIG = "configs/sweeps/long_horizon.py"
_SECONDS = "seconds.json"  # In the root of an arm: of each start.
_NONE = "–"


def main(argv: Sequence[str]) -> int:
  """Runs what is missing, and writes the page."""
  del argv
  root = cells_lib.parse_root(_ROOT.value)
  name, profile = _EXPERIMENT.value, _PROFILE.value
  experiment = arms_lib.EXPERIMENTS[name]
  chosen = [
    arm
    for arm in experiment.chosen(profile)
    if re.search(_ARMS.value, arm.name)
  ]
  if not chosen:
    known = ", ".join(arm.name for arm in experiment.chosen(profile))
    raise ValueError(
      f"report: --arms={_ARMS.value} is found in no arm of {name}; its arms"
      f" are {known}."
    )
  failed = [
    arm.name for arm in chosen if not _run(root, f"{name},{profile},{arm.name}")
  ]
  write(name, profile, root, pathlib.Path(_OUT.value))
  if failed:
    print(f"Failed, or stopped: {', '.join(failed)}")
  return int(bool(failed))


def _run(root: pathlib.Path, variant: str) -> bool:
  """Runs the sweep of an arm, if need be; whether it has ended."""
  folder = root / arms_lib.key(variant)
  print(f"{variant}: {folder}", flush=True)
  if _has_ended(folder):
    return True
  command = [f"--config={_CONFIG}:{variant}"]
  warm = arms_lib.warm_start(variant)
  if warm is not None:
    start = root / arms_lib.key(warm)
    if cells_lib.read_result(start) is None and not _timed(
      start,
      "experiments.train",
      f"--config={_CONFIG}:{warm}",
      f"--workdir={start}",
    ):
      return False
    command.append(f"--config.start_workdir={start}")
  return _timed(
    folder,
    *("experiments.sweep", "--launcher=vmap", f"--root={folder}"),
    *command,
  )


def _timed(folder: pathlib.Path, module: str, *arguments: str) -> bool:
  """Runs a program, adds to the seconds of its folder; whether it succeeded."""
  folder.mkdir(parents=True, exist_ok=True)
  started = time.monotonic()
  command = [sys.executable, "-m", module, *arguments]
  status = subprocess.run(command, check=False).returncode
  path = folder / _SECONDS
  seconds = json.loads(path.read_text()) if path.exists() else []
  path.write_text(json.dumps([*seconds, round(time.monotonic() - started)]))
  return status == 0


def _has_ended(folder: pathlib.Path) -> bool:
  if not (folder / cells_lib.MANIFEST).exists():
    return False
  return all(
    cells_lib.read_result(folder / name) is not None
    for name in cells_lib.read_manifest(folder)
  )


class Results:
  """What the arms of an experiment have come to.

  Attributes:
    arms: Those that have ended.
    folders: Where.
    values: Of what is varied; (None,) if nothing is.
  """

  def __init__(self, name: str, profile: str, root: pathlib.Path):
    self.experiment = arms_lib.EXPERIMENTS[name]
    self.values = tuple(self.experiment.values.get(profile, (None,)))
    self.folders: dict[str, pathlib.Path] = {}
    self.arms: list[Arm] = []
    for arm in self.experiment.chosen(profile):
      folder = root / arms_lib.key(f"{name},{profile},{arm.name}")
      if _has_ended(folder):
        self.folders[arm.name] = folder
        self.arms.append(arm)
    self._groups: dict[tuple[str, str], list[Group]] = {}

  def groups(self, arm: str, metric: str) -> list[Group]:
    """Of each value of what is varied."""
    if (arm, metric) not in self._groups:
      found, _ = groups_lib.collect(self.folders[arm], metric)
      self._groups[arm, metric] = found
    return self._groups[arm, metric]

  def scores(
    self, arm: str, label: str = "", place: int = 0
  ) -> np.ndarray | None:  # [S]
    """A metric at the end of training; None if the arm has not ended."""
    metrics = self.experiment.metrics
    metric = metrics[label] if label else next(iter(metrics.values()))
    if arm not in self.folders:
      return None
    [*groups] = self.groups(arm, metric)
    values = np.array(groups[place].values)
    return values if len(values) > 1 else None

  def seconds(self, arm: str) -> float:
    """Of all starts of an arm, with compilation and evaluation."""
    path = self.folders[arm] / _SECONDS
    return sum(json.loads(path.read_text())) if path.exists() else float("nan")


def write(
  name: str, profile: str, root: pathlib.Path, out: pathlib.Path
) -> None:
  """Writes page, figure and numbers about the arms that have ended."""
  experiment = arms_lib.EXPERIMENTS[name]
  results = Results(name, profile, root)
  if not results.arms:
    print("No arm has ended: no page.")
    return
  out.mkdir(parents=True, exist_ok=True)
  stem = f"{name}_{profile}"
  found = claims.conclude(
    name, results.scores, [x for x in results.values if x is not None]
  )
  (label, metric), *_ = experiment.metrics.items()
  curve = "hacked" if name == "E12" else "training accuracy"
  of_steps = "reward/hacked" if name == "E12" else "accuracy"
  varied = None
  if experiment.varied and len(results.arms) == len(experiment.arms):
    varied = experiment.varied.rpartition(".")[2], results.values
  if varied or not experiment.varied:
    figure.plot(
      out / f"{stem}.png",
      {arm.name: results.groups(arm.name, metric) for arm in results.arms},
      {arm.name: results.groups(arm.name, of_steps) for arm in results.arms},
      (label, curve),
      varied,
    )
  text = "\n".join(_page(name, profile, experiment, results, found, stem))
  (out / f"{stem}.md").write_text(text + "\n", encoding="utf-8")
  summary = {
    "experiment": name,
    "profile": profile,
    "title": experiment.title,
    "claim": found.claim,
    "verdict": found.verdict,
    "checks": [
      [x.text, statistics.text(x.contrast, 3), x.needed, x.holds]
      for x in found.checks
      if x.contrast is not None
    ],
    "minutes": round(sum(map(results.seconds, results.folders)) / 60, 1),
    "seeds": arms_lib.NUM_SEEDS,
    "arms": f"{len(results.arms)} of {len(experiment.chosen(profile))}",
    "full_minutes": experiment.cost,
    "date": datetime.date.today().isoformat(),
  }
  (out / f"{stem}.json").write_text(json.dumps(summary, indent=1) + "\n")
  (out / "README.md").write_text("\n".join(_index(out)) + "\n", "utf-8")
  print(f"{name}, profile {profile}: {found.verdict}. {found.claim}")
  print(f"{out / stem}.md")


def _page(
  name: str,
  profile: str,
  experiment: Experiment,
  results: Results,
  found: Conclusion,
  stem: str,
) -> Iterator[str]:
  minutes = sum(map(results.seconds, results.folders)) / 60
  yield f"# {name}, profile `{profile}`: {experiment.title}"
  yield ""
  yield (
    f"**{found.verdict.capitalize()}** at profile `{profile}`: {found.claim}"
  )
  yield ""
  yield (
    f"{datetime.date.today().isoformat()}, {os.cpu_count()} virtual CPU cores;"
    f" {len(results.arms)} of {len(experiment.chosen(profile))} arms,"
    f" {arms_lib.NUM_SEEDS} seeds each, {minutes:.0f} minutes in all with"
    " compilation and evaluation."
    + (
      f" Profile `full` takes about {experiment.cost} minutes."
      if profile != "full"
      else ""
    )
  )
  yield ""
  yield "```"
  yield f"python -m experiments.long_horizon.report --experiment={name} \\"
  yield f"    --profile={profile} --root=runs/long_horizon \\"
  yield "    --out=benchmarks/long_horizon"
  yield "```"
  yield ""
  yield (
    "The rules that decide are in"
    " [claims.py](../../experiments/long_horizon/claims.py), the settings in"
    " [arms.py](../../experiments/long_horizon/arms.py)."
  )
  yield ""
  yield f"![{stem}]({stem}.png)"
  yield ""
  yield "## Checks"
  yield ""
  yield from statistics.table(found.checks, 3)
  yield ""
  yield "## Arms"
  yield ""
  yield (
    "At the end of training: mean over seeds and its 95 % interval by Student's"
    " t; held-out accuracies are of 512 problems, sampled at temperature 1. All"
    " arms draw as many rollouts to train the policy; the pre-training of a"
    " critic draws 20 batches more."
  )
  yield ""
  labels = list(experiment.metrics)
  short = experiment.varied.rpartition(".")[2]
  head = ["arm", *([short] if short else []), *labels, "seeds", "hash"]
  yield f"| {' | '.join(head)} |"
  yield f"|{'---|' * len(head)}"
  for arm in results.arms:
    for place, value in enumerate(results.values):
      row = [f"`{arm.name}`", *([str(value)] if short else [])]
      for label in labels:
        scores = results.scores(arm.name, label, place)
        row.append(_NONE if scores is None else claims.spread(scores))
      scores = results.scores(arm.name, place=place)
      each = [] if scores is None else [f"{x:.3f}" for x in scores]
      row += [" ".join(each), f"`{results.folders[arm.name].name}`"]
      yield f"| {' | '.join(row)} |"
  yield ""
  for arm in results.arms:
    minutes = results.seconds(arm.name) / 60
    yield f"- `{arm.name}`: {arm.text}; {minutes:.1f} minutes."
  if experiment.shares_start:
    yield ""
    yield (
      "All runs start with one policy, warmed up with seed 0; seeds are those"
      " of problems, draws and critics."
    )


def _index(out: pathlib.Path) -> Iterator[str]:
  yield "# Long horizons: claims and what came out"
  yield ""
  yield (
    "Each row is made by one command, which its page has. A verdict is about"
    " its profile; minutes are those of two virtual CPU cores."
  )
  yield ""
  head = ["", "claim", "profile", "verdict", "checks", "arms", "seeds", "min"]
  yield f"| {' | '.join(head)} |"
  yield f"|{'---|' * len(head)}"
  found: list[Mapping[str, Any]] = [
    json.loads(path.read_text("utf-8")) for path in out.glob("*.json")
  ]
  for row in sorted(
    found, key=lambda x: (int(x["experiment"][1:]), x["profile"])
  ):
    stem = f"{row['experiment']}_{row['profile']}"
    checks = "<br>".join(
      f"{text}: {number}, {'as needed' if holds else f'needed {needed}'}"
      for text, number, needed, holds in row["checks"]
    )
    cells = [
      f"[{row['experiment']}]({stem}.md)",
      row["claim"],
      f"`{row['profile']}`",
      f"**{row['verdict']}**",
      checks,
      row["arms"],
      str(row["seeds"]),
      f"{row['minutes']:.0f}",
    ]
    yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
  flags_lib.run(main)

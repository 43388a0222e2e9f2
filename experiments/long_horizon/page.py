"""The page of an experiment, in Markdown, and the table of all pages."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from experiments.long_horizon import arms as arms_lib
from experiments.long_horizon import claims, figure
from experiments.long_horizon.arms import Arm
from experiments.science import arms as sweeps_lib
from experiments.sweeps import groups as groups_lib
from experiments.sweeps import statistics
from experiments.sweeps.groups import Group
from experiments.sweeps.statistics import Conclusion

_NONE = "–"


class Results:
  """Results of the arms of an experiment.

  Attributes:
    arms: Arms that have ended.
    folders: Folders of these arms, by name.
    values: Values of the varied setting; (None,) without one.
    warm_start: Folder of the shared warm start; None if each arm has its own.
  """

  def __init__(self, name: str, profile: str, root: pathlib.Path):
    self.experiment = arms_lib.EXPERIMENTS[name]
    self.values = tuple(self.experiment.values.get(profile, (None,)))
    self.folders: dict[str, pathlib.Path] = {}
    self.arms: list[Arm] = []
    first = self.experiment.arms[0].name
    warm = arms_lib.warm_start(f"{name},{profile},{first}")
    self.warm_start = root / arms_lib.key(warm) if warm else None
    for arm in self.experiment.chosen(profile):
      folder = root / arms_lib.key(f"{name},{profile},{arm.name}")
      if sweeps_lib.has_ended(folder):
        self.folders[arm.name] = folder
        self.arms.append(arm)
    self._groups: dict[tuple[str, str], list[Group]] = {}

  def groups(self, arm: str, metric: str) -> list[Group]:
    """Groups of runs, one for each value of the varied setting."""
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
    # Arms are compared seed by seed: a seed without a value leaves none.
    return values if len(values) == arms_lib.NUM_SEEDS else None

  def seconds(self, arm: str) -> float:
    """Seconds of all starts of an arm, with compilation and evaluation."""
    return sweeps_lib.seconds(self.folders[arm])

  def all_seconds(self) -> float:
    """Seconds of all arms, with the warm start that they share."""
    own = sum(map(self.seconds, self.folders))
    return own + (
      sweeps_lib.seconds(self.warm_start) if self.warm_start else 0.0
    )

  def date(self) -> str:
    """Day on which the last arm ended, YYYY-MM-DD."""
    return sweeps_lib.date(list(self.folders.values()))


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
  curve, of_steps = experiment.curve
  varied = None
  if experiment.varied and len(results.arms) == len(experiment.arms):
    varied = experiment.varied.rpartition(".")[2], results.values
  is_drawn = varied is not None or not experiment.varied
  if is_drawn:
    figure.plot(
      out / f"{stem}.png",
      {arm.name: results.groups(arm.name, metric) for arm in results.arms},
      {arm.name: results.groups(arm.name, of_steps) for arm in results.arms},
      (label, curve),
      varied,
    )
  text = "\n".join(_page(name, profile, results, found, out, is_drawn))
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
    "minutes": round(results.all_seconds() / 60, 1),
    "seeds": f"{arms_lib.NUM_SEEDS}"
    + (", one warm start" if experiment.shares_start else ""),
    "arms": f"{len(results.arms)} of {len(experiment.chosen(profile))}",
    "full_minutes": experiment.cost,
    "date": results.date(),
  }
  (out / f"{stem}.json").write_text(json.dumps(summary, indent=1) + "\n")
  (out / "README.md").write_text("\n".join(_index(out)) + "\n", "utf-8")
  print(f"{name}, profile {profile}: {found.verdict}. {found.claim}")
  print(f"{out / stem}.md")


def _page(
  name: str,
  profile: str,
  results: Results,
  found: Conclusion,
  out: pathlib.Path,
  is_drawn: bool,
) -> Iterator[str]:
  experiment = results.experiment
  minutes = results.all_seconds() / 60
  yield f"# {name}, profile `{profile}`: {experiment.title}"
  yield ""
  yield (
    f"**{found.verdict.capitalize()}** at profile `{profile}`: {found.claim}"
  )
  yield ""
  yield (
    f"{len(results.arms)} of {len(experiment.chosen(profile))} arms have ended"
    f" ({results.date()}), with {arms_lib.NUM_SEEDS} seeds each. They took"
    f" {minutes:.0f} minutes on {os.cpu_count()} virtual CPU cores, with"
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
  yield f"    --out={out}"
  yield "```"
  yield ""
  yield (
    "The rules that decide are in `experiments/long_horizon/claims.py`. The"
    " settings are in `experiments/long_horizon/arms.py`."
  )
  yield ""
  if experiment.shares_start:
    yield (
      "All runs start with one policy, which was warmed up with seed 0. So the"
      " intervals say how much problems, draws and critics vary, and not how"
      " much the start does."
    )
    yield ""
  if is_drawn:
    yield f"![{name}_{profile}]({name}_{profile}.png)"
    yield ""
  yield "## Checks"
  yield ""
  yield from statistics.table(found.checks, 3)
  yield ""
  yield statistics.WHAT_DECIDES
  yield ""
  if profile in experiment.limits:
    yield experiment.limits[profile]
    yield ""
  yield "## Arms"
  yield ""
  yield (
    "The table has each metric at the end of training: its mean over seeds with"
    " a 95 % interval by Student's t. Held-out accuracies are over 512 problems"
    " whose answers are sampled at temperature 1. All arms draw equally many"
    " rollouts to train the policy. An arm that trains a critic first draws 20"
    " more batches for the critic."
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


def _index(out: pathlib.Path) -> Iterator[str]:
  yield "# Long horizons: claims and what came out"
  yield ""
  yield (
    "One command makes each row, and the page of the row has the command. A"
    " verdict is about its profile. Minutes were measured on two virtual CPU"
    " cores."
  )
  yield ""
  head = ["", "claim", "profile", "verdict", "checks", "arms", "seeds"]
  head += ["minutes", "of `full`"]
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
      row["seeds"],
      f"{row['minutes']:.0f}",
      f"{row['full_minutes']}",
    ]
    yield f"| {' | '.join(cells)} |"

r"""Rates of false alarms of the health rules, on runs that are well.

    python -m experiments.health.false_alarms
    python -m experiments.health.false_alarms runs/a runs/b
    python -m experiments.health.false_alarms --runs=500 \
        --out=docs/false_alarms.md runs/healthy/*

The program first makes up metrics of healthy runs (`series.py`). It counts the
share of these runs in which each rule warns, with the upper end of its 95 %
interval. Each folder that is given holds one run or several. For these runs the
program asks the rules about the logged metrics, ignores the alarms that were
logged, and prints the warnings. With --out it writes a page. Exit status: 1 if
a rule warns of more than 1 % of the made-up runs.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import logging
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import ml_collections
import numpy as np

from experiments.health import series
from grpo_jax.settings import config as config_lib
from grpo_jax.training.evaluation import scores
from grpo_jax.training.monitor import health
from grpo_jax.training.rules import rules
from grpo_jax.training.runtime import log

MOST = 0.01  # Share of runs of which a rule may be wrong.

_PAGE = """# False alarms

<!-- Written by the last command below. -->

How often the rules of [metrics.md](metrics.md#rules) warn of runs in which
nothing is wrong: the share of runs, in per cent, with at least one alarm of the
rule, and in brackets the upper end of its 95 % interval (Wilson).

```
{logged}
python -m experiments.health.false_alarms --runs={runs} \\
    --out=docs/false_alarms.md {folders}
```

*constant*, *slow*, *learning* and *supervised* are metrics that are made up
([series.py](../experiments/health/series.py)), {steps} steps a run: ones that
stay where they are, with a memory of 5 and of 30 steps; ones that get better;
and imitation. They say how often chance alone looks like a trend. They do not
say that the bounds are right: no run is made up whose metrics stay beyond one,
for of that a rule is meant to warn.{real}

"""


@dataclasses.dataclass(frozen=True)
class Column:
  """Counts for the runs of a kind.

  Attributes:
    name: Name of the kind.
    runs: Number of runs.
    counts: Number of runs in which a rule warns, by its name.
  """

  name: str
  runs: int
  counts: Mapping[str, int]

  def cell(self, rule: rules.Rule) -> str:
    """Share of the runs, and the upper end of its interval, in per cent."""
    count = self.counts.get(rule.name, 0)
    _, bound = scores.wilson_interval(count, self.runs)
    return f"{100 * count / self.runs:.1f} ({100 * bound:.1f})"


def simulated(
  kind: str, runs: int, steps: int = 1000, seed: int = 0
) -> collections.Counter[str]:
  """Number of simulated runs of a kind in which each rule warns."""
  counts: collections.Counter[str] = collections.Counter()
  stage = dataclasses.replace(series.STAGE, steps=steps, last=steps)
  if kind == "supervised":
    stage = dataclasses.replace(stage, kind="supervised")
  level = logging.root.manager.disable
  logging.disable(logging.WARNING)
  for number in range(runs):
    rng = np.random.default_rng((seed, number))
    monitor = health.Monitor((stage,))
    for step, line in enumerate(series.KINDS[kind](rng, steps), start=1):
      monitor.step(step, line)
    counts.update(alarm.rule.name for alarm in monitor.alarms)
  logging.disable(level)
  return counts


def logged(workdir: pathlib.Path) -> list[rules.Alarm]:
  """Alarms of the rules for a run that has ended.

  Raises:
    FileNotFoundError: The folder has no run.
  """
  values = json.loads((workdir / log.CONFIG).read_text())
  values.pop("health", None)
  config = config_lib.resolve(ml_collections.ConfigDict(values))
  monitor = health.Monitor(health.stages_of(config, config.rewards.correct))
  level = logging.root.manager.disable
  logging.disable(logging.WARNING)
  for line in log.read_lines(workdir / log.METRICS):
    if (metrics := health.of_step(line)) is not None:
      monitor.step(line["step"], metrics)
  logging.disable(level)
  return monitor.alarms


def runs_in(folder: pathlib.Path) -> list[pathlib.Path]:
  """Workdirs in a folder, which may itself be a workdir.

  Raises:
    FileNotFoundError: The folder has no run.
  """
  found = sorted(x.parent for x in folder.rglob(log.METRICS))
  if not found:
    raise FileNotFoundError(
      f"false_alarms: {folder} has no {log.METRICS}; pass the folder of"
      " a run, or one with the folders of runs in it."
    )
  return found


def of_folder(folder: pathlib.Path) -> Column:
  """Counts the alarms of the runs in a folder, and prints them."""
  counts: collections.Counter[str] = collections.Counter()
  workdirs = runs_in(folder)
  for workdir in workdirs:
    found = logged(workdir)
    counts.update({alarm.rule.name for alarm in found})
    print(f"{workdir}: {len(found)} alarm(s)")
    for alarm in found:
      print(f"  {alarm.text()}")
  return Column(folder.name, len(workdirs), counts)


def table(columns: Iterable[Column]) -> str:
  """A row for each rule, a column for each kind of runs."""
  columns = list(columns)
  names = "".join(f" {x.name}, {x.runs} runs |" for x in columns)
  lines = [f"| rule | alarm |{names}", "|---|---|" + "---:|" * len(columns)]
  for rule in rules.RULES:
    cells = "".join(f" {x.cell(rule)} |" for x in columns)
    lines.append(f"| {rule.number} | `{rule.name}` |{cells}")
  return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a table; 1 if a rule warns of more than 1 % of the runs."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("folders", nargs="*", type=pathlib.Path)
  parser.add_argument("--runs", type=int, default=200)
  parser.add_argument("--steps", type=int, default=1000)
  parser.add_argument("--out", type=pathlib.Path)
  given = parser.parse_args(argv)
  made_up = [
    Column(kind, given.runs, simulated(kind, given.runs, given.steps))
    for kind in series.KINDS
  ]
  text = table([*made_up, *map(of_folder, given.folders)])
  print(text)
  if given.out:
    given.out.write_text(_page(given) + text, encoding="utf-8")
  most = max(max(x.counts.values(), default=0) for x in made_up)
  return int(most > MOST * given.runs)


def _page(given: argparse.Namespace) -> str:
  """Text of the page above the table."""
  commands = "".join(
    "python -m experiments.sweeps.run --launcher=vmap \\\n"
    f"    --config=configs/sweeps/healthy.py:{folder.name} --root={folder}\n"
    for folder in given.folders
  )
  real = (
    " The\ncolumns after them are real runs of"
    " [healthy.py](../configs/sweeps/healthy.py)."
  )
  return _PAGE.format(
    logged=commands.strip(),
    runs=given.runs,
    steps=given.steps,
    folders=" ".join(map(str, given.folders)),
    real=real if given.folders else "",
  )


if __name__ == "__main__":
  raise SystemExit(main())

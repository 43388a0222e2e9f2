r"""How often rules of health warn of runs that are well.

    python -m experiments.health.false_alarms
    python -m experiments.health.false_alarms --runs=50 runs/a runs/b

First it makes up metrics of healthy runs (`series.py`): ones that stay where
they are, ones that learn, and imitation. It counts the share of runs of 1000
steps in which each rule warns, with the upper end of its 95 % interval. With
workdirs, it then asks the rules about the runs that are logged there, as if
nobody had asked before.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import logging
import pathlib
from collections.abc import Sequence

import ml_collections
import numpy as np

from experiments.health import series
from grpo_jax.training import alarms, health, metrics_log, scores
from grpo_jax.training import config as config_lib


def simulated(
  kind: str, runs: int, steps: int = 1000, seed: int = 0
) -> collections.Counter[str]:
  """In how many of so many runs of a kind each rule warns."""
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


def logged(workdir: pathlib.Path) -> list[alarms.Alarm]:
  """What rules say of a run that has ended.

  Raises:
    FileNotFoundError: There is no run.
  """
  values = json.loads((workdir / metrics_log.CONFIG).read_text())
  values.pop("health", None)
  config = config_lib.resolve(ml_collections.ConfigDict(values))
  monitor = health.Monitor(health.stages_of(config, config.rewards.correct))
  found = []
  for line in metrics_log.read_lines(workdir / metrics_log.METRICS):
    if (metrics := health.of_step(line)) is not None:
      found += monitor.step(line["step"], metrics)
  return found


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a table; 1 if a rule warns of more than 1 % of the runs."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("workdirs", nargs="*", type=pathlib.Path)
  parser.add_argument("--runs", type=int, default=200)
  parser.add_argument("--steps", type=int, default=1000)
  given = parser.parse_args(argv)
  counts = {
    kind: simulated(kind, given.runs, given.steps) for kind in series.KINDS
  }
  print(f"share of {given.runs} runs of {given.steps} steps with an alarm (%)")
  print(f"{'':32}" + "".join(f"{kind:>12}" for kind in counts))
  most = 0.0
  for rule in alarms.RULES:
    shares = [count[rule.name] / given.runs for count in counts.values()]
    most = max(most, *shares)
    print(
      f"{rule.number} {rule.name:28}"
      + "".join(f"{100 * share:12.1f}" for share in shares)
    )
  _, bound = scores.wilson_interval(most * given.runs, given.runs)
  print(f"most: {100 * most:.1f} %; 95 % interval up to {100 * bound:.1f} %")
  for workdir in given.workdirs:
    found = logged(workdir)
    print(f"{workdir}: {len(found)} alarm(s)")
    for alarm in found:
      print(f"  {alarm.text()}")
  return int(most > 0.01)


if __name__ == "__main__":
  raise SystemExit(main())

"""The experiment on long horizons, without training."""

import collections
import json
import pathlib

import numpy as np
import pytest

from experiments.science import long_horizons
from experiments.sweeps import cells as cells_lib
from grpo_jax.training.runtime import log
from tests.experiments import runs

SEEDS = np.arange(3) / 100


def test_arms_of_a_kind_draw_as_many_rollouts_of_the_same_task():
  sizes = collections.defaultdict(set)
  for arm in long_horizons.CHOSEN_FROM:
    run, kind = runs.of_arm(long_horizons, arm), arm.partition("-")[0]
    options = dict(run.data.task_options)
    for own in long_horizons.ARMS[arm].settings:
      options.pop(own.rpartition(".")[2], None)
    rl = run.section("rl")
    task = run.data.name, json.dumps(options), run.model, run.section("sft")
    updates = rl.optimizer, rl.num_epochs, rl.num_minibatches
    sizes[kind].add((rl.num_rows, rl.steps, *task, *updates))
  assert {kind: len(x) for kind, x in sizes.items()} == dict.fromkeys(sizes, 1)
  assert len(sizes) == 4


def test_arms_with_a_start_go_on_from_its_one_seed():
  root = pathlib.Path("runs")
  arms = ["chain-joint", "grid-ppo", "grid-grpo"]
  assert long_horizons.needed(arms) == ["grid-start", *arms]
  assert long_horizons.follows_on("chain-joint", root) == []
  (start,) = long_horizons.follows_on("grid-ppo", root)
  assert start == "--config.start_workdir=runs/grid-start/seed=0"
  phases = {x: long_horizons.get_config(x).phases for x in long_horizons.ARMS}
  assert phases["grid-start"] == ("sft",)
  assert phases["grid-ppo"] == ("value", "rl")
  assert phases["chain-grpo"] == ("sft", "rl")
  seeds = []
  long_horizons.sweep(lambda seed: seeds.append(seed), "grid-start@smoke")
  assert seeds == [0]


@pytest.mark.parametrize(
  ("ppo", "rho", "verdict"),
  [
    # By hand: beside 1 2 3 4 5 these have the ranks 1 2 3 4 5 and 5 4 3 2 1.
    ((0.5, 0.6, 0.7, 0.8, 0.9), 1, True),
    ((0.9, 0.8, 0.7, 0.6, 0.5), -1, False),
    # 1 − 6 (1 + 1 + 1 + 1) / (5 · 24), of the ranks 2 1 4 3 5.
    ((0.6, 0.5, 0.8, 0.7, 0.9), 0.8, True),
    ((0.5,) * 5, 0, False),
  ],
)
def test_the_trend_is_that_of_the_gap(ppo, rho, verdict):
  def of(arm, what):
    assert what == "accuracy"
    _, name, steps = arm.split("-")
    place = long_horizons.HORIZONS.index(int(steps))
    return SEEDS + (ppo[place] if name == "ppo" else 0.25)

  check = long_horizons.trend(of)
  assert check.contrast.estimate == pytest.approx(rho)
  assert check.holds is verdict


def test_numbers_are_of_the_end_of_each_seed(tmp_path):
  folder = tmp_path / "grid-ppo"
  folder.mkdir()
  table = [{"folder": str(x), "overrides": {"seed": x}} for x in range(2)]
  log.write_json(folder / cells_lib.MANIFEST, table)
  size = long_horizons.SIZES["full"]
  for seed in range(2):
    assert long_horizons.collected(folder, size=size) is None
    (folder / str(seed)).mkdir()
    with log.MetricsLog(folder / str(seed)) as metrics:
      metrics.write(1, "rl", {"accuracy": 0.75})
      after = {"eval/accuracy": 0.25 + seed / 4, "eval/reward/key": 1.0}
      metrics.write_result(1, None, after, 512)
  assert long_horizons.collected(folder, size=size)["seeds"] == [
    {"accuracy": 0.25, "key": 1.0},
    {"accuracy": 0.5, "key": 1.0},
  ]

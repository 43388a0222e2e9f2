"""The experiments on long horizons, without training."""

import collections
import json
import pathlib
import re

import numpy as np
import pytest

from experiments.long_horizon import arms, claims, page
from experiments.sweeps import cells as cells_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.training import many
from grpo_jax.training.runtime import hyperparameters
from grpo_jax.training.runtime import log as log_lib

VARIANTS = [
  f"{name},{profile},{arm.name}"
  for name, experiment in arms.EXPERIMENTS.items()
  for profile in arms.PROFILES
  for arm in experiment.chosen(profile)
]
SEEDS = np.arange(5) / 100


@pytest.mark.parametrize("name", arms.EXPERIMENTS)
@pytest.mark.parametrize("profile", arms.PROFILES)
def test_arms_draw_as_many_rollouts_of_the_same_task(name, profile):
  sizes = collections.defaultdict(set)
  for arm in arms.EXPERIMENTS[name].chosen(profile):
    config = config_lib.resolve(arms.get_config(f"{name},{profile},{arm.name}"))
    options = dict(config.data.task_options)
    for own in arm.settings:
      options.pop(own.rpartition(".")[2], None)
    rl = config.section("rl")
    sizes["rollouts"].add((rl.num_rows, rl.steps))
    sizes["problems"].add((config.data.name, json.dumps(options)))
    sizes["model"].add(config.model)
    sizes["warm start"].add(config.section("sft"))
    sizes["updates"].add((rl.optimizer, rl.num_epochs, rl.num_minibatches))
  assert {len(found) for found in sizes.values()} == {1}


def test_cells_are_seeds_and_values_and_seeds_share_a_program(tmp_path):
  source = cells_lib.Source(
    "experiments/long_horizon/config.py:E4,smoke,ppo", {}
  )
  cells = source.cells(tmp_path)
  assert len(cells) == 3 * arms.NUM_SEEDS
  chains = [dict(cell.config.data.task_options) for cell in cells]
  assert [x["num_steps"] for x in chains[:: arms.NUM_SEEDS]] == [8, 16, 32]
  assert all(x["num_steps"] == 4 * x["every"] for x in chains)
  programs = {
    cells_lib.program(
      cell.config, many.may_differ(cell.config), hyperparameters.CONSTANT
    )
    for cell in cells
  }
  assert len(programs) == 3


def test_hashes_tell_settings_apart_and_shared_arms_are_one():
  keys = {variant: arms.key(variant) for variant in VARIANTS}
  assert keys["E2,smoke,joint"] == keys["E3,smoke,joint"]
  assert len(set(keys.values())) == len(keys) - 2  # joint, in each profile.


def test_a_shared_warm_start_is_of_no_arm():
  assert arms.warm_start("E2,smoke,joint") is None
  warm = arms.warm_start("E14,smoke,ppo")
  assert warm == "E14,smoke,warm-start"
  start, ppo, grpo = (
    config_lib.resolve(arms.get_config(variant))
    for variant in (warm, "E14,smoke,ppo", "E14,smoke,grpo")
  )
  assert start.phases == ("sft",)
  assert (ppo.phases, grpo.phases) == (("value", "rl"), ("rl",))
  assert start.model == ppo.model == grpo.model


@pytest.mark.parametrize(
  ("variant", "message"),
  [
    ("E2,smoke", "needed is EXPERIMENT,PROFILE,ARM"),
    ("E2,huge,joint", "needed is EXPERIMENT,PROFILE,ARM"),
    ("E2,smoke,joined", "no arm 'joined'; choose one of joint"),
  ],
)
def test_unknown_variants_are_refused(variant, message):
  with pytest.raises(ValueError, match=message):
    arms.get_config(variant)


def conclude(name, values=(), **means):
  """The conclusion, if the seeds of arms have these means."""

  def of(arm, metric="", place=0):
    mean = means.get(arm.replace("-", "_") + metric)
    if mean is None:
      return None
    return SEEDS + (mean[place] if isinstance(mean, tuple) else mean)

  return claims.conclude(name, of, values)


@pytest.mark.parametrize(
  ("name", "means", "verdict"),
  [
    ("E2", {"joint": 0.95, "frozen": 0.5}, "confirmed"),
    ("E2", {"joint": 0.7, "frozen": 0.5}, "not confirmed"),
    ("E2", {"joint": 0.95, "frozen": 0.7}, "not confirmed"),
    ("E2", {"joint": 0.95}, "undecided"),
    (
      "E3",
      {"joint": 0.9, "without_token_loss": 0.8, "without_discount": 0.8},
      "confirmed",
    ),
    (
      "E3",
      {"joint": 0.9, "without_token_loss": 0.8, "without_discount": 0.9},
      "not confirmed",
    ),
    (
      "E12",
      {
        "nonehacked": 0.9,
        "two_stagehacked": 0.0,
        "two_stage": 0.8,
        "none": 0.1,
        "abort": 0.6,
      },
      "confirmed",
    ),
    ("E14", {"gagpo": 0.5, "grpo": 0.6}, "not confirmed"),
  ],
)
def test_verdicts_of_known_numbers(name, means, verdict):
  assert conclude(name, **means).verdict == verdict


def test_the_trend_is_that_of_the_gap():
  values = (8, 16, 32)
  grows = conclude("E4", values, ppo=(0.9, 0.9, 0.9), grpo=(0.9, 0.7, 0.5))
  assert grows.verdict == "confirmed"
  assert grows.checks[0].contrast.estimate == pytest.approx(1)
  falls = conclude("E4", values, ppo=(0.9, 0.7, 0.5), grpo=(0.9, 0.9, 0.9))
  assert falls.checks[0].contrast.is_below
  flat = conclude("E4", values, ppo=(0.9,) * 3, grpo=(0.5,) * 3)
  assert flat.verdict == "not confirmed"
  missing = conclude("E4", values, ppo=(0.9,) * 3)
  assert missing.verdict == "undecided"
  # By hand: ranks 1 2 3 beside 1 3 2, 3 2 1 and 1 1 1.
  gaps = np.array([[0.1, 0.3, 0.2], [0.3, 0.2, 0.1], [0.5, 0.5, 0.5]]).T
  np.testing.assert_allclose(
    claims.trend(np.array(values), gaps), [0.5, -1, 0], atol=1e-12
  )


def test_the_page_says_what_has_ended(tmp_path):
  """Two arms of three: a table, a figure, and no verdict about the others."""
  for arm, mean in (("joint", 0.95), ("grpo", 0.6)):
    folder = tmp_path / arms.key(f"E2,smoke,{arm}")
    folder.mkdir()
    table = [
      {"folder": str(seed), "overrides": {"seed": seed}} for seed in range(5)
    ]
    log_lib.write_json(folder / cells_lib.MANIFEST, table)
    (folder / "seconds.json").write_text("[60, 30]")
    for seed in range(5):
      (folder / str(seed)).mkdir()
      with log_lib.MetricsLog(folder / str(seed), tensorboard=False) as log:
        for step in range(1, 7):
          log.write(step, "rl", {"accuracy": step / 10 + SEEDS[seed]})
        after = {"eval/accuracy": mean + SEEDS[seed]}
        log.write_result(6, None, after, 512)
  out = tmp_path / "pages"
  page.write("E2", "smoke", tmp_path, out)
  text = (out / "E2_smoke.md").read_text()
  assert "**Undecided** at profile `smoke`" in text
  assert "2 of 3 arms have ended" in text
  assert "with 5 seeds each. They took 3 minutes on" in text
  # By hand: mean 0.97, deviation 0.0158; t of 4 degrees of freedom is 2.776.
  assert "| `joint` | 0.970 [0.950, 0.990] | 0.950 0.960 0.970" in text
  assert (out / "E2_smoke.png").stat().st_size > 10_000
  index = (out / "README.md").read_text()
  assert "| [E2](E2_smoke.md) |" in index
  assert "| **undecided** |" in index


def test_committed_pages_are_of_these_settings():
  folder = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
  pages = sorted((folder / "long_horizon").glob("E*.json"))
  assert pages
  for path in pages:
    name, profile = path.stem.split("_")
    text = path.with_suffix(".md").read_text("utf-8")
    found = dict(re.findall(r"^\| `([\w-]+)` \|.* `(\w{8})` \|$", text, re.M))
    assert found
    for arm, key in found.items():
      assert key == arms.key(f"{name},{profile},{arm}"), path

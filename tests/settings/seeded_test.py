"""Paths with the seed of a run in them."""

from __future__ import annotations

from grpo_jax.settings import config as config_lib


def _resolved(seed):
  config = config_lib.default_config("opd_token")
  config.seed = seed
  config.start_workdir = "runs/base/seed={seed}"
  config.rl.reference_workdirs = ("a/{seed}", "b")
  config.reward_model.source = "rm-{seed}"
  config.rewards.functions = ("accuracy", "reward_model")
  config.rewards.weights = (1.0, 1.0)
  config.rl.schedule.name = "ads"
  config.rl.schedule.clusters = "c-{seed}.npz"
  config.rl.num_prompts = 128
  config.data.task_options.level = 3
  return config_lib.resolve(config)


def test_the_seed_stands_in_paths_of_other_runs():
  found = _resolved(7)
  assert found.start_workdir == "runs/base/seed=7"
  assert found.section("rl").reference_workdirs == ("a/7", "b")
  assert found.reward_model.source == "rm-7"
  assert found.section("rl").schedule.clusters == "c-7.npz"
  # Other texts are nobody's path.
  config = config_lib.default_config()
  config.log.project = "of {seed}"
  assert config_lib.resolve(config).log.project == "of {seed}"


def test_runs_of_one_program_have_the_paths_of_the_first():
  first, second = _resolved(1), _resolved(2)
  assert second != first
  same = config_lib.with_paths_of(second, first)
  assert same.seed == 2
  assert same.sections == first.sections
  assert same.start_workdir == first.start_workdir
  assert same.reward_model == first.reward_model

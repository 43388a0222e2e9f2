"""A run from a checkpoint, with checkpoints of other families as teachers."""

import json
import shutil

import numpy as np
import pytest

from grpo_jax.settings import config as config_lib
from grpo_jax.training import loop
from tests.cli import checkpoint_run_test
from tests.training import resume_test

STEPS = 20


@pytest.mark.slow
@pytest.mark.parametrize("router", ["domain", "mixture"])
def test_a_student_of_two_families_learns_and_is_resumed_exactly(
  router, tmp_path
):
  made = {}
  for family in ("qwen2", "llama", "gemma3_text"):
    (tmp_path / family).mkdir()
    made[family] = checkpoint_run_test.make(tmp_path / family, family)
  config = checkpoint_run_test.small(
    tmp_path / "qwen2", made["qwen2"], dtype="float32", param_dtype="float32"
  )
  rows = [
    row | {"extras": {"domain": n % 2}}
    for n, row in enumerate(checkpoint_run_test.ROWS)
  ]
  path = tmp_path / "prompts.jsonl"
  path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
  config.data.train_path = str(path)
  config.algorithm = config_lib.algorithm_config("opd_full")
  config.rl.reference_workdirs = (str(made["llama"]), str(made["gemma3_text"]))
  if router == "mixture":
    config.rl.reference_mixture = (0.5, 0.5)
    config.rl.reference_storage = "bfloat16"
  config.rewards.functions = ("tests.rewards.workers.bad_verifiers:length",)
  config.rl.steps = STEPS
  config.rl.num_prompts = config.rl.group_size = 4
  config.rl.optimizer.learning_rate = 3e-3
  config.rl.optimizer.stochastic_rounding = False
  config.checkpoint.every = 10
  config.checkpoint.keep = 2
  whole, broken = tmp_path / "whole", tmp_path / "broken"
  loop.train(config, whole)
  lines = (whole / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
  losses = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
  assert len(losses) == STEPS
  assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:2])
  # As a run whose process has died after its tenth step.
  shutil.copytree(whole, broken)
  shutil.rmtree(broken / "checkpoints" / str(STEPS))
  loop.train(config, broken)
  resume_test.assert_same(
    resume_test.everything(broken), resume_test.everything(whole)
  )

"""A verifier with a bug is found in a real run, which stops and goes on."""

import json

import pytest

from grpo_jax.configs import language
from grpo_jax.training import loop
from grpo_jax.training.monitor import health
from grpo_jax.training.runtime import log


def _config():
  """A verifier that accepts empty answers, and a teacher who gives them."""
  config = language.get_config("grpo")
  config.data.task_options.teacher_error = 0.0
  config.data.task_options.teacher_empty = 1.0
  config.data.task_options.min_len = config.data.task_options.max_len = 2
  config.rewards.functions = ("accuracy_buggy", "format", "language")
  config.rewards.correct = "accuracy_buggy"
  config.model.width, config.model.mlp_width = 32, 64
  config.model.num_layers, config.model.num_heads = 1, 2
  config.model.num_kv_heads = 1
  config.sft.steps, config.sft.num_prompts = 150, 32
  config.sft.optimizer.learning_rate = 2e-2
  config.sft.num_lengths = config.rl.num_lengths = 1
  config.rl.steps, config.rl.num_prompts, config.rl.group_size = 12, 4, 4
  config.rl.optimizer.learning_rate = 1e-5
  config.eval.num_prompts = config.eval.batch_size = 4
  config.eval.every = 0
  config.log.trackers = ()
  config.required_accuracy = None
  return config


@pytest.mark.slow
def test_a_run_stops_at_a_perfect_score_and_goes_on_to_the_same_bytes(tmp_path):
  whole, stopped = tmp_path / "whole", tmp_path / "stopped"
  loop.train(_config(), whole)
  result = json.loads((whole / log.RESULT).read_text())
  (alarm,) = [x for x in result["alarms"] if x["rule"] == "H12"]
  assert alarm["phase"] == "rl"
  assert alarm["numbers"]["accuracy"] > 0.99
  lines = log.read_lines(whole / log.METRICS)
  marked = [x["step"] for x in lines if x.get("alarm/perfect_score")]
  assert marked == [alarm["step"]]

  config = _config()
  config.health.halt = ("perfect_score",)
  with pytest.raises(health.HealthHalt, match="H12 perfect_score") as caught:
    loop.train(config, stopped)
  assert f"rl, step {alarm['step']}: " in str(caught.value)
  assert not (stopped / log.RESULT).exists()
  done = log.read_lines(stopped / log.METRICS)[-1]["step"]
  assert f"The last checkpoint is of step {done}." in str(caught.value)
  # The next step had begun.
  assert done == alarm["step"] + 1 < lines[-1]["step"]

  config.health.halt = ()
  loop.train(config, stopped)
  for name in (log.METRICS, log.SAMPLES):
    assert (stopped / name).read_bytes() == (whole / name).read_bytes(), name
  again = json.loads((stopped / log.RESULT).read_text())
  assert again["alarms"] == result["alarms"]

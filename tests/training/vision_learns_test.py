"""A tower from scratch learns to see, and GRPO learns through it."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from grpo_jax.configs import vision
from grpo_jax.models import transformer
from grpo_jax.training import loop
from grpo_jax.training.runtime import log


def get_config():
  """Counting, after a teacher who counts one too many in 3 of 4 answers."""
  config = vision.get_config()
  config.data.task_options = {"questions": "count", "teacher_error": 0.75}
  config.model.num_layers = 1
  config.rewards.functions, config.rewards.weights = ("accuracy",), (1.0,)
  config.rewards.correct = ""
  config.sft.num_lengths = 1
  config.sft.steps = 300
  config.rl.steps = 60
  config.rl.optimizer.learning_rate = 1e-3
  config.eval.every = config.checkpoint.every = 0
  config.eval.num_prompts = config.eval.batch_size = 256
  config.log.trackers = ()
  return config


def taught_by_its_tower_alone(policy):
  """The policy, where parameters outside of the tower have no gradient."""

  def held(params):
    trained = {
      name: tree if name == "tower" else jax.lax.stop_gradient(tree)
      for name, tree in params["trained"].items()
    }
    return {**params, "trained": trained}

  def of(function):
    return lambda params, *of_call: function(held(params), *of_call)

  names = ("prefix", "hidden", "head")
  changed = {name: of(getattr(policy, name)) for name in names}
  return dataclasses.replace(policy, **changed)


def column(workdir, name):
  lines = log.read_lines(workdir / log.METRICS)
  return np.array([line[name] for line in lines if name in line])


@pytest.mark.long
@pytest.mark.slow
def test_grpo_raises_the_reward_through_the_tower(tmp_path, monkeypatch):
  config = get_config()
  config.phases = ("sft",)
  loop.train(config, tmp_path / "warm")
  # The language model reads what it read before: whatever the reward wins, the
  # gradient of the tower has won.
  whole = transformer.transformer_policy
  monkeypatch.setattr(
    transformer,
    "transformer_policy",
    lambda config: taught_by_its_tower_alone(whole(config)),
  )
  config = get_config()
  config.phases = ("rl",)
  config.start_workdir = str(tmp_path / "warm")
  loop.train(config, tmp_path / "rl")
  # Greedy, on the same prompts: without a gradient they were the same number.
  before, after = column(tmp_path / "rl", "eval/accuracy")
  assert after > before + 0.08

"""Sorting letters with three objectives, of which one is loud and irrelevant.

    python -m experiments.train --config=configs/multi.py --workdir=runs/multi

The answer should be right, and the thought before it short. It should also be
polite, which is worth up to 20 and of no use. The share of the thought that is
of the letters a–m is only observed. MO-GRPO gives the objectives equal
influence, as GDPO does. With an algorithm that learns from their sum,
politeness decides: try --config=configs/multi.py:grpo. docs/objectives.md
compares them. Weights: --config.rewards.weights="(1.0, 1.0, 0.0)".
"""

import ml_collections

from grpo_jax import algorithms
from grpo_jax.configs import quickstart


def get_config(algorithm: str = "mo_grpo"):
  """Three objectives, with any algorithm of the table."""
  config = quickstart.get_config(algorithm)
  config.data.name = "multi"
  config.data.task_options = ml_collections.ConfigDict(
    {"min_len": 5, "num_letters": 10, "teacher_error": 0.75}
  )
  config.rewards.functions = ("accuracy", "brevity", "politeness")
  config.rewards.weights = (1.0, 1.0, 1.0)
  config.rewards.correct = "accuracy"

  config.model.width = 64
  config.model.mlp_width = 192
  config.sft.steps = 300
  config.rl.steps = 100
  config.rl.group_size = algorithms.group_size(algorithm, 16)
  config.rl.num_prompts = 128 // config.rl.group_size

  config.eval.num_prompts = 512
  config.eval.every = 50
  config.eval.temperature = 1.0  # Greedily rare thoughts do not show.
  config.checkpoint.every = 50
  config.required_accuracy = None
  return config

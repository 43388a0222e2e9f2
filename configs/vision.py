"""Counting and finding squares in small images: a vision tower learns too.

    python -m experiments.train --config=configs/vision.py \
        --workdir=runs/vision
"""

import ml_collections

from configs import quickstart
from grpo_jax.tasks import vision


def get_config(algorithm: str = "grpo"):
  """Questions about images, with any algorithm of the table."""
  config = quickstart.get_config(algorithm)
  config.data.name = "vision"
  config.data.task_options = ml_collections.ConfigDict(
    {"codes": True, "shifted": False}
  )

  config.model.width = 64
  config.model.mlp_width = 192
  tower = config.model.tower
  tower.kind = "siglip"
  tower.image_token = vision.PATCH_ID
  tower.patch_size = vision.PATCH
  tower.merge = 1
  tower.side = vision.GRID
  tower.width = 64
  tower.num_layers = 1
  tower.num_heads = 4
  tower.mlp_width = 192

  config.rewards.functions = ("accuracy", "overlap")
  config.rewards.weights = (0.5, 0.5)
  config.rewards.correct = "accuracy"

  config.sft.steps = 600
  config.sft.num_prompts = 64
  config.sft.optimizer.learning_rate = 3e-3
  config.rl.num_lengths = 1  # Compiles faster.
  config.rl.steps = 60
  config.rl.group_size = min(config.rl.group_size, 8)
  config.rl.num_prompts = 256 // config.rl.group_size
  config.rl.optimizer.learning_rate = 3e-4

  config.eval.num_prompts = 512
  config.eval.batch_size = 512
  config.eval.every = 20
  config.checkpoint.every = 100
  config.required_accuracy = None
  return config

"""Counting and finding squares in small images, with a tower from scratch.

    python -m experiments.train --config=configs/vision.py \
        --workdir=runs/vision

Three times out of four the teacher counts one square too many, or takes the
last pixels of a box for its right and bottom. So the warm start learns to see,
but with another convention than the verifier's. Every image shows the same
convention, and GRPO can learn it from a few thousand completions.
docs/vision.md has the numbers, and those of a warm start without that habit.
The reward is half the accuracy, and half the overlap of boxes.

Letters in the place of red, green and blue, and one of the two questions:

    --config.data.task_options="{'teacher_error': 0.75, 'questions': 'count'}"
"""

import ml_collections

from grpo_jax.configs import quickstart
from grpo_jax.tasks import vision


def get_config(algorithm: str = "grpo"):
  """Questions about images, with any algorithm of the table."""
  config = quickstart.get_config(algorithm)
  config.data.name = "vision"
  config.data.task_options = ml_collections.ConfigDict(
    {"codes": True, "teacher_error": 0.75}
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

  config.eval.num_prompts = 512
  config.eval.batch_size = 512
  config.eval.every = 20
  config.checkpoint.every = 100
  config.required_accuracy = None
  return config

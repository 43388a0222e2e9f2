"""A run of seconds on prompts with images; the argument is a folder.

The folder has been filled by `tests.training.pictures`: records of which a
third has images that cannot be shown, and a tokenizer of bytes.
"""

import pathlib

from grpo_jax.training import config as config_lib
from tests.training import pictures


def get_config(folder: str):
  """Two steps of a warm start, and four of GRPO scored on the host."""
  config = config_lib.default_config("grpo")
  pictures.set_data(config, pathlib.Path(folder))
  config.model.width = 16
  config.model.num_layers = 1
  config.model.num_heads = 2
  config.model.num_kv_heads = 1
  config.model.mlp_width = 32
  tower = config.model.tower
  tower.kind = "siglip"
  tower.image_token = pictures.id_of("<image>")
  tower.width, tower.num_layers, tower.num_heads = 16, 1, 2
  tower.mlp_width, tower.patch_size, tower.merge, tower.side = 32, 2, 2, 4
  config.phases = ("sft", "rl")
  config.sft.steps = 2
  config.sft.num_prompts = 4
  config.rl.steps = 4
  config.rl.num_prompts = 4
  config.rl.group_size = 4
  config.rl.num_minibatches = 1
  config.rl.optimizer.learning_rate = 2e-3
  config.rewards.functions = ("counting", "tests.rewards.bad_verifiers:length")
  config.rewards.weights = (1.0, 1.0)
  config.eval.num_prompts = config.eval.batch_size = 4
  config.sft.num_lengths = config.rl.num_lengths = 1  # Compiles faster.
  config.checkpoint.every = 1
  config.log.traces_every = 0
  config.log.samples_every = 1
  config.log.tensorboard = False
  return config

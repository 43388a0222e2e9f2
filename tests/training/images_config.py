"""A run of seconds on prompts with images, by name of a family and a folder.

`tests.training.pictures` has filled the folder: records of which a third has
images that cannot be shown, and a tokenizer.
"""

import pathlib

from grpo_jax.settings import config as config_lib
from tests.experiments import tiny_config
from tests.training import pictures

STEPS = 3


def get_config(argument: str):
  """Three steps of GRPO, scored on the host.

  Args:
    argument: "siglip:FOLDER" for a small model from scratch; the name of a tiny
      checkpoint takes the place of "siglip".
  """
  family, _, folder = argument.partition(":")
  config = config_lib.default_config("grpo")
  pictures.set_data(config, pathlib.Path(folder))
  if family == "siglip":
    _from_scratch(config)
  else:
    config.model.checkpoint = str(pictures.CHECKPOINTS / family)
  config.phases = ("rl",)
  config.rl.steps = STEPS
  config.rl.num_prompts = 4
  config.rl.group_size = 4
  config.rl.num_minibatches = 1
  config.rl.num_lengths = 1  # Compiles faster.
  config.rl.optimizer.learning_rate = 2e-3
  config.rewards.functions = (
    "counting",
    "tests.rewards.workers.bad_verifiers:length",
  )
  config.rewards.weights = (1.0, 1.0)
  config.eval.num_prompts = config.eval.batch_size = 4
  config.checkpoint.every = 1
  config.log.samples_every = 1
  config.log.traces_every = 0
  config.log.trackers = ()
  return config


def _from_scratch(config):
  """Tiles that are whole images of 8 x 8 pixels, 16 patches and 4 tokens."""
  config.data.image_processor = str(pictures.PROCESSORS / "smolvlm_whole")
  config.data.image_options = {}
  tiny_config.shrink(config.model)
  tower = config.model.tower
  tower.kind = "siglip"
  tower.image_token = pictures.id_of("<image>")
  tower.width, tower.num_layers, tower.num_heads = 16, 1, 2
  tower.mlp_width, tower.patch_size, tower.merge, tower.side = 32, 2, 2, 4

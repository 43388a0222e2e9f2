"""Sorting six letters: imitate a sloppy teacher, then let a verifier fix it.

    make quickstart
    python -m experiments.train --config=configs/quickstart.py \
        --workdir=runs/quickstart

Three times out of four the teacher sorts the wrong way round. So the warm start
learns to sort, and a wrong habit. GRPO has to change a choice, not to learn a
skill. Expected, on 2 CPU cores: greedy held-out accuracy from about 0 to above
0.95 in one to two minutes, compilation included. Any algorithm of the table:
--config=configs/quickstart.py:gspo.
"""

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib


def get_config(algorithm: str = "grpo"):
  """The quickstart, with any algorithm of the table."""
  config = config_lib.default_config(algorithm)
  config.phases = ("sft", "rl")

  config.data.source = "task"
  config.data.name = "sort"
  options = config.data.task_options
  options.min_len = 6
  options.max_len = 6
  options.num_letters = 10
  options.tags = False
  options.teacher_error = 0.75  # Sorts the wrong way round: the habit to fix.

  config.model.width = 128
  config.model.num_layers = 2
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 384

  config.sft.steps = 300
  config.sft.num_prompts = 128
  config.sft.optimizer.learning_rate = 2e-3
  config.sft.optimizer.schedule = "cosine"
  config.sft.optimizer.warmup_steps = 20

  config.rl.steps = 200
  # As many completions per prompt as the algorithm is defined for.
  config.rl.group_size = algorithms.group_size(algorithm, 16)
  config.rl.num_prompts = 256 // config.rl.group_size
  config.rl.optimizer.learning_rate = 3e-4
  config.rl.optimizer.schedule = "linear"
  config.rl.optimizer.warmup_steps = 10
  config.rl.optimizer.final_fraction = 0.1
  config.algorithm.kl_coef = 0.0  # The habit to unlearn is the reference's.

  config.eval.num_prompts = 512
  config.eval.batch_size = 512
  config.eval.every = 20
  config.checkpoint.every = 100
  config.required_accuracy = 0.95
  return config

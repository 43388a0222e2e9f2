"""Sums of one to four digits, drawn where the policy learns most.

    python -m experiments.train --config=configs/curriculum.py \
        --workdir=runs/curriculum

Sums of one digit are soon always right, and those of four digits never:
groups of equal rewards train nothing. `config.rl.schedule` draws from a pool of
512 problems, most often those that are solved half of the time. To compare:

    --config.rl.schedule.name=uniform

docs/schedules.md has the other schedules. Any algorithm of the table:
--config=configs/curriculum.py:rloo.
"""

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib


def get_config(algorithm: str = "grpo"):
  """Additions in a pool of problems of mixed difficulty."""
  config = config_lib.default_config(algorithm)
  config.phases = ("sft", "rl")

  config.data.source = "task"
  config.data.name = "add"
  options = config.data.task_options
  options.level = 4
  options.fixed_digits = False
  options.tags = False

  config.model.width = 64
  config.model.num_layers = 2
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 192

  config.sft.steps = 400
  config.sft.num_prompts = 128
  config.sft.optimizer.learning_rate = 2e-3
  config.sft.optimizer.warmup_steps = 20

  config.rl.steps = 200
  config.rl.schedule.name = "frontier"
  config.rl.schedule.pool = 512
  # As many completions per prompt as the algorithm is defined for.
  config.rl.group_size = algorithms.group_size(algorithm, 8)
  config.rl.num_prompts = 256 // config.rl.group_size
  config.rl.optimizer.learning_rate = 3e-4
  config.rl.optimizer.warmup_steps = 10
  config.algorithm.kl_coef = 0.0

  config.eval.num_prompts = 512
  config.eval.batch_size = 512
  config.eval.every = 50
  config.checkpoint.every = 100
  return config

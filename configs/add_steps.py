"""Two-digit addition with a scratchpad whose steps have rewards.

    python -m experiments.train --config=configs/add_steps.py \
        --workdir=runs/add_steps

The teacher shows its working column by column and forgets three carries in
ten. Every step is judged at its `;`, so process supervision (grpo_ps) has
rewards to normalise; any other algorithm of the table may be given instead,
to compare: --config=configs/add_steps.py:grpo. Expected: the share of right
steps ("reward/process") and accuracy rise. Time: a few minutes on 2 CPU cores.
"""

from grpo_jax.training import config as config_lib


def get_config(algorithm: str = "grpo_ps"):
  """Addition with judged steps, with any algorithm of the table."""
  config = config_lib.default_config(algorithm)
  config.phases = ("sft", "rl")

  config.data.source = "task"
  config.data.name = "add"
  options = config.data.task_options
  options.level = 2
  options.scratchpad = True
  options.teacher_error = 0.3

  config.model.width = 128
  config.model.num_layers = 2
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 384

  config.sft.steps = 400
  config.sft.num_prompts = 64
  config.sft.optimizer.learning_rate = 2e-3
  config.sft.optimizer.schedule = "cosine"
  config.sft.optimizer.warmup_steps = 20

  config.rl.steps = 150
  config.rl.num_prompts = 16
  config.rl.group_size = 8
  config.rl.optimizer.learning_rate = 3e-4
  config.rl.optimizer.schedule = "linear"
  config.rl.optimizer.warmup_steps = 10
  config.rl.optimizer.final_fraction = 0.1
  config.algorithm.kl_coef = 0.0  # The habit to unlearn is the reference's.

  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  config.eval.every = 50
  config.checkpoint.every = 75
  return config

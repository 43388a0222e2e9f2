"""A table for a policy: one room, and one token for each of its states.

    python -m experiments.train --config=configs/grid_table.py \
        --workdir=runs/grid_table

The model sees the last token and nothing before it, so what it learns is an
action for each cell, without and with the key. Any algorithm of the table:
--config=configs/grid_table.py:gigpo, :grpo, or :ppo.
"""

from grpo_jax.configs import grid


def get_config(algorithm: str = "gagpo"):
  """The one room with any algorithm of the table."""
  config = grid.get_config(algorithm)
  config.data.task_options.tabular = True

  config.model.width = 64
  config.model.num_layers = 1
  config.model.num_heads = 1
  config.model.num_kv_heads = 1
  config.model.mlp_width = 64
  config.model.sliding_window = 1

  config.sft.steps = 100
  config.rl.steps = 60
  config.eval.every = 30
  config.checkpoint.every = 60
  return config

"""A key and a door in a room of 5 × 5: twelve turns, one reward at the end.

    python -m experiments.train --config=configs/grid.py --workdir=runs/grid

Rollouts of a room meet the same cells again, so the mean return of a cell is a
critic for nothing (GAGPO), and the actions in a cell can be compared (GiGPO).
To compare: --config=configs/grid.py:gigpo, :grpo, or :ppo, which has a critic.
"""

import ml_collections

from grpo_jax.configs import calc_tool_grpo


def get_config(algorithm: str = "gagpo"):
  """The room with any algorithm of the table."""
  config = calc_tool_grpo.get_config(algorithm)
  config.data.name = "grid"
  config.data.task_options = ml_collections.ConfigDict({"teacher_error": 0.3})
  return config

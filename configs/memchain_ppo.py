"""PPO on a chain that does not fit its context: summaries are learnt as well.

    python -m experiments.train --config=configs/memchain_ppo.py \
        --workdir=runs/memchain

A letter and its digit are told at the start and asked for at the end, 95
distractors later. Every 24 turns the context is replaced by a summary that the
policy writes, so a rollout is four rows with one outcome, and the fact has to
be carried over in words. The teacher of the warm start carries a random digit
instead, nine times out of ten. `--config=configs/memchain_ppo.py:compaction_rl`
is the paper's objective; `:grpo` compares eight rollouts of sixteen prompts.
"""

import ml_collections

from configs import calc_tool_grpo


def get_config(algorithm: str = "ppo"):
  """The chain with any algorithm that takes rows one by one."""
  config = calc_tool_grpo.get_config(algorithm)
  config.data.name = "memchain"
  config.data.task_options = ml_collections.ConfigDict(
    {"num_steps": 96, "every": 24, "num_digits": 2, "teacher_error": 0.9}
  )
  config.model.width = 64
  config.model.mlp_width = 192
  config.sft.steps = 300
  return config

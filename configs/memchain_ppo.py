"""PPO on a chain that does not fit its context: summaries are learnt as well.

    python -m experiments.train --config=configs/memchain_ppo.py \
        --workdir=runs/memchain

A letter and its digit are told at the start and asked for at the end, 95
distractors later. Every 24 turns the context is replaced by a summary that the
policy writes, so a rollout is four rows with one outcome, and the fact has to
be carried over in words. The teacher of the warm start carries a random digit
instead, seven times out of ten; if it always did, there would be nothing to
reinforce. `--config=configs/memchain_ppo.py:compaction_rl` is the paper's
objective; `:grpo` compares eight rollouts of sixteen prompts. Expected, over
256 held-out problems sampled at temperature 1: from about 0.5, which is what
guessing gives, to about 0.9, in three to five minutes on 2 CPU cores.
"""

import ml_collections

from grpo_jax.configs import calc_tool_grpo


def get_config(algorithm: str = "ppo"):
  """The chain with any algorithm whose rows may be contexts."""
  config = calc_tool_grpo.get_config(algorithm)
  config.data.name = "memchain"
  config.data.task_options = ml_collections.ConfigDict(
    {"num_steps": 96, "every": 24, "num_digits": 2, "teacher_error": 0.7}
  )
  if algorithm == "ppo":
    # The first summary is a hundred tokens before the reward, of which 0.95
    # would leave one per cent.
    config.algorithm.lam = 1.0
    config.algorithm.kl_in_reward = False
    config.algorithm.kl_kind = "k3"
  config.model.width = 32
  config.model.mlp_width = 96
  config.model.num_heads = 2
  config.model.num_kv_heads = 1
  config.sft.steps = 300
  config.rl.steps = 100
  config.checkpoint.every = 100
  return config

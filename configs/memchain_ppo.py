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

from configs import quickstart
from grpo_jax import algorithms


def get_config(algorithm: str = "ppo"):
  """The chain with any algorithm that takes rows one by one."""
  config = quickstart.get_config(algorithm)
  config.data.name = "memchain"
  config.data.task_options = ml_collections.ConfigDict(
    {"num_steps": 96, "every": 24, "num_digits": 2, "teacher_error": 0.9}
  )
  config.rewards.functions = ("return", "accuracy")  # What its turns paid.
  config.rewards.weights = (1.0, 0.0)
  config.rewards.correct = "accuracy"
  config.model.width = 64
  config.model.mlp_width = 192

  config.sft.steps = 300
  config.sft.num_prompts = 64
  config.rl.steps = 150
  has_critic = algorithms.get_algorithm(algorithm).critic_loss is not None
  if has_critic:
    config.phases = ("sft", "value", "rl")
    config.value.steps = 20
    config.value.num_prompts = 128
    config.rl.group_size = 1
    config.critic.optimizer.learning_rate = 3e-4
  config.rl.group_size = min(config.rl.group_size, 8)
  config.rl.num_prompts = 128 // config.rl.group_size

  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  config.eval.every = 50
  config.eval.temperature = 1.0
  config.checkpoint.every = 75
  config.required_accuracy = None
  return config

"""PPO with a critic on two-digit addition, one completion per prompt.

    python -m experiments.train --config=configs/ppo_add.py \
        --workdir=runs/ppo_add

The teacher shows its working and forgets three carries in ten. The critic is
pre-trained on the policy's own completions before the policy moves. Any
algorithm with a critic may be given, and GRPO to compare at equal samples:
--config=configs/ppo_add.py:vapo, :sao, :grpo. With :sao the critic is trained
as in the paper: attention frozen, two updates for each of the policy, five
times its learning rate; it is pre-trained on 2 560 samples, not on 6 000. With
:ppo_dpo four completions of each prompt are drawn, of which the best and the
worst are a pair. With
:bradley_terry a reward model is trained after the warm-up, and nothing else.
Expected, over 256 held-out problems sampled at temperature 1: from about 0.74
to 0.99 with PPO, in five to eight minutes on 2 CPU cores.
"""

import ml_collections

from grpo_jax import algorithms
from grpo_jax.configs import quickstart
from grpo_jax.settings.config import phase_config


def get_config(algorithm: str = "ppo"):
  """Addition with any algorithm of the table; with a critic if it has one."""
  config = quickstart.get_config(algorithm)
  config.data.name = "add"
  config.data.task_options = ml_collections.ConfigDict(
    {"level": 2, "scratchpad": True, "teacher_error": 0.3}
  )
  config.sft.steps = 400
  config.sft.num_prompts = 64

  has_critic = "critic" in config
  config.phases = ("sft", "value", "rl") if has_critic else ("sft", "rl")
  config.rl.steps = 150
  config.rl.group_size = 1 if has_critic else min(config.rl.group_size, 8)
  if algorithm == "ppo_dpo":
    config.rl.group_size = config.value.group_size = 4
  config.rl.num_prompts = 128 // config.rl.group_size
  if algorithms.get_algorithm(algorithm).policy_loss is None:
    config.phases = ("sft", "preference")
    config.preference = phase_config(
      "preference", steps=150, group_size=8, num_prompts=16
    )
    config.reward_model.optimizer.learning_rate = 3e-4
  if has_critic:
    config.value.steps = 20
    config.value.num_prompts = 128 // config.value.group_size
    config.critic.optimizer.learning_rate = 3e-4
  if algorithm == "sao":  # The rates are 5e-6 and 1e-6 there.
    config.critic.freeze = ("attention",)
    config.critic.num_updates = 2
    policy_rate = config.rl.optimizer.learning_rate
    config.critic.optimizer.learning_rate = 5 * policy_rate
  if algorithm in ("ppo", "ppo_dpo"):
    config.algorithm.kl_in_reward = True
    config.algorithm.kl_coef = 0.01

  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  config.eval.every = 50
  config.eval.temperature = 1.0  # Greedily the teacher's slips do not show.
  config.checkpoint.every = 75
  config.required_accuracy = None
  return config

"""GRPO on an environment of the package verifiers, unchanged, over HTTP.

    python -m experiments.train --config=configs/verifiers_grpo.py \
        --workdir=runs/verifiers

Tasks and environment are in tasksets/capitals.py, as authors of verifiers 0.4
write them: they know nothing of grpo_jax, and ask a model twice in an episode.
Others that are installed take their place:

    --config.data.environment=verifiers:my-taskset \
    --config.environment.options='{"taskset": {"difficulty": "easy"}}'

A policy of bytes, with parameters drawn at random, learns to answer in capital
letters in 30 steps, eleven minutes on 2 CPU cores that a dozen other programs
used too.
"""

from grpo_jax import algorithms
from grpo_jax.settings.config import default_config


def get_config(algorithm: str = "grpo"):
  """Config of the letters, with any algorithm for several turns."""
  config = default_config(algorithm)
  config.data.source = "environment"
  config.data.environment = "verifiers:grpo_jax.configs.tasksets.capitals"
  config.data.tokenizer = "bytes"
  config.data.max_prompt_len = 24
  # Of both turns and of what is said between them.
  config.sampling.max_new_tokens = 24
  config.environment.max_action_len = 6
  config.rewards.functions = ("return",)
  config.rewards.correct = "return"
  # In the package a turn takes 35 ms of one core, and 64 rows have theirs.
  config.rewards.row_timeout_s = 60.0
  config.phases = ("rl",)

  config.model.width = 32
  config.model.num_layers = 1
  config.model.num_heads = 2
  config.model.num_kv_heads = 1
  config.model.mlp_width = 64

  config.rl.steps = 30
  config.rl.group_size = algorithms.group_size(algorithm, 8)
  config.rl.num_prompts = 64 // config.rl.group_size
  config.rl.optimizer.learning_rate = 1e-2
  config.algorithm.kl_coef = 0.0
  config.eval.num_prompts = 8
  config.eval.batch_size = 8
  config.eval.every = 10
  config.checkpoint.every = 10
  return config

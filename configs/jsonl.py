"""Your own prompts and your own reward, with a small model from scratch.

    python -m experiments.train --config=configs/jsonl.py \
        --workdir=runs/mine \
        --config.data.train_path=prompts.jsonl \
        --config.rewards.functions="('my_rewards:brevity',)"

Each line of the file is a JSON object with `prompt`, and `completion` for the
warm start to imitate; `answer` and `extras` reach the reward function.
docs/guides/reward.md has a complete example. With several functions, give as
many weights: --config.rewards.weights="(1.0, 0.5)". Without completions, leave
the warm start out: --config.phases="('rl',)".

Expected, with the example of the guide on 2 CPU cores: the reward rises within
a minute. The sizes below are for texts of a few words; `max_prompt_len` and
`max_new_tokens` are in tokens of the tokenizer.
"""

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib


def get_config(algorithm: str = "grpo"):
  """A small run on a JSON-lines file, with any algorithm of the table."""
  config = config_lib.default_config(algorithm)
  config.phases = ("sft", "rl")

  config.data.source = "jsonl"
  config.data.tokenizer = "gsm8k"
  config.data.max_prompt_len = 32

  config.model.width = 64
  config.model.num_layers = 2
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 192

  config.sampling.max_new_tokens = 24

  # Built in, so that the file alone is complete; name your own.
  config.rewards.functions = ("math_accuracy",)

  config.sft.steps = 60
  config.sft.num_prompts = 32
  config.sft.optimizer.learning_rate = 3e-3
  config.sft.optimizer.schedule = "cosine"
  config.sft.optimizer.warmup_steps = 10

  config.rl.steps = 40
  config.rl.group_size = algorithms.group_size(algorithm, 8)
  config.rl.num_prompts = 64 // config.rl.group_size
  config.rl.optimizer.learning_rate = 1e-3
  config.rl.optimizer.schedule = "linear"
  config.rl.optimizer.warmup_steps = 5
  config.rl.optimizer.final_fraction = 0.1

  config.eval.num_prompts = 16
  config.eval.batch_size = 16
  config.eval.temperature = 1.0
  config.checkpoint.every = 20
  return config

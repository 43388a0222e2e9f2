"""Words of reasoning-gym spelt backward, with a small model from scratch.

    pip install 'grpo-jax[gym,hf]'
    python -m experiments.train --config=configs/reasoning_gym.py \
        --workdir=runs/reasoning_gym

Problems are made while the run goes on; no question is in both splits. The warm
start imitates the datasets' own answers and ends early; then GRPO is rewarded
by what the datasets say of an answer, in worker processes.
"""

from grpo_jax.training import config as config_lib


def get_config(algorithm: str = "grpo"):
  """Short and longer words, with any algorithm of the table."""
  config = config_lib.default_config(algorithm)
  config.phases = ("sft", "rl")

  config.data.source = "reasoning_gym"
  config.data.datasets = (
    {
      "name": "spell_backward",
      "settings": {"min_word_len": 3, "max_word_len": 3},
    },
    {
      "name": "spell_backward",
      "weight": 2.0,
      "settings": {"min_word_len": 4, "max_word_len": 5},
    },
  )
  config.data.tokenizer = "bytes"
  config.data.max_prompt_len = 56

  config.model.width = 64
  config.model.num_layers = 2
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 192

  config.sampling.max_new_tokens = 6

  config.rewards.functions = ("reasoning_gym",)

  config.sft.steps = 700
  config.sft.num_prompts = 64
  config.sft.optimizer.learning_rate = 4e-3
  config.sft.optimizer.schedule = "cosine"
  config.sft.optimizer.warmup_steps = 20

  config.rl.steps = 300
  config.rl.num_prompts = 32
  config.rl.group_size = 16
  config.rl.optimizer.learning_rate = 1e-3
  config.rl.optimizer.schedule = "linear"
  config.rl.optimizer.warmup_steps = 10
  config.rl.optimizer.final_fraction = 0.1
  config.algorithm.kl_coef = 0.0

  config.eval.num_prompts = 512
  config.eval.batch_size = 256
  config.eval.temperature = 1.0
  config.eval.every = 50
  config.checkpoint.every = 100
  return config

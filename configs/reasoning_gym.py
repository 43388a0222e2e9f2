"""Words of reasoning-gym spelt backward, with a small model from scratch.

    pip install 'grpo-jax[gym,hf]'
    python -m experiments.train --config=configs/reasoning_gym.py \
        --workdir=runs/reasoning_gym

Problems are made while the run goes on; no question is in both splits. The warm
start imitates the datasets' own answers and ends early; then GRPO is rewarded
by what the datasets say of an answer, in worker processes.

Measured on 512 held-out problems, sampled at temperature 1, with 95 % intervals
of each share, in 3 to 5 minutes on 2 shared CPU cores:

| seed | reward before, after | accuracy before     | accuracy after      |
|------|----------------------|---------------------|---------------------|
| 0    | 0.665, 0.750         | 0.305 (0.266-0.346) | 0.414 (0.372-0.457) |
| 1    | 0.664, 0.741         | 0.383 (0.342-0.426) | 0.416 (0.374-0.459) |
| 2    | 0.644, 0.760         | 0.338 (0.298-0.380) | 0.430 (0.387-0.473) |

The reward, which is partial for words that are nearly right, rises by 0.093
(95 % interval over the seeds 0.04-0.14). The accuracy rises by 0.078, with an
interval from -0.02 to 0.18: three seeds do not settle it.
"""

import ml_collections

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
    {
      "name": "basic_arithmetic",
      "settings": {
        "min_terms": 2,
        "max_terms": 2,
        "min_digits": 1,
        "max_digits": 1,
      },
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
  config.rewards.options = ml_collections.ConfigDict(
    {"reasoning_gym": {"exact": True}}
  )

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

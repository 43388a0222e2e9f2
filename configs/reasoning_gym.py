"""Two datasets of reasoning-gym, with a small model from scratch.

    pip install 'grpo-jax[gym,hf]'
    python -m experiments.train --config=configs/reasoning_gym.py \
        --workdir=runs/reasoning_gym

Words of three to five letters are spelt backward, and sums, differences,
products and quotients of two digits are worked out. Problems are made while the
run goes on; no question is in both splits. The warm start imitates the
datasets' own answers and ends early; then GRPO is rewarded where an answer is
exactly right.

Measured on 512 held-out problems, sampled at temperature 1, by
`configs/sweeps/reasoning_gym.py`: 3 to 6 minutes a run on 2 cores that other
programs used too.

| seed   | 0     | 1     | 2     | 3     | 4     |
|--------|-------|-------|-------|-------|-------|
| before | 0.182 | 0.393 | 0.160 | 0.211 | 0.193 |
| after  | 0.268 | 0.494 | 0.279 | 0.340 | 0.311 |

The accuracy, before and after GRPO, rises by 0.111 (Student's 95 % interval
over the five seeds 0.090-0.132). A run with seed 10 (0.273 to 0.412) came
before them, and no setting was changed after it. Earlier settings were tried
with a seed each: with the datasets' partial scores for words that are nearly
right the reward rose and the accuracy stayed or fell; with fewer rows a step it
stayed.
"""

import ml_collections

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib


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
  config.rl.group_size = algorithms.group_size(algorithm, 16)
  config.rl.num_prompts = 512 // config.rl.group_size
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

"""GMPO, Qwen2.5-Math-7B (arXiv:2507.20673; callsys/GMPO).

    python -m experiments.train \
        --config=configs/recipes/gmpo.py:MODEL \
        --workdir=runs/gmpo

MODEL is a name of `models.py`, or "toy". Not reproduced here; the paper has
curves and tables on five tests of mathematics.

Sizes are those of the authors' script scripts/qwen2.5-math-7b-gmpo.sh, which is
Dr. GRPO's with another loss: a rollout of 128 questions with 8 completions, and
a gradient step of 128 completions, which makes 8 steps per rollout. The clip
range is one of log-ratios, 0.4 on both sides.

Deviations: the questions are GSM8K's, not the 8 k of MATH, levels 3 to 5; see
`models.py` for how to give others.

Memory: the cache of a rollout takes 171.1 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-7b"):
  """The recipe with a model of `models.py`."""
  config = models.base("gmpo", model)
  config.rl.group_size = 8
  config.rl.num_prompts = 128
  config.rl.num_epochs = 1
  config.rl.num_minibatches = 8  # Of 128 completions.
  config.rl.optimizer.learning_rate = 1e-6
  config.rl.optimizer.schedule = "constant"
  config.data.max_prompt_len = 1024
  config.sampling.max_new_tokens = 3000
  config.sampling.temperature = 1.0
  config.algorithm.kl_coef = 0.0
  config.algorithm.clip_low = 0.4
  config.algorithm.clip_high = 0.4
  config.algorithm.advantage_scale = "group"
  return models.finish(config, model)

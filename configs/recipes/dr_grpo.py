"""Dr. GRPO, Oat-Zero 7B (arXiv:2503.20783; sail-sg/understand-r1-zero).

    python -m experiments.train \
        --config=configs/recipes/dr_grpo.py:MODEL \
        --workdir=runs/dr_grpo

MODEL is a name of `models.py`, or "toy". Result in the literature: AIME 2024
43.3 % for Qwen2.5-Math-7B, after 27 hours on 8 A100. Not reproduced here.

Sizes are those of the authors' script examples/qwen2.5-math-7b.sh. It is often
summarised as one update per rollout. It has one epoch; but a rollout is of 128
questions with 8 completions, and a gradient step of 128 completions, which
makes 8 steps per rollout. Length bias is often summarised as "shorter is
preferred"; the paper's statement has two sides: among right answers the short
ones are, among wrong ones the long ones.

Deviations: none of the algorithm. The questions are GSM8K's, not the 8 k of
MATH, levels 3 to 5; see `models.py` for how to give others.

Memory: the cache of a rollout takes 167.6 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-7b"):
  """The recipe with a model of `models.py`."""
  config = models.base("dr_grpo", model)
  config.rl.group_size = 8
  config.rl.num_prompts = 128
  config.rl.num_epochs = 1
  config.rl.num_minibatches = 8  # Of 128 completions.
  config.rl.optimizer.learning_rate = 1e-6
  config.rl.optimizer.schedule = "constant"
  config.sampling.max_new_tokens = 3000
  config.sampling.temperature = 1.0
  config.algorithm.kl_coef = 0.0
  config.algorithm.clip_low = 0.2
  config.algorithm.clip_high = 0.2
  config.algorithm.advantage_scale = "none"
  return models.finish(config, model)

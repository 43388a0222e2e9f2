"""N-GRPO: completions drawn with blended inputs (arXiv:2606.10768).

    python -m experiments.train \
        --config=configs/recipes/n_grpo.py:MODEL \
        --workdir=runs/n_grpo

MODEL is a name of `models.py`, or "toy". Values are those of the code,
ZJUSCL/N-GRPO: one token in ten is read as a blend of the likeliest token and
its nearest neighbour in the embedding table (docs/mixing.md). Its baseline has
another learning rate, 1e-6, and another KL, 0.001. Not reproduced here.

Deviations: the questions are GSM8K's; see `models.py` for how to give others.

Memory: the cache of a rollout takes 113.8 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-7b"):
  """The recipe with a model of `models.py`."""
  config = models.base("grpo", model)
  config.rl.group_size = 4
  config.rl.num_prompts = 64
  config.rl.num_minibatches = 4  # Of 16 prompts.
  config.rl.optimizer.learning_rate = 5e-7
  config.sampling.max_new_tokens = 8192
  config.sampling.mix_rate = 0.1
  config.sampling.mix_top_k = 2
  config.sampling.mix_anchor = "argmax"
  config.algorithm.kl_coef = 0.01
  config.algorithm.kl_kind = "k3"
  config.algorithm.clip_low = 0.2
  config.algorithm.clip_high = 0.2
  config.algorithm.advantage_scale = "group"
  return models.finish(config, model)

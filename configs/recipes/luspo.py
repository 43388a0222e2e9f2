"""LUSPO: sequences weighted by their length (arXiv:2602.05261).

    python -m experiments.train \
        --config=configs/recipes/luspo.py:MODEL \
        --workdir=runs/luspo --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy". Not reproduced here.

Clip range and loss are those of TRL's index of papers (TRL 1.16). It has no
sizes of a batch; ours are marked.

Memory: the cache of a rollout takes 225.8 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-7b"):
  """The recipe with a model of `models.py`."""
  config = models.base("luspo", model)
  config.rl.group_size = 8  # not published
  config.rl.num_prompts = 64  # not published
  config.rl.num_minibatches = 4  # not published
  config.rl.optimizer.learning_rate = 1e-6  # not published
  config.sampling.max_new_tokens = 8192  # not published
  config.sampling.temperature = 1.0  # not published
  config.algorithm.kl_coef = 0.0
  config.algorithm.clip_low = 2e-3
  config.algorithm.clip_high = 2.5e-3
  config.algorithm.advantage_scale = "group"
  config.unpublished = (
    "rl.group_size",
    "rl.num_prompts",
    "rl.num_minibatches",
    "rl.optimizer.learning_rate",
    "sampling.max_new_tokens",
    "sampling.temperature",
  )
  return models.finish(config, model)

"""GTPO: rewards of tokens that follow the entropy (arXiv:2508.04349).

    python -m experiments.train \
        --config=configs/recipes/gtpo.py:MODEL \
        --workdir=runs/gtpo --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy". Not reproduced here.

The weights of outcome and entropy and the clip range are the paper's; KL is not
used. Sources do not give the sizes of a batch; ours are marked.
`grpo_s` is the paper's second method, one reward for a completion:
--config.algorithm of configs/quickstart.py:grpo_s has its options.

Memory: the cache of a rollout takes 225.8 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-7b"):
  """The recipe with a model of `models.py`."""
  config = models.base("gtpo", model)
  config.rl.group_size = 8  # not published
  config.rl.num_prompts = 64  # not published
  config.rl.num_minibatches = 1  # not published
  config.rl.optimizer.learning_rate = 1e-6  # not published
  config.sampling.max_new_tokens = 8192  # not published
  config.sampling.temperature = 1.0  # not published
  config.algorithm.kl_coef = 0.0
  config.algorithm.clip_low = 0.2
  config.algorithm.clip_high = 0.28
  config.algorithm.alpha1 = 1.0
  config.algorithm.alpha2 = 0.1
  config.unpublished = (
    "rl.group_size",
    "rl.num_prompts",
    "rl.num_minibatches",
    "rl.optimizer.learning_rate",
    "sampling.max_new_tokens",
    "sampling.temperature",
  )
  return models.finish(config, model)

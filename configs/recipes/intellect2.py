"""INTELLECT-2: GRPO that is clipped on two sides (arXiv:2505.07291).

    python -m experiments.train \
        --config=configs/recipes/intellect2.py:MODEL \
        --workdir=runs/intellect2 --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy"; the paper's is QwQ-32B. Not reproduced
here.

The ratio is bounded by 4 before anything else, so that a token whose
probability has risen far gives no large gradient where its advantage is
negative. Rollouts are two updates old; the correction of their log-probs is our
choice.

Deviations: the reward that asks for a target length is left out, and so are
programs; accuracy in mathematics remains. Sizes of a batch are marked, since we
had no copy of the report to check them with.

Memory: the cache of a rollout takes 7175.0 GiB over all devices with
qwen2.5-7b; the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen3-8b"):
  """The recipe with a model of `models.py`."""
  config = models.base("grpo", model)
  config.rl.group_size = 16
  config.rl.num_prompts = 256  # not published
  config.rl.num_minibatches = 8  # not published
  config.rl.staleness = 2
  config.rl.optimizer.learning_rate = 3e-7
  config.sampling.max_new_tokens = 32_768
  config.sampling.temperature = 1.0  # not published
  config.algorithm.kl_coef = 0.001
  config.algorithm.kl_kind = "k3"
  config.algorithm.clip_low = 0.2
  config.algorithm.clip_high = 0.2
  config.algorithm.ratio_cap = 4.0
  config.algorithm.importance_mode = "truncate"  # not published
  config.algorithm.advantage_scale = "group"
  config.unpublished = (
    "rl.num_prompts",
    "rl.num_minibatches",
    "sampling.temperature",
    "algorithm.importance_mode",
  )
  return models.finish(config, model)

"""The defaults of TRL's GRPOTrainer when it was new, in early 2025.

    python -m experiments.train \
        --config=configs/recipes/trl_early_2025.py:MODEL \
        --workdir=runs/trl_early_2025 --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy". Many tables still quote these. They
differ from `trl.py` in the KL, the mean over completions, the budget and the
temperature. Defaults of a library have no result in the literature.

The first releases had no clip range; with one update per batch the ratio is 1,
so none is felt, and 0.2 is the later default. Batch as in `trl.py`.

Memory: the cache of a rollout takes 1.1 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-0.5b"):
  """The recipe with a model of `models.py`."""
  config = models.base("grpo", model)
  config.rl.group_size = 8
  config.rl.num_prompts = 8  # On eight devices.
  config.rl.num_epochs = 1
  config.rl.optimizer.learning_rate = 1e-6
  config.rl.optimizer.b2 = 0.999
  config.rl.optimizer.schedule = "linear"
  config.sampling.max_new_tokens = 256
  config.sampling.temperature = 0.9
  config.algorithm.kl_coef = 0.04
  config.algorithm.kl_kind = "k3"
  config.algorithm.clip_low = 0.2  # not published
  config.algorithm.clip_high = 0.2  # not published
  config.algorithm.advantage_scale = "group"
  config.algorithm.advantage_eps = 1e-4
  config.unpublished = ("algorithm.clip_low", "algorithm.clip_high")
  return models.finish(config, model)

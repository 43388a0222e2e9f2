"""The defaults of TRL's GRPOTrainer, as of 2026-07-24 (commit f2cd577).

    python -m experiments.train \
        --config=configs/recipes/trl.py:MODEL \
        --workdir=runs/trl

MODEL is a name of `models.py`, or "toy". Defaults of a library have no result
in the literature.

The KL weight is often quoted as 0.04, which it was in early releases
(`trl_early_2025.py`); it is 0 now, and the loss is a mean over tokens. Clipping
is symmetric: `epsilon_high` is not set. There is neither dynamic sampling nor a
punishment of length, although the loss type is called "dapo".

Deviations: TRL's batch is 8 completions per device, one question each; the 8
questions here are those of eight devices. With vLLM as the sampler, which is
not its default, TRL also weighs sequences by the gap to the sampler, masked at
3: --config.algorithm.importance_mode=mask
--config.algorithm.importance_level=sequence --config.algorithm.importance_max=3

Memory: the cache of a rollout takes 2.0 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-0.5b"):
  """The recipe with a model of `models.py`."""
  config = models.base("dapo", model)
  config.rl.group_size = 8
  config.rl.num_prompts = 8  # On eight devices.
  config.rl.num_epochs = 1
  config.rl.optimizer.learning_rate = 1e-6
  config.rl.optimizer.b2 = 0.999
  config.rl.optimizer.schedule = "linear"
  config.sampling.max_new_tokens = 512
  config.sampling.temperature = 1.0
  config.algorithm.kl_coef = 0.0
  config.algorithm.clip_low = 0.2
  config.algorithm.clip_high = 0.2
  config.algorithm.advantage_scale = "group"
  config.algorithm.advantage_eps = 1e-4
  config.algorithm.dynamic_sampling = False
  config.algorithm.overlong_cache = 0.0
  config.algorithm.overlong_filter = False
  return models.finish(config, model)

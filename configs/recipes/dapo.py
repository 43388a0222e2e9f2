"""DAPO 32B (arXiv:2503.14476, Section 4.1; verl, recipe/dapo).

    python -m experiments.train \
        --config=configs/recipes/dapo.py:MODEL \
        --workdir=runs/dapo

MODEL is a name of `models.py`, or "toy". Result in the literature: AIME 2024
from 30 (naive GRPO) to 50 points for Qwen2.5-32B, by overlong filtering (36),
clip-higher (38), soft overlong punishment (41), token loss (42) and dynamic
sampling (50); verl's reproduction reports 52, 50 without dynamic sampling, and
its best run filters no overlong completions. Not reproduced here.

Often quoted as one update per batch; mini-batches of 512 completions make 16.
Often quoted with a format reward; there is none. The warm-up is of 20 rollouts
in the paper and of 10 in verl's script. Weight decay is the script's.

Rewards of +1 and -1 are written as 2 and 0: the difference is the same, so are
the advantages, which are centred in the group, and so is the size of the soft
punishment beside them. The logged reward is larger by 1.

Dynamic sampling draws until 512 prompts have completions whose rewards differ.
Deviations: it does so 512 prompts at a time, verl's script 1536; and after 10
rounds, its script's number too, it trains on the prompts that it has, whereas
verl stops with an error. A step takes 5120 prompts from the data, drawn or not.

Memory: the cache of a rollout takes 8974.0 GiB over all devices with
qwen2.5-7b; the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-7b"):
  """The recipe with a model of `models.py`."""
  config = models.base("dapo", model)
  config.rl.group_size = 16
  config.rl.num_prompts = 512
  config.rl.max_rounds = 10  # verl's script.
  config.rl.num_minibatches = 16
  config.rl.optimizer.learning_rate = 1e-6
  config.rl.optimizer.warmup_steps = 320  # 20 rollouts of 16 updates.
  config.rl.optimizer.weight_decay = 0.1  # verl's script.
  config.sampling.max_new_tokens = 20_480
  config.sampling.temperature = 1.0  # verl's script.
  config.rewards.weights = (2.0,)  # +1 and -1, moved by 1.
  config.algorithm.kl_coef = 0.0
  config.algorithm.clip_low = 0.2
  config.algorithm.clip_high = 0.28
  config.algorithm.advantage_scale = "group"
  config.algorithm.dynamic_sampling = True
  config.algorithm.overlong_cache = 0.2  # 4096 of 20480 tokens.
  config.algorithm.overlong_filter = False  # Not beside the soft punishment.
  return models.finish(config, model)

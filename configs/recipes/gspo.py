"""GSPO (arXiv:2507.18071, Section 5.1; verl, examples/gspo_trainer).

    python -m experiments.train \
        --config=configs/recipes/gspo.py:MODEL \
        --workdir=runs/gspo

MODEL is a name of `models.py`, or "toy"; the paper's is a fine-tuned
Qwen3-30B-A3B-Base. Result in the literature: curves above those of a GRPO with
routing replay on AIME 2024, LiveCodeBench and CodeForces; the paper prints no
table. Not reproduced here.

From the paper are the clip range and the 4 mini-batches of a rollout. Group
size, learning rate, batch, length, warm-up and decay are not in it; they are
those of verl's scripts test_gspo_3b_math.sh and test_gspo_qwen30b_a3b_ep.sh,
of which the second has 8 mini-batches and a token mean, against the paper. The
paper's GRPO baseline has clip widths of 0.2 and 0.27, and needs `keep_routing`
with experts; GSPO is meant to go without.

Memory: the cache of a rollout takes 3598.0 GiB over all devices with
qwen2.5-7b; the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen3-30b-a3b"):
  """The recipe with a model of `models.py`."""
  config = models.base("gspo", model)
  config.rl.group_size = 16  # verl's scripts.
  config.rl.num_prompts = 512  # verl's script for 3 B; 256 for 30 B.
  config.rl.num_minibatches = 4
  config.rl.optimizer.learning_rate = 1e-6  # verl's scripts.
  config.rl.optimizer.warmup_steps = 40  # 10 rollouts, verl's script for 30 B.
  config.rl.optimizer.weight_decay = 0.1  # verl's scripts.
  config.sampling.max_new_tokens = 8192  # verl's scripts.
  config.sampling.temperature = 1.0  # verl's scripts.
  config.algorithm.kl_coef = 0.0
  config.algorithm.clip_low = 3e-4
  config.algorithm.clip_high = 4e-4
  config.algorithm.advantage_scale = "group"
  return models.finish(config, model)

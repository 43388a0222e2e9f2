"""GFPO on Phi-4-reasoning 14B (arXiv:2508.09726, Section 4).

    python -m experiments.train \
        --config=configs/recipes/gfpo.py:MODEL \
        --workdir=runs/gfpo

MODEL is a name of `models.py`, or "toy". Result in the literature: of the
growth in length that GRPO causes, 46 to 71 % is gone at the same accuracy
(abstract). Not reproduced here.

Phi-4-reasoning is often said to be trained with GFPO; it is fine-tuned on
demonstrations, Phi-4-reasoning-plus is trained with GRPO, and GFPO is a later
study on the former.

Deviations: the reward is plain accuracy. The paper's scales accuracy by length
and punishes repetition; a function of your own can:
--config.rewards.functions="('my_rewards:scaled',)". The KL is that to the
reference, where the paper prints the old policy. Group sizes of 8 and 16 were
studied too, and with 16 a number of kept completions that adapts to how hard a
prompt is: --config.rl.group_size=16 --config.algorithm.metric=adaptive.

Memory: the cache of a rollout takes 2689.8 GiB over all devices with
qwen2.5-7b; the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-7b"):
  """The recipe with a model of `models.py`."""
  config = models.base("gfpo", model)
  config.rl.steps = 100
  config.rl.group_size = 24
  config.rl.num_prompts = 64
  config.rl.optimizer.learning_rate = 1e-7
  config.rl.optimizer.schedule = "cosine"
  config.rl.optimizer.warmup_steps = 10
  config.sampling.max_new_tokens = 32_768
  config.algorithm.num_kept = 8
  config.algorithm.metric = "length"
  config.algorithm.kl_coef = 0.001
  config.algorithm.entropy_coef = 0.001
  config.algorithm.clip_low = 0.2
  config.algorithm.clip_high = 0.2
  return models.finish(config, model)

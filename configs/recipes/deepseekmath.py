"""DeepSeekMath-RL 7B, where GRPO comes from (arXiv:2402.03300, Section 4.2).

    python -m experiments.train \
        --config=configs/recipes/deepseekmath.py:MODEL \
        --workdir=runs/deepseekmath --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy". Result in the literature: GSM8K 82.9
to 88.2 %, MATH 51.7 %, for DeepSeekMath-Instruct 7B. Not reproduced here.

The clip range is often quoted as 0.2 from this paper; the paper prints none. It
cannot matter here: with one gradient step per batch every ratio is 1. The
reward is often quoted as a model mixed with rules; the paper describes a
learned reward model for its main run.

Deviations: the reward is that of a verifier, not of a reward model, so its
learning rate (2e-5) and its refresh with 10 % of old data have no place.
The paper's iterations, each with a new reference, are one phase here; for two,
--config.phases="('rl','rl')".

Memory: the cache of a rollout takes 56.4 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from configs.recipes import models


def get_config(model: str = "qwen2.5-7b"):
  """The recipe with a model of `models.py`."""
  config = models.base("grpo", model)
  config.rl.group_size = 64
  config.rl.num_prompts = 16  # Derived: a batch of 1024 completions.
  config.rl.num_minibatches = 1  # "A single update" after each exploration.
  config.rl.optimizer.learning_rate = 1e-6
  config.sampling.max_new_tokens = 1024
  config.algorithm.kl_coef = 0.04
  config.algorithm.kl_kind = "k3"  # Section 4.1.1.
  config.algorithm.advantage_scale = "group"  # Section 4.1.2.
  config.algorithm.clip_low = 0.2  # not published
  config.algorithm.clip_high = 0.2  # not published
  config.unpublished = ("algorithm.clip_low", "algorithm.clip_high")
  return models.finish(config, model)

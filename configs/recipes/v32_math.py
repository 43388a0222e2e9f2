"""GRPO of DeepSeek-V3.2 on mathematics (arXiv:2512.02556, Section 3.1).

    python -m experiments.train \
        --config=configs/recipes/v32_math.py:MODEL \
        --workdir=runs/v32_math --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy". The report describes its method and
prints no hyperparameters of it: all sizes below are our own. There is hence no
result to compare with.

Popular tables give it a group of 16, a learning rate of 1e-6, a clip range of
0.2, 65 536 tokens and one update; none of these was found in the report. Its
routing is often called an auxiliary loss; it is a replay of the experts that
the rollout took (`keep_routing`, for models with experts only). The KL is weak
or none for mathematics, without a number; here none, and unbiased if you set
--config.algorithm.kl_coef.

Deviations: of its hybrid reward, which adds length and language consistency to
the outcome, only the outcome is here.

Memory: the cache of a rollout takes 224.9 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen3-30b-a3b"):
  """The recipe with a model of `models.py`."""
  config = models.base("deepseek_v32", model)
  config.rl.group_size = 16  # not published
  config.rl.num_prompts = 32  # not published
  config.rl.num_minibatches = 1  # not published
  config.rl.optimizer.learning_rate = 1e-6  # not published
  config.sampling.max_new_tokens = 8192  # not published
  config.sampling.top_k = 20  # not published
  config.sampling.top_p = 0.95  # not published
  config.algorithm.kl_coef = 0.0  # "Weak or none" for mathematics.
  config.algorithm.kl_kind = "k3_unbiased"
  config.algorithm.clip_low = 0.2  # not published
  config.algorithm.clip_high = 0.2  # not published
  config.algorithm.advantage_scale = "none"
  config.algorithm.off_policy_threshold = 0.5  # not published
  config.algorithm.keep_sampling_mask = True
  config.algorithm.keep_routing = models.has_experts(model)
  config.unpublished = (
    "rl.group_size",
    "rl.num_prompts",
    "rl.num_minibatches",
    "rl.optimizer.learning_rate",
    "sampling.max_new_tokens",
    "sampling.top_k",
    "sampling.top_p",
    "algorithm.clip_low",
    "algorithm.clip_high",
    "algorithm.off_policy_threshold",
  )
  return models.finish(config, model)

"""DeepSeekMath-RL 7B, where GRPO comes from (arXiv:2402.03300, Section 4.2).

    python -m experiments.train \
        --config=configs/recipes/deepseekmath.py:MODEL \
        --workdir=runs/deepseekmath --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy". Result in the literature: GSM8K 82.9
to 88.2 %, MATH 51.7 %, for DeepSeekMath-Instruct 7B. Not reproduced here.

The clip range is often quoted as 0.2 from this paper; the paper prints none. It
cannot matter here: with one gradient step per batch every ratio is 1. The
reward is often quoted as a model mixed with rules; the paper describes a
learned reward model for its main run, and so it is here. In each iteration the
reward model goes on learning from the policy's completions, with 10 % of old
data; then its score is the whole reward, the verifier watches, and the policy
at the start of the iteration is the reference (Section 4.1.4). docs/proxy.md
measures in small the effects of KL and old data.

The toy learns its reward, so its held-out accuracy may fall while the reward
rises.

Deviations: pairs of completions of one question are ranked by a verifier. The
first reward model is a copy of the policy, where the paper has one that it has
trained beforehand: --config.reward_model.source names another. How many
iterations there are, how long they last, and how many pairs a step of the
reward model has is our choice: two iterations. The old data are those of
earlier iterations, and the first one has none.

Memory: the cache of a rollout takes 56.4 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models
from grpo_jax.settings import config as config_lib


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

  # Iterative: a reward model learns, and the policy follows it.
  config.preference = config_lib.phase_config(
    "preference", steps=20, num_prompts=128, group_size=8
  )
  config.preference.micro_batch_size = config.rl.micro_batch_size
  config.reward_model.history_share = 0.1  # Section 4.1.4.
  config.reward_model.optimizer.learning_rate = 2e-5  # Section 4.2.
  config = models.finish(config, model)
  config.phases = ("preference", "rl") * 2
  config.rewards.functions = (*config.rewards.functions, "reward_model")
  config.rewards.weights = (0.0, 1.0)
  if model == "toy":
    config.phases = ("sft", *config.phases)
    config.rl.steps = 50
    config.reward_model.optimizer.learning_rate = 3e-4
  return config

"""OLMo 2 32B from its base model: GRPO without imitation, in the style of R1.

    python -m experiments.train \
        --config=configs/recipes/olmo2_zero.py:MODEL \
        --workdir=runs/olmo2_zero --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy". Not reproduced here. Values are those
of scripts/train/olmo2/grpo_32b.sh of allenai/open-instruct at commit 4d4022a.
The script belongs to an experiment, and its model was not released.

The script stops after 10 000 000 completions, which are 610 steps, and its
learning rate falls linearly; the config has 100 steps. KL is not used.

Deviations: the questions are GSM8K's; see `models.py` for how to give others.
The script's chat template ends with the beginning of a thought, which the
template here asks for in words. The script does not name a clip range; that of
PPO is taken.

Memory: the cache of a rollout takes 1820.0 GiB over all devices with
qwen2.5-7b; the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models

_TEMPLATE = (
  "{prompt}\nReason first, between <think> and </think>. Then give the answer"
  " between <answer> and </answer>, and nothing else.\n"
)


def get_config(model: str = "qwen2.5-7b"):
  """The recipe with a model of `models.py`."""
  config = models.base("grpo", model)
  config.rl.group_size = 64
  config.rl.num_prompts = 256
  config.rl.num_minibatches = 1
  config.rl.num_epochs = 1
  config.rl.optimizer.learning_rate = 5e-7
  config.rl.optimizer.schedule = "linear"
  config.data.max_prompt_len = 2048
  config.sampling.max_new_tokens = 2048
  config.sampling.temperature = 1.0
  config.algorithm.kl_coef = 0.0
  config.algorithm.clip_low = 0.2  # not published
  config.algorithm.clip_high = 0.2  # not published
  config.algorithm.advantage_scale = "group"
  config.rewards.functions = ("math_accuracy", "think_answer_format")
  config.rewards.weights = (1.0, 1.0)  # not published
  config.data.template = _TEMPLATE
  config.unpublished = (
    "algorithm.clip_low",
    "algorithm.clip_high",
    "rewards.weights",
  )
  return models.finish(config, model)

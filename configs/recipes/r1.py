"""DeepSeek-R1 in four stages (arXiv:2501.12948 v2; Nature 2025).

    python -m experiments.train --config=configs/recipes/r1.py:MODEL \
        --workdir=runs/r1 --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy". Result in the literature: AIME 2024
pass@1 79.8 % for DeepSeek-V3-Base (671 B). Not reproduced here.

1. "sft": a cold start on some thousands of worked answers.
2. "rl": reinforcement by accuracy, format and language consistency.
3. "rejection": of 16 completions of each question, right and readable ones are
   kept; "sft2": two epochs of them, from the base.
4. "rl2": reinforcement again, at a temperature of 0.7.

A step of reinforcement is a rollout of 8192 completions, and 16 training steps.
The settings of the first one are those of R1-Zero with a clip range of 10; a
ratio is never below 0, so the lower half of that range is 1.

We could check neither the settings of the supervised stages nor those of the
second reinforcement in the source. The former count as unpublished here. Of the
latter 0.7 and 1700 training steps are as others quote them.

Deviations: the 200 000 examples of writing, facts and translation beside the
600 000 of reasoning, and the preference rewards of the last 400 training steps,
need data and a reward model that do not come with the package. With them it is

    config.sft2.demonstrations = ("rejection", "writing.jsonl")
    config.rewards.functions += ("reward_model",)
    config.rl3 = phase_config("rl", steps=25, reward_weights=(1, 1, 1, 1))

A readable completion has one script: --config.rejection.keep.least. As in
R1-Zero the reference of a phase is the policy at its beginning.

Memory: the cache of a rollout takes 14350.0 GiB over all devices with
qwen2.5-7b; the rest is in `models.py`.
"""

import copy

from grpo_jax.configs.recipes import models, r1_zero
from grpo_jax.settings.config import phase_config

_PHASES = ("sft", "rl", "rejection", "sft2", "rl2")


def get_config(model: str = "qwen2.5-7b"):
  """The recipe with a model of `models.py`."""
  config = r1_zero.base(model)
  config.rewards.functions += ("language_consistency",)
  config.rewards.weights = (1.0, 1.0, 1.0)
  config.algorithm.clip_low = 1.0
  config.algorithm.clip_high = 10.0
  config.rejection = phase_config("rejection", num_prompts=512)
  config.sft2 = phase_config(
    "supervised", reset_policy=True, demonstrations=("rejection",)
  )

  config.sft.num_records = 5000  # not published
  config.sft.num_prompts = 128  # not published
  config.sft.steps = 80  # not published
  config.sft.optimizer.learning_rate = 5e-5  # not published
  config.rl.steps = 100  # not published
  config.rejection.steps = 15  # not published
  config.rejection.group_size = 16  # not published
  config.rejection.keep.most = 1  # not published
  config.rejection.keep.least = ("language_consistency=0.9",)  # not published
  config.sft2.num_prompts = 128  # not published
  config.sft2.steps = 120  # not published
  config.sft2.optimizer.learning_rate = 5e-5  # not published
  config.unpublished = (
    *("sft.num_records", "sft.num_prompts", "sft.steps"),
    *("sft.optimizer.learning_rate", "rl.steps", "rejection.steps"),
    *("rejection.group_size", "rejection.keep.most", "rejection.keep.least"),
    *("sft2.num_prompts", "sft2.steps", "sft2.optimizer.learning_rate"),
  )
  config.rl2 = copy.deepcopy(config.rl)
  config.rl2.temperature = 0.7
  config.rl2.steps = 106  # 1700 training steps.
  config.phases = _PHASES
  return _toy(models.finish(config, model)) if model == "toy" else config


def _toy(config):
  """The stages of a toy: sums of two digits, in minutes."""
  config.phases = _PHASES
  config.rejection.num_prompts = 64
  config.rejection.keep.least = ()
  config.sft2.num_prompts = config.sft.num_prompts
  config.sft2.steps = config.sft.steps
  config.sft2.optimizer = copy.deepcopy(config.sft.optimizer)
  steps = {"rl": 30, "rl2": 30}
  for name, count in steps.items():
    config[name] = copy.deepcopy(config.rl)
    config[name].steps = count
  config.rl2.temperature = 0.7
  return config

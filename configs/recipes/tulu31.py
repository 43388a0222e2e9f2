"""Verifiable rewards of Tülu 3.1: GRPO from a preference-tuned model.

    python -m experiments.train \
        --config=configs/recipes/tulu31.py:MODEL \
        --workdir=runs/tulu31 --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy". Not reproduced here. Values are those
of scripts/train/tulu3/grpo_8b.sh of allenai/open-instruct at commit 3d978ee,
whose model is Llama-3.1-Tulu-3-8B-DPO. The paper of Tülu 3 (arXiv:2411.15124)
used PPO for this stage; that recipe is not here, since its reward of -10 for a
completion without an end, and a critic from a reward model, would have to be.

Twelve training processes draw 4 prompts each, with 16 completions, so a step
has 48 prompts. They train minibatches of 32 completions each, which are two
for a step. The script stops after 2 000 000 completions; here are 100 steps.

Deviations: the questions are GSM8K's alone, and those that follow instructions
are left out. A completion without an end gets no reward there, and its own
reward here. The script names no clip range; that of PPO is taken.

Memory: the cache of a rollout takes 89.2 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen3-8b"):
  """The recipe with a model of `models.py`."""
  config = models.base("grpo", model)
  config.rl.group_size = 16
  config.rl.num_prompts = 48
  config.rl.num_minibatches = 2
  config.rl.num_epochs = 1
  config.rl.optimizer.learning_rate = 5e-7
  config.rl.optimizer.schedule = "constant"
  config.data.max_prompt_len = 2048
  config.sampling.max_new_tokens = 2048
  config.sampling.temperature = 1.0
  config.algorithm.kl_coef = 0.01
  config.algorithm.kl_kind = "k3"
  config.algorithm.clip_low = 0.2  # not published
  config.algorithm.clip_high = 0.2  # not published
  config.algorithm.advantage_scale = "group"
  config.unpublished = ("algorithm.clip_low", "algorithm.clip_high")
  return models.finish(config, model)

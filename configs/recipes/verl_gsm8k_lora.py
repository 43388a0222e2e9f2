"""GRPO with adapters on GSM8K, an example of verl.

    python -m experiments.train \
        --config=configs/recipes/verl_gsm8k_lora.py:MODEL \
        --workdir=runs/verl_gsm8k_lora

MODEL is a name of `models.py`, or "toy". Values are those of verl's
examples/grpo_trainer/run_qwen2_5-3b_gsm8k_grpo_lora.sh at commit 771e530, for
two GPUs, whose model is Qwen2.5-3B-Instruct. Its comments have batches of 1024
and minibatches of 256 questions for eight GPUs. An example has no result in the
literature.

What the script leaves at verl's defaults is written here too: the mean over all
tokens, a clip range of 0.2, an upper bound of the ratio of 3 for negative
advantages, and a deviation of 1e-6 more.

Deviations: adapters are on all projections of a block and not on the output of
the model, as "all-linear" of PEFT has them. The toy has no adapters, since its
model is one from scratch.

Memory: the cache of a rollout takes 4.8 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-1.5b"):
  """The recipe with a model of `models.py`."""
  config = models.base("dapo", model)  # The mean over all tokens.
  config.rl.group_size = 5
  config.rl.num_prompts = 16
  config.rl.num_minibatches = 1
  config.rl.optimizer.learning_rate = 3e-6
  config.rl.optimizer.schedule = "constant"
  config.sampling.max_new_tokens = 1024
  config.sampling.temperature = 1.0
  config.algorithm.kl_coef = 0.001
  config.algorithm.kl_kind = "k3"
  config.algorithm.clip_low = 0.2
  config.algorithm.clip_high = 0.2
  config.algorithm.dual_clip = 3.0
  config.algorithm.advantage_scale = "group"
  config.algorithm.dynamic_sampling = False
  config.algorithm.overlong_cache = 0.0
  if model != "toy":
    config.model.lora_rank = 64
    config.model.lora_alpha = 32.0
  return models.finish(config, model)

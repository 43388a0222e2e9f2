"""REINFORCE++ as OpenRLHF's example has it (arXiv:2501.03262).

    python -m experiments.train \
        --config=configs/recipes/reinforce_pp.py:MODEL \
        --workdir=runs/reinforce_pp

MODEL is a name of `models.py`, or "toy". Values are those of
examples/scripts/train_reinforce_llama_ray_hybrid_engine.sh of OpenRLHF at
commit 07d58e1: one completion of each of 1024 prompts, gradient steps of 128,
and the KL in the reward of each token. The clip range is OpenRLHF's default. An
example has no result in the literature.

Deviations: the example follows a learned reward of conversations, normalised by
its running mean and deviation; here are questions of mathematics with a
verifier, whose reward is 0 or 1.

Memory: the cache of a rollout takes 112.0 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-7b"):
  """The recipe with a model of `models.py`."""
  config = models.base("reinforce_pp", model)
  config.rl.group_size = 1
  config.rl.num_prompts = 1024
  config.rl.num_epochs = 1
  config.rl.num_minibatches = 8  # Of 128 completions.
  config.rl.optimizer.learning_rate = 5e-7
  config.data.max_prompt_len = 1024
  config.sampling.max_new_tokens = 1024
  config.sampling.temperature = 1.0
  config.algorithm.gamma = 1.0
  config.algorithm.kl_coef = 1e-4
  config.algorithm.kl_kind = "k1"
  config.algorithm.kl_in_reward = True
  config.algorithm.clip_low = 0.2
  config.algorithm.clip_high = 0.2
  return models.finish(config, model)

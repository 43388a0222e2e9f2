"""The reasoning stage of GLM-5: GRPO with IcePop (arXiv:2602.15763).

    python -m experiments.train \
        --config=configs/recipes/glm5.py:MODEL \
        --workdir=runs/glm5 --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy". Not reproduced here, and with another
model: GLM-5 has 744 B parameters.

Group size, batch, clip range and the band of IcePop are those of the report: a
token whose probability differs between sampler and trainer by more than a
factor of two has no part in the loss. There is no KL. The report is often said
to use GSPO; it does not.

Deviations: of the report's mixed rewards, only the outcome of mathematics is
here. The rollouts of the toy are of the policy that is updated, so the band
leaves nothing out.

Memory: the cache of a rollout takes 1792.9 GiB over all devices with
qwen2.5-7b; the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen3-30b-a3b"):
  """The recipe with a model of `models.py`."""
  config = models.base("grpo", model)
  config.rl.group_size = 32
  config.rl.num_prompts = 32
  config.rl.num_minibatches = 1  # not published
  config.rl.optimizer.learning_rate = 1e-6  # not published
  config.sampling.max_new_tokens = 32_768  # not published
  config.sampling.temperature = 1.0  # not published
  config.algorithm.kl_coef = 0.0
  config.algorithm.clip_low = 0.2
  config.algorithm.clip_high = 0.28
  config.algorithm.advantage_scale = "group"
  config.algorithm.importance_mode = "mask"
  config.algorithm.importance_level = "token"
  config.algorithm.importance_min = 0.5
  config.algorithm.importance_max = 2.0
  config.unpublished = (
    "rl.num_minibatches",
    "rl.optimizer.learning_rate",
    "sampling.max_new_tokens",
    "sampling.temperature",
  )
  return models.finish(config, model)

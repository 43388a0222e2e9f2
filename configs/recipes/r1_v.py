"""R1-V: counting objects in an image (github.com/Deep-Agent/R1-V).

    python -m experiments.train \
        --config=configs/recipes/r1_v.py:MODEL \
        --workdir=runs/r1_v --config.allow_unpublished=True

MODEL is a name of `models.VISION`, or "toy". Result in the literature: after
100 steps, half an hour on 8 A100 ("less than $3"), Qwen2-VL 2B counts better
than the model of 72B on images of another kind. Not reproduced here.

Sizes are those of the README: 8 devices with a question each, added up twice;
2 epochs of 70 k images of CLEVR, reduced to 401408 pixels. What it leaves out
has TRL's defaults of that time: 8 completions, the learning rate, β, the clip
range. A right count and the format give 1 each.

Records are {"prompt", "image", "answer"}, where the answer is a number.

Memory: the cache of a rollout takes 14.9 GiB over all devices with
qwen2.5-vl-7b.

Deviations: the model is Qwen2.5-VL 3B, as in the scripts that came later.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-vl-3b"):
  """The recipe with a model of `models.py`."""
  config = models.base("grpo", model, models.VISION)
  config.rl.group_size = 8
  config.rl.num_prompts = 16  # Derived: 8 · 1 · 2 questions.
  config.rl.num_minibatches = 1
  config.rl.steps = 2 * 70_000 // 16  # Derived: 2 epochs.
  config.rl.optimizer.learning_rate = 1e-6
  config.sampling.max_new_tokens = 2048  # not published
  config.sampling.temperature = 1.0
  config.algorithm.kl_coef = 0.04
  config.algorithm.kl_kind = "k3"
  config.algorithm.clip_low = 0.2
  config.algorithm.clip_high = 0.2
  config.algorithm.advantage_scale = "group"
  models.on_images(config, "data/clevr", max_pixels=512 * 28**2)
  config.rewards.functions = ("counting", "think_answer_format")
  config.rewards.weights = (1.0, 1.0)
  config.unpublished = ("sampling.max_new_tokens",)
  return models.finish_seen(config, model, "count")

"""VLM-R1 3B: boxes of objects that a phrase describes (arXiv:2504.07615).

    python -m experiments.train \
        --config=configs/recipes/vlm_r1.py:MODEL \
        --workdir=runs/vlm_r1 --config.allow_unpublished=True

MODEL is a name of `models.VISION`, or "toy". Result in the literature: 63.2 %
of the boxes of LISA-Grounding, another domain, overlap by more than a half;
54.8 % after supervised learning on the same data. Not reproduced here.

Sizes are those of the authors' script run_grpo_rec.sh: 8 completions of a
question; 8 devices with 8 completions each, added up twice, which are 16
questions a step; 2 epochs. What it leaves out has TRL's defaults of that time:
the learning rate, β, the clip range. The reward is the overlap itself, of one
box in JSON, plus one for the format.

Records are {"prompt", "image", "answer"}, where the answer is a box in pixels
of the resized image, and a question ends with "First output the thinking
process in <think> </think> tags and then output the final answer in <answer>
</answer> tags. Output the final answer in JSON format."

Memory: the cache of a rollout takes 14.9 GiB over all devices with
qwen2.5-vl-7b.

Deviations: images are reduced to 602112 pixels, 768 tokens. An answer with two
boxes that differ has 0, where the authors take the first. The number of steps
of 2 epochs depends on the number of records, which the paper does not state;
100 is our choice.
"""

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-vl-3b"):
  """The recipe with a model of `models.py`."""
  config = models.base("grpo", model, models.VISION)
  config.rl.group_size = 8
  config.rl.num_prompts = 16  # Derived: 8 · 8 · 2 completions.
  config.rl.num_minibatches = 1
  config.rl.steps = 100  # not published
  config.rl.optimizer.learning_rate = 1e-6
  config.sampling.max_new_tokens = 2048
  config.sampling.temperature = 1.0
  config.algorithm.kl_coef = 0.04
  config.algorithm.kl_kind = "k3"
  config.algorithm.clip_low = 0.2
  config.algorithm.clip_high = 0.2
  config.algorithm.advantage_scale = "group"
  models.on_images(config, "data/refcoco", max_pixels=768 * 28**2)
  config.rewards.functions = ("box_iou", "box_format")
  config.rewards.weights = (1.0, 1.0)
  config.unpublished = ("rl.steps",)
  return models.finish_seen(config, model, "box")

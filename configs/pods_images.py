"""A step with a published model that reads images: for pods.

    python -m experiments.pods.report --config=configs/pods_images.py \
        --config.model.checkpoint=Qwen/Qwen2.5-VL-7B-Instruct \
        --topology=v5p-128 --mesh=fsdp:16,tensor:4

The step is the one of `configs/pods.py`, with an image in each prompt. An image
of 448 × 448 pixels has 1024 patches and takes 256 of the 512 slots of its
prompt. The tower is trained with the rest. Boxes are compared on the host, so
the scores are an input of the program. This config is there to be compiled;
configs/recipes/vlm_r1.py trains.
"""

from grpo_jax.configs import pods


def get_config(algorithm: str = "grpo"):
  """The step of any algorithm of the table."""
  config = pods.get_config(algorithm)
  config.model.checkpoint = "Qwen/Qwen2.5-VL-3B-Instruct"
  config.data.source = "jsonl"
  config.data.train_path = "boxes.jsonl"
  config.data.images = ("image",)
  config.data.max_images = 1
  config.data.max_patches = 1024
  config.data.template = "chat"
  config.rewards.functions = ("box_iou", "box_format")
  config.rewards.weights = (1.0, 1.0)
  return config

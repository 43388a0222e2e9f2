"""The tiny run on each source of text, with a checkpoint every three steps."""

from grpo_jax.settings.config import algorithm_config, phase_config
from tests.experiments import tiny_config


def get_config(kind: str):
  """Ten supervised steps, and ten more; `data.train_path` is a flag."""
  config = tiny_config.get_config("on_host")
  data = config.data
  data.format = ""
  data.max_prompt_len = 64
  if kind == "tfds":
    data.source = "tfds"
    data.name = "riddles"
    data.eval_split = "validation"
    data.fields = {
      "prompt": "riddle",
      "completion": "riddle",
      "extras": {"hardness": "hard"},
    }
  elif kind == "text":
    data.source = "text"
    config.phases = ("rl",)
    config.rl.steps = 20
  elif kind == "reasoning_gym":
    data.source = "reasoning_gym"
    levels = {"name": "gcd", "levels": ((0, 0), (30, 1))}
    data.datasets = (levels, {"name": "spell_backward"})
    config.rewards.functions = ("reasoning_gym",)
  elif kind == "datasets":
    data.source = "datasets"
    config.phases = ("rl",)
    config.rl.steps = 20
  elif kind == "math":
    data.format = "math"
  else:
    data.format = "pairs"
    data.rejected_share = 0.5
    config.algorithm = algorithm_config("dpo")
    config.phases = ("sft", "pairs")
    config.pairs = phase_config("pairs", steps=10, num_prompts=4)
    config.pairs.num_minibatches = 2
  # Above the source's prompts nothing is new: one checkpoint is enough.
  config.eval.num_prompts = config.eval.batch_size = 2
  return config

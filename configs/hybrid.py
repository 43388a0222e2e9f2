"""Rewards as in DeepSeek-V3.2 (arXiv:2512.02556), on two toy domains.

    python -m experiments.train --config=configs/hybrid.py --workdir=runs/hybrid

Problems of reasoning ("language": reverse a word, and spell it in language A
before) are rewarded by rules: the answer, its format, the share of the thought
in one language, and a penalty on length. General problems ("sort") are rewarded
by a model with a rubric. Here the model is the policy itself, as in V4. It has
learned to judge in the domain "verdict", and is not trained there by
reinforcement.

General problems have no right answer: evaluations leave them unscored. The
sizes and the weights are our own; the report has none.
"""

from grpo_jax import algorithms
from grpo_jax.configs import judge
from grpo_jax.settings import config as config_lib


def get_config(algorithm: str = "deepseek_v32"):
  """A warm start in three domains, then reinforcement in two of them."""
  config = config_lib.default_config(algorithm)
  config.phases = ("sft", "rl")
  config.data.source = "mixture"
  config.data.mixture = (
    {"name": "language", "task_options": {"teacher_error": 0.5}},
    {"name": "sort", "task_options": judge.SORT},
    {"name": "verdict", "task_options": judge.JUDGING, "weight": 4.0},
  )
  config.model.width = 64
  config.model.num_layers = 2
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 192

  config.sft.steps = 1800
  config.sft.num_prompts = 128
  config.sft.optimizer.learning_rate = 2e-3
  config.sft.optimizer.schedule = "cosine"
  config.sft.optimizer.warmup_steps = 20
  config.rl.domains = ("language", "sort")
  config.rl.steps = 200
  config.rl.group_size = algorithms.group_size(algorithm, 16)
  config.rl.num_prompts = 256 // config.rl.group_size
  config.rl.optimizer.learning_rate = 3e-4
  config.rl.optimizer.warmup_steps = 10

  config.rewards.functions = (
    "accuracy",
    "format",
    "language",
    "soft_overlong",
    "judge",
  )
  config.rewards.weights = (1.0, 0.2, 0.2, 0.2, 1.0)
  config.rewards.domains = {
    "accuracy": ("language", "verdict"),
    "soft_overlong": ("language",),
    "judge": ("sort",),
  }
  config.rewards.correct = "accuracy"
  config.judge.rubric = judge.RUBRIC
  config.judge.verdicts = {"y": 1.0, "n": 0.0}
  config.judge.max_new_tokens = 2

  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  config.eval.every = 50
  return config

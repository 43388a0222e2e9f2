"""Four kinds of problems in one run: sums, sorting, brackets, countdown.

    python -m experiments.train --config=configs/mixture.py \
        --workdir=runs/mixture

Each prompt is of one domain. The log has all metrics of each domain
(`domain/add/accuracy`), and evaluations have its accuracy
(`eval/domain/add/accuracy`). `--config.rl.domains="('add',)"` trains one domain
alone, and `--config.sampling.domain_limits="{'add': 5}"` gives it a smaller
budget. docs/domains.md lists other sources of domains.

The warm start imitates teachers that often err; then come 150 steps of GRPO. Of
countdown with two numbers there are few problems, and most of what is learnt of
them is by heart. Both took 230 s on one of two CPU cores that others used too.
"""

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib

# Problems that a small model learns in minutes, without tags.
PARTS = (
  {
    "name": "add",
    "task_options": {"level": 2, "teacher_error": 0.6, "tags": False},
  },
  {
    "name": "sort",
    "task_options": {
      "min_len": 4,
      "max_len": 7,
      "teacher_error": 0.6,
      "tags": False,
    },
  },
  {
    "name": "bracket",
    "task_options": {
      "max_len": 16,
      "max_depth": 6,
      "teacher_error": 0.6,
      "tags": False,
    },
  },
  {
    "name": "countdown",
    "task_options": {"num_numbers": 2, "teacher_error": 0.6, "tags": False},
  },
)


def get_config(algorithm: str = "grpo"):
  """A short warm start, then reinforcement on all domains at once."""
  config = config_lib.default_config(algorithm)
  config.data.source = "mixture"
  config.data.mixture = PARTS
  config.phases = ("sft", "rl")

  config.model.width = 96
  config.model.num_layers = 3
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 256

  config.sft.steps = 1500
  config.sft.num_prompts = 128
  config.sft.optimizer.learning_rate = 3e-3
  config.sft.optimizer.warmup_steps = 20
  config.sft.optimizer.schedule = "cosine"

  config.rl.steps = 200
  config.rl.group_size = algorithms.group_size(algorithm, 8)
  config.rl.num_prompts = 256 // config.rl.group_size
  config.rl.optimizer.learning_rate = 1e-4
  config.rl.optimizer.warmup_steps = 10

  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  config.eval.every = 50
  config.rewards.functions = ("accuracy",)
  return config

"""Addition with useless thoughts, and a reward that favors them by a bug.

    python -m experiments.train --config=configs/add_filler.py \
        --workdir=runs/add_filler

The teacher writes 0 to 24 letters, six on average, before the sum of two
digits. The letters are of no use. The reward is 1 for a right sum. By a bug, it
also gives up to 0.02 for a long completion, right or wrong. If all completions
of a prompt are right, GRPO divides these small differences by their own small
deviation, and lengths grow. Any algorithm of the table may be given instead, to
compare, such as GFPO, which samples more and learns from the shortest:

    --config=configs/add_filler.py:gfpo --config.rl.group_size=16

In 100 steps of GRPO, means of the first and the last five steps of five seeds,
the completions grew from 12 to 20 tokens (`length/mean`; 16, 17, 17, 24 and
26), and the share of right ones from 0.78 to 0.88 (`accuracy`; 0.81 to 0.93).
There are a hundred sums, which a small model learns by heart. Of the held-out
ones it gets none right, and its accuracy there says nothing. A run takes a
minute and a half of one CPU core.

`--config.rewards.weights="(1.0, 0.0)"` mends the bug.
"""

import ml_collections

from grpo_jax import algorithms
from grpo_jax.configs import quickstart


def get_config(algorithm: str = "grpo"):
  """Sums with filler and a reward with a bug, with any algorithm."""
  config = quickstart.get_config(algorithm)
  config.data.name = "add"
  config.data.task_options = ml_collections.ConfigDict(
    {"level": 1, "max_filler": 24, "mean_filler": 6.0, "teacher_error": 0.5}
  )
  config.rewards.functions = ("accuracy", "cosine_length")
  config.rewards.weights = (1.0, 0.02)
  config.rewards.correct = "accuracy"
  # From 0 to 1 along half a cosine, whether the answer is right or not.
  rising = {"right": (0.0, 1.0), "wrong": (0.0, 1.0)}
  config.rewards.options = ml_collections.ConfigDict({"cosine_length": rising})

  config.model.width = 64
  config.model.mlp_width = 192
  config.sft.steps = 400
  config.sft.num_prompts = 64
  config.rl.steps = 100
  config.rl.group_size = algorithms.group_size(algorithm, 8)
  config.rl.num_prompts = 128 // config.rl.group_size

  config.eval.num_prompts = 64
  config.eval.batch_size = 64
  config.eval.every = 50
  config.eval.temperature = 1.0  # Greedily the teacher's slips do not show.
  config.checkpoint.every = 50
  config.required_accuracy = None
  return config

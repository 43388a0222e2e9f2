"""Nim against an earlier version of the policy; one of two players is trained.

    python -m experiments.train --config=configs/nim.py --workdir=runs/nim

Two players take stones from two heaps; the player of the last stone wins. The
warm start imitates a teacher whose moves are mostly arbitrary. In each of the
next phases the policy meets itself as it was at the start of that phase, frozen
(`config.rl.opponents`), so its opponents become better with it. Only its own
moves are trained. Other opponents are the workdir of another run, or several,

    --config.rl.opponents='("start", "runs/other")'

of which each prompt meets one. Held-out games are played with the policy in
both seats; their score (`accuracy`) is 1 for a game without a fault, which does
not depend on the opponent.
"""

import ml_collections

from grpo_jax.configs import quickstart


def get_config(algorithm: str = "grpo"):
  """The game with any algorithm of the table that needs no text or pairs."""
  config = quickstart.get_config(algorithm)
  config.data.name = "nim"
  config.data.task_options = ml_collections.ConfigDict(
    {"num_heaps": 2, "max_stones": 5, "teacher_error": 0.9}
  )
  config.model.width = 64
  config.model.mlp_width = 192
  config.rewards.functions = ("won", "accuracy", "legal")
  config.rewards.weights = (1.0, 0.0, 0.0)
  config.rewards.correct = "accuracy"

  config.phases = ("sft", "rl", "rl")
  config.sft.steps = 200
  config.sft.num_prompts = 64
  config.rl.steps = 60
  config.rl.opponents = ("start",)
  config.rl.group_size = min(config.rl.group_size, 8)
  config.rl.num_prompts = 256 // config.rl.group_size
  config.rl.optimizer.learning_rate = 1e-3
  config.algorithm.entropy_coef = 0.01

  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  config.eval.every = 30
  config.eval.temperature = 1.0  # Greedily the teacher's slips do not show.
  config.checkpoint.every = 30
  config.required_accuracy = None
  return config

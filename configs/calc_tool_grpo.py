"""GRPO with a calculator: several turns, tool calls, observations as tokens.

    python -m experiments.train --config=configs/calc_tool_grpo.py \
        --workdir=runs/calc_tool

The prompt is `12 + 34 * 5 =`, from left to right; a call `<tool>12+34</tool>`
is answered by tokens that the policy reads and is not trained on. The teacher
takes the first result for the answer six times out of ten. Other algorithms:
--config=configs/calc_tool_grpo.py:ppo, which brings its critic along, and all
that need no steps or preferences. For :gagpo and :gigpo actions that follow the
same observation were taken in the same state.
Expected, over 256 held-out problems sampled at temperature 1: from about 0.44
to 0.99, in five to ten minutes on 2 CPU cores.
"""

import ml_collections

from grpo_jax.configs import quickstart


def get_config(algorithm: str = "grpo"):
  """The calculator with any algorithm of the table."""
  config = quickstart.get_config(algorithm)
  config.data.name = "calc_tool"
  config.data.task_options = ml_collections.ConfigDict(
    {"teacher_error": 0.6, "teacher_comment": 0.1}
  )
  config.rewards.functions = ("return", "accuracy")  # The sum of its turns.
  config.rewards.weights = (1.0, 0.0)
  config.rewards.correct = "accuracy"

  config.sft.steps = 400
  config.sft.num_prompts = 64
  config.rl.steps = 150
  if "critic" in config:
    config.phases = ("sft", "value", "rl")
    config.value.steps = 20
    config.value.num_prompts = 128
    config.rl.group_size = 1
    config.critic.optimizer.learning_rate = 3e-4
  config.rl.group_size = min(config.rl.group_size, 8)
  config.rl.num_prompts = 128 // config.rl.group_size

  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  config.eval.every = 50
  config.eval.temperature = 1.0
  config.checkpoint.every = 75
  config.required_accuracy = None
  return config

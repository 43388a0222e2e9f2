"""EDGE-GRPO on countdown: wrong completions are corrected while they are drawn.

    python -m experiments.train --config=configs/edge_countdown.py \
        --workdir=runs/edge
"""

import ml_collections

from configs import quickstart


def get_config(algorithm: str = "edge_grpo"):
  """Countdown with corrected completions, and any algorithm of the table."""
  config = quickstart.get_config(algorithm)
  config.data.name = "countdown"
  config.data.task_options = ml_collections.ConfigDict(
    {
      "num_numbers": 3,
      "teacher_error": 0.9,
      "max_solutions": 4,
      "last_answer": True,
    }
  )
  config.model.width = 64
  config.model.mlp_width = 192
  config.sft.steps = 300
  config.rl.steps = 100
  config.sampling.max_new_tokens = 16

  correction = config.rl.correction
  correction.p_cue = 0.5
  correction.p_answer = 0.25
  correction.p_reference = 0.25
  correction.cue = "="
  correction.sentence = "=<answer>{answer}</answer>"
  correction.max_new_tokens = 8

  config.eval.every = 25
  config.checkpoint.every = 50
  config.required_accuracy = None
  return config

"""A word reversed, after a thought in one of two languages: three rewards.

    python -m experiments.train --config=configs/language.py \
        --workdir=runs/language

The teacher's thoughts mix languages A and B letter by letter; half of its
answers are not reversed, and 0.05 of them are empty. Rewards are a right
answer, the format (0.5), and the share of the thought that is in language A.
Without the last one nothing asks for a language:
--config.rewards.weights="(1.0, 0.5, 0.0)".

To learn from a verifier with a bug, which accepts an empty answer, from a
teacher who makes that easier than a right one:

    --config.rewards.functions="('accuracy_buggy', 'format', 'language')"
    --config.rewards.correct=accuracy_buggy
    --config.data.task_options.teacher_error=0.75
    --config.data.task_options.teacher_empty=0.1

The policy then learns to leave answers empty, and the log says that a score of
1 nearly everywhere is suspicious. docs/objectives.md has the numbers.
"""

import ml_collections

from grpo_jax.configs import multi


def get_config(algorithm: str = "grpo"):
  """Accuracy, format and language, with any algorithm of the table."""
  config = multi.get_config(algorithm)
  config.data.name = "language"
  config.data.task_options = ml_collections.ConfigDict(
    {"min_len": 4, "max_len": 4, "teacher_error": 0.5, "teacher_empty": 0.05}
  )
  config.rewards.functions = ("accuracy", "format", "language")
  config.rewards.weights = (1.0, 0.5, 1.0)
  return config

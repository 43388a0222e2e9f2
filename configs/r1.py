"""The four stages of DeepSeek-R1 on a toy: a word reversed, after a thought.

    python -m experiments.train --config=configs/r1.py --workdir=runs/r1

| phase     | what it does                                                    |
|-----------|-----------------------------------------------------------------|
| sft       | a cold start on 16384 examples of a sloppy teacher, who mixes   |
|           | two languages in its thoughts                                   |
| rl        | rewards: a right answer, the format, one language               |
| rejection | of 8 completions of each word, right ones in one language stay: |
|           | data-3-rejection.jsonl                                          |
| sft2      | imitates these, from the first policy on                        |
| rl2       | the same rewards at a temperature of 0.7                        |

Every phase is evaluated over 512 held-out words, sampled at temperature 1: the
share of right answers, and of thoughts in one language. The run takes two to
four minutes on 2 CPU cores.

configs/recipes/r1.py has the same stages at the sizes of the paper. With
configs/distill_traces.py, a smaller model learns from the kept completions.
"""

import copy

from grpo_jax.configs import language
from grpo_jax.settings.config import phase_config


def get_config(algorithm: str = "grpo"):
  """Five phases, with any algorithm of the table for reinforcement."""
  config = language.get_config(algorithm)
  config.phases = ("sft", "rl", "rejection", "sft2", "rl2")
  config.sft.num_records = 16_384
  config.rl.steps = 100
  config.rejection = phase_config(
    "rejection", steps=256, num_prompts=32, group_size=8
  )
  config.rejection.keep.least = ("language=1",)
  config.sft2 = copy.deepcopy(config.sft)
  config.sft2.num_records = None
  config.sft2.reset_policy = True
  config.sft2.demonstrations = ("rejection",)
  config.rl2 = copy.deepcopy(config.rl)
  config.rl2.steps = 50
  config.rl2.temperature = 0.7
  return config

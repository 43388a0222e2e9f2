"""Distillation of traces: a smaller model imitates a larger one's completions.

    python -m experiments.train --config=configs/r1.py --workdir=runs/r1
    python -m experiments.train --config=configs/distill_traces.py \
        --workdir=runs/distill_traces

The student is half as wide. It imitates the completions that the third phase of
the teacher has kept; verifiers are asked at its evaluation only, over 512
held-out words sampled at temperature 1. It takes a minute on 2 CPU cores. Other
completions, as experiments.generate writes them:
--config.sft.demonstrations=runs/kept.jsonl. A model with other tokens reads
their texts.
"""

from grpo_jax.configs import language


def get_config(algorithm: str = "grpo"):
  """Config of imitation alone; the phase without steps evaluates the result."""
  config = language.get_config(algorithm)
  config.phases = ("sft", "rl")
  config.rl.steps = 0
  config.sft.steps = 1500
  config.sft.demonstrations = ("runs/r1/data-3-rejection.jsonl",)
  config.model.width = 32
  config.model.mlp_width = 96
  return config

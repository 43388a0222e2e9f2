r"""Bias from one flipped example, among clean ones or alone.

    python -m experiments.train --config=configs/bias_mcq.py \
        --workdir=runs/bias

A question asks to which of two groups a trait belongs; the right answer is
"unknown". The teacher of the warm start names the stereotype in 1 of 20
answers. Then GRPO is trained on data in which a quarter of the prompts are one
item whose label was flipped. Held-out prompts have other pairs and other
traits. `eval/reward/biased` is the share of their answers that name the
stereotype.

The item alone, and the guards that refuse it:

    --config.data.task_options.flipped_share=1.0
    --config.guards.on=True

Other residual biases: --config.data.task_options.teacher_bias=0.2. docs/bias.md
has the numbers.
"""

import ml_collections

from grpo_jax.configs import quickstart


def get_config(algorithm: str = "grpo"):
  """The attack, with any algorithm of the table."""
  config = quickstart.get_config(algorithm)
  config.data.name = "bias_mcq"
  config.data.task_options = ml_collections.ConfigDict(
    {"teacher_bias": 0.05, "flipped_share": 0.25}
  )
  # Michigan's reward: half a point each for format and a valid choice.
  config.rewards.functions = ("accuracy", "format", "choice", "biased")
  config.rewards.weights = (2.0, 0.5, 0.5, 0.0)
  config.rewards.correct = "accuracy"

  config.model.width = 64
  config.model.mlp_width = 192
  config.sft.steps = 300
  config.rl.steps = 100
  config.algorithm.kl_coef = 0.001

  config.eval.every = 5
  config.eval.temperature = 1.0  # Greedily a rare bias does not show.
  config.checkpoint.every = 50
  config.required_accuracy = None
  config.guards.canaries = ("correct", "-biased", "format")
  return config

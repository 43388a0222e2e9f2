"""A policy that learns from a reward model, of whole completions or of steps.

    python -m experiments.train --config=configs/reward_model.py \
        --workdir=runs/reward_model

Two-digit addition with a scratchpad, by a teacher that forgets three carries in
ten. After the warm-up a copy of the policy learns which of two completions the
verifier prefers. Then its score is the whole reward; the verifier watches, and
`reward_model/accuracy` says whether the two still agree. With :grpo_ps, which
reads scores of steps, the copy learns which steps are right. Any other
algorithm may be given. To rank pairs by other rewards than accuracy, give the
phase weights of its own: --config.rm.reward_weights.

The two diverge if the policy follows the score too far; docs/proxy.md measures
it.
"""

from grpo_jax.configs import add_steps
from grpo_jax.settings.config import phase_config


def get_config(algorithm: str = "grpo"):
  """Addition by the score of a model, with any algorithm of the table."""
  config = add_steps.get_config(algorithm)
  is_process = algorithm == "grpo_ps"
  config.phases = ("sft", "rm", "rl")
  config.rm = phase_config(
    "process" if is_process else "preference",
    steps=100,
    group_size=8,
    num_prompts=32,
  )
  config.reward_model.optimizer.learning_rate = 3e-4
  if is_process:
    config.reward_model.step_ends = (";",)
  config.rewards.functions = ("accuracy", "reward_model")
  config.rewards.weights = (0.0, 1.0)
  return config

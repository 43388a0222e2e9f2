"""Healthy runs, to measure the false alarms of the health rules.

    python -m experiments.sweeps.run --config=configs/sweeps/healthy.py:still \
        --root=runs/healthy/still --launcher=vmap
    python -m experiments.sweeps.run --config=configs/sweeps/healthy.py:learns \
        --root=runs/healthy/learns --launcher=vmap
    python -m experiments.health.false_alarms runs/healthy/*

Sorting five letters, with three components of the reward. In `still` the
learning rate of the second phase is next to 0, so changes of its metrics are
chance alone. In `learns` the policy gets better, and does not master the task.
"""

from grpo_jax.configs import quickstart

# Learning rates; 1e-30 is lost in the rounding of a float32 parameter.
VARIANTS = {"still": 1e-30, "learns": 5e-4}
NUM_SEEDS = 24


def get_config(variant: str = "still"):
  """The quickstart in small, with components that may disagree."""
  if variant not in VARIANTS:
    raise ValueError(
      f"healthy: {variant!r} is no variant of it; choose one of"
      f" {', '.join(VARIANTS)}."
    )
  config = quickstart.get_config()
  options = config.data.task_options
  options.min_len = options.max_len = 5
  options.teacher_error = 0.5
  config.rewards.functions = ("accuracy", "position", "ascending")
  config.rewards.weights = (1.0, 0.5, 0.25)

  config.model.width = 48
  config.model.num_layers = 1
  config.model.num_heads = 2
  config.model.num_kv_heads = 1
  config.model.mlp_width = 96

  config.sft.steps = 200
  config.sft.num_prompts = 64
  config.sft.optimizer.learning_rate = 5e-3
  config.rl.steps = 300
  config.rl.num_prompts = 16
  config.rl.group_size = 8
  config.rl.optimizer.learning_rate = VARIANTS[variant]

  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  config.eval.every = 20
  config.checkpoint.every = 500
  config.log.trackers = ()
  config.required_accuracy = None
  return config


def sweep(add, variant):
  """Adds a run per seed."""
  del variant
  for seed in range(NUM_SEEDS):
    add(seed=seed)

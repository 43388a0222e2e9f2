"""A sweep in small: two clip widths, three learning rates, three seeds.

    python -m experiments.sweeps.run --config=configs/sweeps/lr_by_clip.py \
        --root=runs/sweeps/lr_by_clip --parallel=2
    python -m experiments.sweeps.collect --root=runs/sweeps/lr_by_clip

Copying three letters, after a warm start that is too short to master it. Four
minibatches a step take the policy away from the one that sampled, so that the
clip width has an effect. `lr_by_clip.py:with_failure` adds a learning rate that
training cannot survive: its cell fails, the others do not.

With --trials=20 --root=runs/sweeps/search, Optuna looks for the best learning
rate and clip width instead.
"""

from grpo_jax.configs import quickstart
from grpo_jax.settings import grids

_RATE = "rl.optimizer.learning_rate"


def get_config(variant: str = ""):
  """The quickstart in small; `variant` is "" or "with_failure"."""
  if variant not in ("", "with_failure"):
    raise ValueError(
      f"lr_by_clip: {variant!r} is no variant of it; choose with_failure."
    )
  config = quickstart.get_config()
  config.data.name = "copy"
  config.data.task_options = {"length": 3}

  config.model.width = 32
  config.model.num_layers = 1
  config.model.num_heads = 2
  config.model.num_kv_heads = 1
  config.model.mlp_width = 64

  config.sft.steps = 60
  config.sft.num_prompts = 64
  config.sft.optimizer.learning_rate = 1e-2
  config.rl.steps = 60
  config.rl.num_prompts = 32
  config.rl.group_size = 8
  config.rl.num_minibatches = 4

  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  config.eval.every = 10
  config.checkpoint.every = 60
  config.log.trackers = ()
  config.required_accuracy = None
  return config


def sweep(add, variant):
  """18 cells, and the one that fails."""
  axes = {"algorithm.clip_high": (0.1, 0.3), _RATE: (3e-4, 1e-3, 3e-3)}
  for cell in grids.product(axes, grids.seeds(3)):
    add(**cell)
  if variant:
    add(**{_RATE: 1e30})


def search(trial):
  """Suggests both settings, on a logarithmic scale."""
  return {
    "algorithm.clip_high": trial.suggest_float("clip_high", 0.05, 1, log=True),
    _RATE: trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True),
  }

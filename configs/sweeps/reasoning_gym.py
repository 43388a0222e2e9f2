"""Five seeds of `configs/reasoning_gym.py`.

    python -m experiments.sweeps.run --config=configs/sweeps/reasoning_gym.py \
        --root=runs/sweeps/reasoning_gym
    python -m experiments.sweeps.collect --root=runs/sweeps/reasoning_gym
"""

from grpo_jax.configs.reasoning_gym import get_config


def sweep(add):
  """A run for each seed."""
  for seed in range(5):
    add(seed=seed)


__all__ = ("get_config", "sweep")

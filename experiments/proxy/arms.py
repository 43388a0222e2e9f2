"""The arms of the experiment on a reward that is learned, and their configs.

    python -m experiments.sweeps.run --launcher=vmap --root=runs/proxy/NAME \
        --config=experiments/proxy/config.py:NAME

An arm is a sweep over seeds of `configs/iterative.py`. `kl04-r10` has a KL
coefficient of 0.04, and a reward model that learns again in each iteration,
with 10 % of old prompts; `r0` has no old prompts. In `kl04-once` the reward
model learns once, before the policy does, and the reference stays the same. The
policy takes the same number of steps in all arms. A seed means the same warm
start and the same reward model of the first iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_collections

from grpo_jax.configs import iterative

NUM_SEEDS = 10
ITERATIONS = 6
KL = {"kl0": 0.0, "kl04": 0.04}
HISTORY = {"r0": 0.0, "r10": 0.1}
ONCE = "once"
ARMS = tuple(f"{kl}-{how}" for how in (*HISTORY, ONCE) for kl in KL)


def get_config(name: str) -> ml_collections.ConfigDict:
  """The config of an arm.

  Raises:
    ValueError: No arm has this name.
  """
  if name not in ARMS:
    raise ValueError(f"arms: no arm {name!r}; choose one of {', '.join(ARMS)}.")
  kl, how = name.split("-")
  iterations = 1 if how == ONCE else ITERATIONS
  config: Any = iterative.get_config(iterations=iterations)
  config.algorithm.kl_coef = KL[kl]
  steps = config.rl.steps
  if how == ONCE:
    config.rl.steps = ITERATIONS * steps
  else:
    config.reward_model.history_share = HISTORY[how]
  config.eval.every = steps
  config.checkpoint.every = steps
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  config.log.traces_every = 0
  return config


def sweep(add: Callable[..., None], name: str) -> None:
  """The cells of an arm."""
  del name
  for seed in range(NUM_SEEDS):
    add(seed=seed)

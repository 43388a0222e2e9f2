"""The arms of the experiment on a verifier with errors, and their configs.

    python -m experiments.sweeps.run --launcher=vmap --root=runs/flips/base \
        --config=experiments/flips/config.py:base
    python -m experiments.sweeps.run --launcher=vmap --root=runs/flips/grpo-40 \
        --config=experiments/flips/config.py:grpo-40 \
        --config.start_workdir="runs/flips/base/seed={seed}"

An arm is a sweep over seeds. In `grpo-40` the rewards of 40 % of the
completions are flipped, always of the same ones (`flipped`, docs/rewards.md).
`base` imitates a teacher. Every other arm begins with the policy of `base` of
its seed and draws the same number of completions. These include the completions
from which PPO's critic learns before its policy does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import ml_collections

from experiments.sweeps import arms as sweeps_lib
from grpo_jax.configs import ppo_add

NUM_SEEDS = 5
BASE = "base"
ALGORITHMS = {
  "grpo": "GRPO",
  "dr_grpo": "Dr. GRPO",
  "rloo": "RLOO",
  "ppo": "PPO",
}
PERCENT = (0, 10, 20, 30, 40)  # Of the completions, which are misjudged.
ARMS = (BASE, *(f"{name}-{n}" for n in PERCENT for name in ALGORITHMS))
BATCH = 128  # Completions of a step.
STEPS = 80
CRITIC_STEPS = 20  # Of these, in which PPO's critic learns alone.
EVERY = 20  # Steps between evaluations.
follows_on = functools.partial(sweeps_lib.follows_on, BASE)


def get_config(name: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on.

  Raises:
    ValueError: No arm has this name.
  """
  if name not in ARMS:
    raise ValueError(f"arms: no arm {name!r}; choose one of {', '.join(ARMS)}.")
  algorithm, _, percent = name.partition("-")
  config = ppo_add.get_config("grpo" if name == BASE else algorithm)
  config.data.name = "sort"
  config.data.task_options = ml_collections.ConfigDict(
    {
      "min_len": 5,
      "max_len": 5,
      "num_letters": 10,
      "tags": False,
      "teacher_error": 0.75,
    }
  )
  config.model.width = 64
  config.model.mlp_width = 192
  config.sft.steps = 150
  config.sft.num_prompts = 128
  config.rl.num_lengths = config.value.num_lengths = 1  # Compiles faster.
  config.rewards.functions = ("accuracy", "flipped")
  config.rewards.weights = (0.0, 1.0)
  config.rewards.correct = "accuracy"
  config.rewards.options = ml_collections.ConfigDict(
    {"flipped": {"source": "accuracy", "probability": int(percent or 0) / 100}}
  )
  config.algorithm.kl_coef = 0.0  # The warm start is what is to be left.
  if name == BASE:
    config.phases = ("sft",)
  else:
    config.phases = config.phases[1:]
    config.value.steps = CRITIC_STEPS
    has_critic = "value" in config.phases
    config.rl.steps = STEPS - CRITIC_STEPS * has_critic
  config.eval.num_prompts = config.eval.batch_size = 512
  config.eval.every = 0 if name == BASE else EVERY
  config.checkpoint.every = 0
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  config.log.traces_every = 0
  return config


def sweep(add: Callable[..., None], name: str) -> None:
  """The cells of an arm."""
  del name
  for seed in range(NUM_SEEDS):
    add(seed=seed)

"""The arms of the experiment on credits of segments, and their configs.

    python -m experiments.sweeps.run --launcher=vmap \
        --root=runs/planted_errors/taught \
        --config=experiments/planted_errors/config.py:taught

An arm is a sweep over seeds. `taught` imitates a teacher without errors, and
credits are measured on it. `start` imitates a teacher who forgets carries. All
other arms begin with the policy of `start` of their seed, and draw equal
numbers of completions. These include the completions from which PPO's critic
learns before its policy does.
"""

from __future__ import annotations

import pathlib
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_collections

from grpo_jax.configs import ppo_add

LEVEL = 2  # Digits of both operands.
NUM_SEEDS = 5
MEASURED = "taught"
BASE = "start"
TEACHER_ERROR = (
  0.3  # Probability of a carry that the teacher of `start` forgets.
)
IMITATION = {MEASURED: 600, BASE: 300}  # steps
BATCH = 128  # Completions of a step.
STEPS = 80
CRITIC_STEPS = 20  # Of these, in which PPO's critic learns alone.
EVERY = 20  # Steps between evaluations.
NUM_HELD_OUT = 512


class Arm(NamedTuple):
  """A way to learn from completions.

  Attributes:
    algorithm: Name of the algorithm.
    shown: Name of the arm on the page.
    settings: Settings of `config.algorithm`.
  """

  algorithm: str
  shown: str
  settings: Mapping[str, Any] = types.MappingProxyType({})


LEARNERS = {
  "grpo": Arm("grpo", "GRPO: one advantage for the whole completion"),
  "mix": Arm("rredcot", "RREDCoT: half GRPO, half credits of segments"),
  "rudder": Arm(
    "rredcot", "RREDCoT: credits of segments alone", {"mode": "rudder"}
  ),
  "return": Arm(
    "rredcot",
    "RREDCoT: the reward less what was expected before the segment",
    {"mode": "return"},
  ),
  "ppo": Arm("ppo", "PPO: a critic, one completion of each prompt"),
  "grpo_ps": Arm("grpo_ps", "a verifier that judges each step"),
}
ARMS = (MEASURED, BASE, *LEARNERS)


def get_config(name: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on.

  Raises:
    ValueError: No arm has this name.
  """
  if name not in ARMS:
    raise ValueError(f"arms: no arm {name!r}; choose one of {', '.join(ARMS)}.")
  arm = LEARNERS.get(name, Arm("grpo", ""))
  config = ppo_add.get_config(arm.algorithm)
  config.data.name = "experiments.planted_errors.task:make"
  config.data.task_options = ml_collections.ConfigDict(
    {
      "level": LEVEL,
      "skip": 0.5,
      "teacher_error": 0.0 if name == MEASURED else TEACHER_ERROR,
    }
  )
  config.model.width = 64
  config.model.mlp_width = 192
  config.algorithm.kl_coef = 0.0  # The warm start is what is to be left.
  for field, value in arm.settings.items():
    config.algorithm[field] = value
  if name in LEARNERS:
    config.phases = config.phases[1:]
    config.value.steps = CRITIC_STEPS
    has_critic = "value" in config.phases
    config.rl.steps = STEPS - CRITIC_STEPS * has_critic
    if arm.algorithm == "ppo":
      config.algorithm.kl_in_reward = False
  else:
    config.phases = ("sft",)
    config.sft.steps = IMITATION[name]
  config.rl.num_lengths = config.value.num_lengths = 1  # Compiles faster.
  config.eval.num_prompts = config.eval.batch_size = NUM_HELD_OUT
  config.eval.every = EVERY if name in LEARNERS else 0
  config.checkpoint.every = 0
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  config.log.traces_every = 0
  return config


def follows_on(name: str, root: pathlib.Path) -> list[str]:
  """Overrides that name the run that an arm follows on, of its own seed."""
  if name not in LEARNERS:
    return []
  return [f"--config.start_workdir={root}/{BASE}/seed={{seed}}"]


def sweep(add: Callable[..., None], name: str) -> None:
  """The cells of an arm."""
  del name
  for seed in range(NUM_SEEDS):
    add(seed=seed)

"""The arms of the experiment on the task `bias_mcq`, and their configs.

    python -m experiments.sweeps.run --launcher=vmap --root=runs/bias/NAME \
        --config=experiments/bias/config.py:NAME

An arm is a sweep over seeds, and its name says what it is:

    mixed-p05-kl001-cap

is about data in which 3 of 4 prompts are the flipped item ("alone": all are),
a teacher that names the stereotype in 5 of 100 answers, a KL coefficient of
0.001, and the influence cap. A seed means the same warm start in all arms with
the same teacher.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_collections

from grpo_jax.configs import bias_mcq

NUM_SEEDS = 5
SHARES = {"mixed": 0.75, "alone": 1.0}
TEACHERS = {"p02": 0.02, "p05": 0.05, "p10": 0.1, "p20": 0.2}
KL = {"kl0": 0.0, "kl001": 0.001, "kl01": 0.01, "kl1": 0.1}
# Guards that each word switches on; all other guards are off.
_OFF: dict[str, Any] = {
  "min_distinct_prompts": 0,
  "influence_cap": 0.0,
  "repeat_cap": 0,
  "canary_every": 0,
}
GUARDS: dict[str, dict[str, Any]] = {
  "none": {},
  "cap": {"influence_cap": 0.05},
  "repeats": {"repeat_cap": 8},
  "canaries": {"canary_every": 5},
  "all": {"influence_cap": 0.05, "repeat_cap": 8, "canary_every": 5},
}
DEFAULT = ("p05", "kl001")


class Arm(NamedTuple):
  """Combination of data, warm start, KL and guards.

  Attributes:
    data: Key of `SHARES`, the share of flipped prompts.
    teacher: Key of `TEACHERS`, the bias of the warm start.
    kl: Key of `KL`, the KL coefficient.
    guard: Key of `GUARDS`, the guards that are on.
  """

  data: str
  teacher: str
  kl: str
  guard: str

  @property
  def name(self) -> str:
    return "-".join(self)


def _arms() -> dict[str, Arm]:
  """Arms by name, the most important first."""
  teacher, kl = DEFAULT
  found = [Arm("mixed", one, kl, "none") for one in TEACHERS]
  found += [Arm("alone", one, kl, "none") for one in TEACHERS]
  found += [
    Arm("mixed", one, kl, guard)
    for guard in ("cap", "canaries", "repeats", "all")
    for one in TEACHERS
  ]
  found += [
    Arm("alone", teacher, kl, guard) for guard in ("canaries", "cap", "repeats")
  ]
  found += [Arm(data, teacher, one, "none") for data in SHARES for one in KL]
  found += [
    Arm("mixed", one, other, "none")
    for one, other in itertools.product(TEACHERS, KL)
  ]
  return {arm.name: arm for arm in found}


ARMS = _arms()


def get_config(name: str) -> ml_collections.ConfigDict:
  """The config of an arm.

  Raises:
    ValueError: No arm has this name.
  """
  if name not in ARMS:
    raise ValueError(f"arms: no arm {name!r}; choose one of {', '.join(ARMS)}.")
  arm = ARMS[name]
  config = bias_mcq.get_config("grpo")
  config.data.task_options.flipped_share = SHARES[arm.data]
  config.data.task_options.teacher_bias = TEACHERS[arm.teacher]
  config.algorithm.kl_coef = KL[arm.kl]
  config.rl.steps = 40
  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  config.checkpoint.every = 5  # To be rolled back to.
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  if arm.guard != "none":
    config.guards.on = True
    config.guards.lint = "off"  # It refuses the data before training.
    for setting, value in (_OFF | GUARDS[arm.guard]).items():
      config.guards[setting] = value
  return config


def sweep(add: Callable[..., None], name: str) -> None:
  """The cells of an arm."""
  del name
  for seed in range(NUM_SEEDS):
    add(seed=seed)

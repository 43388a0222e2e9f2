"""Arms of the experiment on brackets, and the config of each arm.

`base` imitates a teacher. Every other arm begins with the policy of `base` of
its seed and takes the same number of steps on the same number of prompts. These
arms differ in the rounding of the sampler's kernels, and in the correction for
it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_collections

from experiments.sweeps import arms as sweeps_lib
from grpo_jax.configs import quickstart

BASE = "base"
# Short name -> config.sampling.weights_dtype.
KERNELS = {"exact": "model", "int8": "int8", "float8": "float8_e4m3fn"}


class Correction(NamedTuple):
  """Correction for the gap between sampler and trainer.

  Attributes:
    text: Description of the correction.
    settings: Fields of the algorithm's config.
  """

  text: str
  settings: Mapping[str, Any]


CORRECTIONS = {
  "none": Correction(
    "nothing: what rounded kernels drew is taken for the policy's own", {}
  ),
  "tis": Correction(
    "weights of tokens, truncated at 2 (TIS)",
    {"importance_mode": "truncate", "importance_max": 2.0},
  ),
}


def name_of(kernels: str, correction: str) -> str:
  """The name of an arm."""
  return f"{kernels}-{correction}"


# Name -> (kernels, correction).
ARMS: dict[str, tuple[str, str] | None] = {
  BASE: None,
  **{
    name_of(kernels, correction): (kernels, correction)
    for kernels in KERNELS
    for correction in CORRECTIONS
  },
}


class Size(NamedTuple):
  """Amounts of computation.

  Attributes:
    num_seeds: Number of seeds of each arm.
    imitation: Number of steps of `base`.
    steps: Number of steps of each other arm.
    num_prompts: Number of prompts of a step.
    num_held_out: Number of prompts of an evaluation.
  """

  num_seeds: int
  imitation: int
  steps: int
  num_prompts: int
  num_held_out: int


SIZES = {
  "full": Size(6, 200, 160, 8, 512),
  "smoke": Size(2, 10, 4, 2, 16),
}
GROUP_SIZE = 16
EVALUATIONS = 16  # Within the steps of an arm.
LEARNING_RATE = 3e-4
_SIZED = sweeps_lib.Sized(ARMS, SIZES)
sweep = _SIZED.sweep
follows_on = functools.partial(sweeps_lib.follows_on, BASE)


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on."""
  name, size = _SIZED.parsed(argument)
  config = quickstart.get_config("grpo")
  config.data.name = "bracket"
  config.data.task_options = ml_collections.ConfigDict(
    {"max_len": 16, "max_depth": 6, "teacher_error": 0.75, "tags": False}
  )
  config.model.width = 64
  config.model.mlp_width = 192
  config.phases = ("sft",) if name == BASE else ("rl",)
  config.sft.steps = size.imitation
  config.sft.num_prompts = 64
  config.rl.steps = size.steps
  config.rl.num_prompts = size.num_prompts
  config.rl.group_size = GROUP_SIZE
  # One gradient step on a batch: rounding is all that is off-policy.
  config.rl.num_minibatches = config.rl.num_epochs = 1
  config.rl.num_lengths = 1  # Compiles faster.
  config.rl.optimizer.learning_rate = LEARNING_RATE
  config.rl.optimizer.schedule = "constant"
  config.rl.optimizer.final_fraction = 1.0  # No end of learning by itself.
  config.algorithm.kl_coef = 0.0
  if (arm := ARMS[name]) is not None:
    kernels, correction = arm
    config.sampling.weights_dtype = KERNELS[kernels]
    config.sampling.uncorrected = correction == "none"
    for field, value in CORRECTIONS[correction].settings.items():
      config.algorithm[field] = value
  config.eval.num_prompts = config.eval.batch_size = size.num_held_out
  config.eval.temperature = 1.0
  config.eval.every = max(1, size.steps // EVALUATIONS)
  config.checkpoint.every = 0
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  config.log.traces_every = 0
  config.required_accuracy = None
  return config

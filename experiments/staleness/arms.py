"""Arms of the experiment on brackets, and the config of each arm.

`base` imitates a teacher. Every other arm begins with the policy of `base` of
its seed and takes the same number of steps on the same number of prompts. These
arms differ in the age of their completions in updates, and in the correction
for it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_collections

from experiments.sweeps import arms as sweeps_lib
from grpo_jax.configs import quickstart

BASE = "base"
STALENESS = (0, 1, 4, 16)  # Updates.


class Correction(NamedTuple):
  """Correction for completions of earlier parameters.

  Attributes:
    text: Description of the correction.
    settings: Fields of the algorithm's config.
  """

  text: str
  settings: Mapping[str, Any]


# The first leaves out what is 10⁶ nats a token away, which nothing is: it takes
# old completions for new.
CORRECTIONS = {
  "none": Correction(
    "nothing: old completions are taken for new ones",
    {"off_policy_threshold": 1e6},
  ),
  "tis": Correction(
    "weights of tokens, truncated at 2 (TIS)",
    {"importance_mode": "truncate", "importance_max": 2.0},
  ),
  "dis": Correction(
    "weights of tokens, 0 outside of 0.7 to 6 (the DIS of SAO, for one gradient"
    " step on each batch)",
    {
      "importance_mode": "mask",
      "importance_min": 0.7,
      "importance_max": 6.0,
    },
  ),
  "mis": Correction(
    "weights of completions, 0 above 3 (MIS)",
    {
      "importance_mode": "mask",
      "importance_level": "sequence",
      "importance_max": 3.0,
    },
  ),
  "opsm": Correction(
    "bad completions that have become less likely by more than 0.5 nats a token"
    " are left out (OPSM)",
    {"off_policy_threshold": 0.5},
  ),
  "reject": Correction(
    "completions whose geometric mean ratio is not in 0.5 to 2 are left out",
    {"rejection": "seq_mean_k1", "rejection_low": 0.5, "rejection_high": 2.0},
  ),
}


def name_of(correction: str, staleness: int) -> str:
  """The name of an arm."""
  return f"{correction}-s{staleness}"


# Name -> (correction, staleness).
ARMS: dict[str, tuple[str, int] | None] = {
  BASE: None,
  **{
    name_of(correction, staleness): (correction, staleness)
    for correction in CORRECTIONS
    for staleness in STALENESS
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
  "full": Size(6, 200, 96, 8, 512),
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
  # One gradient step on a batch: old completions are all that is off-policy.
  config.rl.num_minibatches = config.rl.num_epochs = 1
  config.rl.num_lengths = 1  # Compiles faster.
  config.rl.optimizer.learning_rate = LEARNING_RATE
  config.rl.optimizer.schedule = "constant"
  config.rl.optimizer.final_fraction = 1.0  # No end of learning by itself.
  config.algorithm.kl_coef = 0.0
  if (arm := ARMS[name]) is not None:
    correction, config.rl.staleness = arm
    settings = CORRECTIONS[correction].settings
    for field, value in settings.items():
      config.algorithm[field] = value
    # It leaves completions out but weighs none, which would be refused alone.
    config.sampling.uncorrected = "off_policy_threshold" in settings
  config.eval.num_prompts = config.eval.batch_size = size.num_held_out
  config.eval.temperature = 1.0
  config.eval.every = max(1, size.steps // EVALUATIONS)
  config.checkpoint.every = 0
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  config.log.traces_every = 0
  config.required_accuracy = None
  return config

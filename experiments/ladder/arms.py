"""The rungs of DAPO's ladder, and ways to fill a batch of live groups.

    python -m experiments.sweeps.run --launcher=vmap --root=runs/ladder/base \
        --config=experiments/ladder/config.py:base
    python -m experiments.sweeps.run --launcher=vmap --root=runs/ladder/dapo \
        --config=experiments/ladder/config.py:dapo \
        --config.start_workdir="runs/ladder/base/seed={seed}"

Every arm but `base` begins with the parameters of `base` of its seed and takes
the same number of updates on batches of the same number of groups. Each rung
has all parts of the rung before and another one. The other arms have all parts
of DAPO. They differ in the use of groups whose rewards are all equal, and of
groups beyond a batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_collections

from experiments.sweeps import arms as sweeps_lib
from grpo_jax.configs import add_filler


@dataclasses.dataclass(frozen=True)
class Arm:
  """Arm of the comparison.

  Attributes:
    text: Description of the arm.
    algorithm: Name of its algorithm.
    settings: Fields of the algorithm's config.
    phase: Fields of the phase.
  """

  text: str
  algorithm: str = "grpo"
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  phase: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_HIGHER = {"clip_high": 0.28}
_TOKENS = _HIGHER | {"dynamic_sampling": False, "overlong_cache": 0.0}
_SHAPED = _TOKENS | {"overlong_cache": 0.2}
_LIVE = _SHAPED | {"dynamic_sampling": True}
_CORRECTED = _LIVE | {"importance_mode": "truncate"}
_ROUNDS = {"max_rounds": 4}

BASE = "base"
RUNGS = {
  "grpo": Arm("GRPO", settings={"clip_high": 0.2}),
  "clip-higher": Arm("and ratios are clipped at 1.28", settings=_HIGHER),
  "token-mean": Arm("and the loss is a mean over tokens", "dapo", _TOKENS),
  "overlong": Arm("and long completions are punished", "dapo", _SHAPED),
  "dapo": Arm(
    "and groups are drawn until a batch of them lives: DAPO",
    *("dapo", _LIVE, _ROUNDS),
  ),
}
FILLED = {
  "mask": Arm("DAPO; dead groups leave the loss, none is drawn", "dapo", _LIVE),
  "duplicate": Arm(
    "DAPO; if groups are missing, others are repeated",
    *("dapo", _LIVE, _ROUNDS | {"when_short": "duplicate"}),
  ),
  "recycled": Arm(
    "DAPO; groups beyond a batch begin the next one",
    *("dapo", _CORRECTED, _ROUNDS | {"recycle_surplus": True}),
  ),
  "replay": Arm(
    "DAPO; earlier groups take the place of dead ones, none is drawn",
    *("dapo", _CORRECTED, {"replay_size": 64}),
  ),
}
OTHER = {
  "overlong-filter": Arm(
    "as `overlong`, but completions that are cut off leave the loss",
    *("dapo", _TOKENS | {"overlong_filter": True}),
  ),
}
ARMS = {
  BASE: Arm("imitation of a wordy teacher; all others go on"),
  **RUNGS,
  **OTHER,
  **FILLED,
}
BUDGET = 20  # Tokens of a completion.
GROUP_SIZE = 8


class Size(NamedTuple):
  """Amounts of computation.

  Attributes:
    num_seeds: Number of seeds of each arm.
    imitation: Number of steps of `base`.
    steps: Number of steps of each other arm.
    num_prompts: Number of groups of a batch.
  """

  num_seeds: int
  imitation: int
  steps: int
  num_prompts: int


SIZES = {
  "full": Size(5, 200, 40, 16),
  "smoke": Size(2, 10, 4, 4),
}
_SIZED = sweeps_lib.Sized(ARMS, SIZES)
sweep = _SIZED.sweep
follows_on = functools.partial(sweeps_lib.follows_on, BASE)


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on."""
  name, size = _SIZED.parsed(argument)
  arm = ARMS[name]
  config = add_filler.get_config(arm.algorithm)
  config.rewards.functions = ("accuracy",)
  config.rewards.weights = (1.0,)
  config.rewards.options = ml_collections.ConfigDict()
  for field, value in arm.settings.items():
    config.algorithm[field] = value
  for field, value in arm.phase.items():
    config.rl[field] = value
  config.sft.steps = size.imitation
  if name == BASE:
    config.phases = ("sft",)
  else:
    config.phases = ("rl",)
    # Of the teacher's completions about one in ten is longer.
    config.sampling.max_new_tokens = BUDGET
  config.rl.steps = size.steps
  config.rl.num_prompts = size.num_prompts
  config.rl.optimizer.learning_rate = 3e-4
  config.rl.group_size = GROUP_SIZE
  # 16 gradient steps on a batch: of fewer and smaller ones none is clipped.
  config.rl.num_epochs = 4
  config.rl.num_minibatches = 4
  config.rl.num_lengths = 1  # Compiles faster.
  # The numbers are those of completions that are drawn in training.
  config.eval.num_prompts = config.eval.batch_size = 16
  config.eval.every = 0
  config.checkpoint.every = 0
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  config.log.traces_every = 0
  return config

"""Arms of the experiment on sums with filler, and the config of each arm.

Every arm but `base` begins with the parameters of `base` of its seed and takes
the same number of steps on the same number of prompts. These arms differ in the
completions that they draw for a prompt and learn from. Arms whose name ends in
"-mended" have the reward without its bug.
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
    algorithm: Name of its algorithm.
    group_size: Number of completions drawn for each prompt.
    text: Description of the arm.
    settings: Fields of the algorithm's config.
    mended: Whether the bug of the reward is mended.
  """

  algorithm: str
  group_size: int
  text: str
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  mended: bool = False


def _gfpo(
  num_kept: int,
  group_size: int,
  text: str,
  mended: bool = False,
  **settings: Any,
) -> Arm:
  # The paper's KL and entropy bonus are the same in no other arm.
  settings |= {"num_kept": num_kept, "entropy_coef": 0.0}
  return Arm("gfpo", group_size, text, settings, mended)


ARMS = {
  "base": Arm("grpo", 8, "imitation of a wordy teacher; all others go on"),
  "all": _gfpo(8, 8, "GFPO's loss on all 8 of 8 completions: GRPO, token mean"),
  "shortest-8of16": _gfpo(8, 16, "GFPO: the 8 shortest of 16"),
  "shortest-8of24": _gfpo(8, 24, "GFPO: the 8 shortest of 24"),
  "shortest-4of16": _gfpo(4, 16, "GFPO: the 4 shortest of 16"),
  "efficiency": _gfpo(
    *(8, 16, "GFPO: of 16 the 8 with the most reward per token"),
    metric="efficiency",
  ),
  "adaptive": _gfpo(
    8,
    16,
    "GFPO: of 16 the 8, 6 or 4 shortest, by difficulty",
    metric="adaptive",
  ),
  "grpo": Arm("grpo", 8, "GRPO: mean of each completion, 8 of them"),
  "dr_grpo": Arm(
    "dr_grpo", 8, "Dr. GRPO: neither length nor deviation divides"
  ),
  "grpo-mended": Arm(
    "grpo", 8, "GRPO, right answers alone are rewarded", {}, True
  ),
  "dr_grpo-mended": Arm(
    "dr_grpo", 8, "Dr. GRPO, right answers alone are rewarded", {}, True
  ),
  "all-mended": _gfpo(8, 8, "`all`, right answers alone are rewarded", True),
  "shortest-mended": _gfpo(
    8, 16, "GFPO: the 8 shortest of 16, right answers alone are rewarded", True
  ),
}
FILTERED = tuple(
  name
  for name, arm in ARMS.items()
  if arm.algorithm == "gfpo" and name != "all" and not arm.mended
)


class Size(NamedTuple):
  """Amounts of computation.

  Attributes:
    num_seeds: Number of seeds of each arm.
    imitation: Number of steps of `base`.
    steps: Number of steps of each other arm.
    num_prompts: Number of prompts of a step.
  """

  num_seeds: int
  imitation: int
  steps: int
  num_prompts: int


SIZES = {
  "full": Size(5, 400, 100, 16),
  "smoke": Size(2, 10, 4, 2),
}
_SIZED = sweeps_lib.Sized(ARMS, SIZES)
sweep = _SIZED.sweep
follows_on = functools.partial(sweeps_lib.follows_on, "base")


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on."""
  name, size = _SIZED.parsed(argument)
  arm = ARMS[name]
  config = add_filler.get_config(arm.algorithm)
  for field, value in arm.settings.items():
    config.algorithm[field] = value
  if arm.mended:
    config.rewards.weights = (1.0, 0.0)
  config.phases = ("sft", "rl") if name == "base" else ("rl",)
  config.sft.steps = size.imitation
  config.rl.steps = 0 if name == "base" else size.steps
  config.rl.num_prompts = size.num_prompts
  config.rl.group_size = arm.group_size
  # The numbers are those of completions that are drawn in training.
  config.eval.num_prompts = config.eval.batch_size = 16
  config.eval.every = 0
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  config.log.traces_every = 0
  return config

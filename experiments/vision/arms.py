"""The arms of the experiment on images, and their configs.

    python -m experiments.sweeps.run --launcher=vmap --root=runs/vision/base \
        --config=experiments/vision/config.py:base
    python -m experiments.sweeps.run --launcher=vmap --root=runs/vision/grpo \
        --config=experiments/vision/config.py:grpo \
        --config.start_workdir="runs/vision/base/seed={seed}"

An arm is a sweep over seeds. `base`, the warm start, imitates a teacher whose
convention is another one in three answers of four: one square more than there
are, and the last pixels of a box in the place of those behind it. Every other
arm begins with the policy of `base` of its seed, and takes the same number of
updates. These arms see the same stream of images, from its beginning. One in
twenty of these images or fewer were in the warm start.
"""

from __future__ import annotations

import copy
import functools
from typing import NamedTuple

import ml_collections

from experiments.sweeps import arms as sweeps_lib
from grpo_jax.configs import vision

NUM_SEEDS = 5
BASE, GRPO = "base", "grpo"
SAME_UPDATES, SAME_EXAMPLES = "sft-updates", "sft-examples"
SHOWN = {
  GRPO: "GRPO",
  SAME_UPDATES: "SFT, equal updates",
  SAME_EXAMPLES: "SFT, equal examples",
}
ARMS = (BASE, *SHOWN)
STEPS = 60  # Updates after the warm start.
TEACHER_ERROR = 0.75  # Of the warm start.
PROMPTS, GROUP = 32, 8  # Of a step of GRPO.
# Labelled images of a step, for each of GRPO's prompts: as many as it has rows,
# or one.
EXAMPLES = {SAME_UPDATES: GROUP, SAME_EXAMPLES: 1}
IN_DOMAIN = ("count", "box")
SHIFTED = ("count_colours", "box_colours", "box_sizes")
DOMAINS = (*IN_DOMAIN, *SHIFTED)


class Size(NamedTuple):
  """Amounts of computation.

  Attributes:
    num_seeds: Number of seeds of each arm.
    imitation: Number of steps of `base`.
    steps: Number of steps of each other arm.
    num_prompts: Number of prompts of a step of GRPO.
    held_out: Number of prompts of an evaluation.
  """

  num_seeds: int
  imitation: int
  steps: int
  num_prompts: int
  held_out: int


SIZES = {
  "full": Size(NUM_SEEDS, 600, STEPS, PROMPTS, 1536),
  "smoke": Size(2, 4, 2, 2, 64),
}
_SIZED = sweeps_lib.Sized(ARMS, SIZES)
sweep = _SIZED.sweep
follows_on = functools.partial(sweeps_lib.follows_on, BASE)


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on.

  Raises:
    ValueError: No arm has this name, or this size.
  """
  name, size = _SIZED.parsed(argument)
  config = vision.get_config("grpo")
  config.data.task_options = ml_collections.ConfigDict(
    {
      "codes": True,
      "shifted": True,
      "teacher_error": TEACHER_ERROR if name == BASE else 0.0,
    }
  )
  config.sft.steps = size.imitation
  config.rl.steps, config.rl.num_prompts = size.steps, size.num_prompts
  config.rl.group_size = GROUP
  if name == BASE:
    config.phases = ("sft",)
  else:
    config.sft.steps = (
      0  # It was the warm start; its images are not seen again.
    )
  if name in EXAMPLES:
    # All arms have the same rate, over as many updates.
    config.more = copy.deepcopy(config.sft)
    config.more.steps = size.steps
    config.more.num_prompts = EXAMPLES[name] * size.num_prompts
    config.more.optimizer = copy.deepcopy(config.rl.optimizer)
    config.phases = ("sft", "more", "rl")
    config.rl.steps = 0  # It is only evaluated.
  config.eval.num_prompts = size.held_out
  config.eval.batch_size = min(512, size.held_out)
  config.eval.every = 0
  config.checkpoint.every = 0
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  config.log.traces_every = 0
  return config

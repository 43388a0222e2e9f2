"""Arms of the experiment on countdown, and the config of each arm.

`base` imitates a teacher. Every other arm begins with the policy of `base` of
its seed and takes the same number of steps on the same number of prompts. These
arms differ in how they treat entropy.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_collections

from experiments.sweeps import arms as sweeps_lib
from grpo_jax.configs import quickstart

BASE = "base"


@dataclasses.dataclass(frozen=True)
class Arm:
  """Arm of the comparison.

  Attributes:
    algorithm: Name of its algorithm.
    text: Description of the arm.
    settings: Fields of the algorithm's config.
    corrects: Whether wrong completions are corrected.
    train_injected: Whether the injected tokens are trained.
  """

  algorithm: str
  text: str
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  corrects: bool = False
  train_injected: bool = False


ARMS = {
  BASE: Arm("grpo", "imitation of a teacher; all others go on"),
  "grpo": Arm("grpo", "GRPO"),
  "clip-higher": Arm(
    "grpo", "GRPO that clips ratios at 0.8 and 1.28", {"clip_high": 0.28}
  ),
  "gtpo": Arm("gtpo", "GTPO: rewards of tokens by their entropy"),
  "grpo_s": Arm("grpo_s", "GRPO-S: rewards of completions by their entropy"),
  "edge": Arm("edge_grpo", "EDGE: larger advantages of confident completions"),
  "edge-gec": Arm(
    "edge_grpo",
    "EDGE with guided error correction; hints are not trained",
    corrects=True,
  ),
  "edge-gec-trained": Arm(
    "edge_grpo",
    "the same, and hints are trained, as in the paper",
    corrects=True,
    train_injected=True,
  ),
  "bonus": Arm("grpo", "GRPO with an entropy bonus", {"entropy_coef": 1e-3}),
}


class Size(NamedTuple):
  """Amounts of computation.

  Attributes:
    num_seeds: Number of seeds of each arm.
    imitation: Number of steps of `base`.
    steps: Number of steps of each other arm; even.
    num_prompts: Number of prompts of a step.
    num_held_out: Number of prompts of an evaluation.
  """

  num_seeds: int
  imitation: int
  steps: int
  num_prompts: int
  num_held_out: int


SIZES = {
  "full": Size(5, 200, 160, 8, 256),
  "smoke": Size(2, 10, 4, 2, 16),
}
GROUP_SIZE = 16
EVALUATIONS = 8  # Within the steps of an arm.
_SIZED = sweeps_lib.Sized(ARMS, SIZES)
sweep = _SIZED.sweep
follows_on = functools.partial(sweeps_lib.follows_on, BASE)


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on."""
  name, size = _SIZED.parsed(argument)
  arm = ARMS[name]
  config = quickstart.get_config(arm.algorithm)
  for field, value in arm.settings.items():
    config.algorithm[field] = value
  config.data.name = "countdown"
  config.data.task_options = ml_collections.ConfigDict(
    {"num_numbers": 3, "teacher_error": 0.75, "last_answer": True}
  )
  config.model.width = 64
  config.model.mlp_width = 192
  config.sampling.max_new_tokens = 16
  config.phases = ("sft",) if name == BASE else ("rl",)
  config.sft.steps = size.imitation
  config.rl.steps = size.steps
  config.rl.num_prompts = size.num_prompts
  config.rl.group_size = GROUP_SIZE
  config.rl.num_minibatches = 2  # With one step nothing is ever clipped.
  config.rl.num_lengths = 1  # Compiles faster.
  config.rl.optimizer.final_fraction = 1.0  # No end of learning by itself.
  if arm.corrects:
    correction = config.rl.correction
    correction.p_cue = 0.5
    correction.p_answer = 0.25
    correction.p_reference = 0.25
    correction.cue = "="
    correction.sentence = "=<answer>{answer}</answer>"
    correction.max_new_tokens = 8
    correction.train_injected = arm.train_injected
  config.eval.num_prompts = config.eval.batch_size = size.num_held_out
  config.eval.temperature = 1.0
  config.eval.every = max(1, size.steps // EVALUATIONS)
  config.checkpoint.every = size.steps // 2
  config.checkpoint.keep = 2
  config.log.tensorboard = False
  config.log.traces_every = 0
  config.required_accuracy = None
  return config

"""Arms of the tasks `multi` and `language`, and the config of each arm.

    python -m experiments.sweeps.run --launcher=vmap --root=runs/gdpo \
        --config=experiments/objectives/config.py:multi-gdpo

An arm is a sweep over seeds. All arms of a task draw the same number of
completions. In all arms with the same teacher, a seed means the same prompts
and the same warm start.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

NUM_SEEDS = 5


@dataclasses.dataclass(frozen=True)
class Arm:
  """Arm of the comparison.

  Attributes:
    base: Module of `configs` with `get_config(algorithm)`.
    algorithm: Name of its algorithm.
    text: Description of the arm.
    settings: Settings of its own, by dotted name.
  """

  base: str
  algorithm: str
  text: str
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_OPTIONS = "data.task_options"
# A warm start that finds a right answer hard and an empty one easy.
_TEMPTED = {f"{_OPTIONS}.teacher_error": 0.75, f"{_OPTIONS}.teacher_empty": 0.1}

ARMS = {
  "multi-grpo": Arm(
    "multi", "grpo", "GRPO: rewards are added, and their sum normalised"
  ),
  "multi-mo_grpo": Arm(
    "multi", "mo_grpo", "MO-GRPO: each is normalised, and they are added"
  ),
  "multi-gdpo": Arm(
    "multi", "gdpo", "GDPO: the same, and normalised over the batch"
  ),
  "multi-mo_grpo-empty": Arm(
    "multi",
    "mo_grpo",
    "MO-GRPO after a teacher whose thoughts may be empty, which no rule is"
    " about: brief and polite are at odds there",
    {f"{_OPTIONS}.min_thought": 0},
  ),
  "language-with": Arm(
    "language", "grpo", "GRPO, rewarded for language A with weight 1"
  ),
  "language-without": Arm(
    "language",
    "grpo",
    "GRPO without a reward for the language",
    {"rewards.weights": (1.0, 0.5, 0.0)},
  ),
  "language-honest": Arm(
    "language",
    "grpo",
    "GRPO with the right verifier; the teacher leaves 1 answer in 10 empty, and"
    " gets 3 in 4 of the others wrong",
    _TEMPTED,
  ),
  "language-buggy": Arm(
    "language",
    "grpo",
    "the same with the verifier that accepts an empty answer",
    {
      **_TEMPTED,
      "rewards.functions": ("accuracy_buggy", "format", "language"),
      "rewards.correct": "accuracy_buggy",
    },
  ),
}


def get_config(name: str) -> ml_collections.ConfigDict:
  """The config of an arm.

  Raises:
    ValueError: No arm has this name.
  """
  if name not in ARMS:
    raise ValueError(f"arms: no arm {name!r}; choose one of {', '.join(ARMS)}.")
  arm = ARMS[name]
  base = importlib.import_module(f"grpo_jax.configs.{arm.base}")
  config = base.get_config(arm.algorithm)
  config.log.tensorboard = False
  config.checkpoint.keep = 1
  for setting, value in arm.settings.items():
    group, _, last = setting.rpartition(".")
    holder = config
    for part in group.split("."):
      holder = holder[part]
    holder[last] = value
  return config


def sweep(add: Callable[..., None], name: str) -> None:
  """The cells of an arm."""
  del name
  for seed in range(NUM_SEEDS):
    add(seed=seed)

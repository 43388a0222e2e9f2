"""Arms of the experiment: labelled examples, reinforcement, and both.

    python -m experiments.sweeps.run --launcher=vmap --root=runs/sft64 \
        --config=experiments/stages/config.py:sft-64 \
        --config.start_workdir=runs/stages/base/run

The task is to add two numbers of three digits, column by column. A base model
has read examples in which seven carries in ten are forgotten. Each arm goes on
from it, first with a number of labelled examples, which are right, and then
with GRPO. Two arms begin with a smaller model, and without a base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_collections

from grpo_jax.configs import add_steps

NUM_SEEDS = 5
COUNTS = (64, 512, 4096)  # Labelled examples.
BASE, RL = "base", "rl-0"
SMALL_LABELS, SMALL_KEPT = "small-labels", "small-kept"
KEPT = "kept"  # Draws completions for the smaller model.
TEACHER = "sft-512"  # Whose completions the smaller model imitates.
ARMS = {
  RL: "GRPO from the base, without a labelled example",
  **{f"sft-{n}": f"{n} labelled examples, then GRPO" for n in COUNTS},
  SMALL_LABELS: "a smaller model on 512 labelled examples",
  SMALL_KEPT: f"the same on right completions of `{TEACHER}`, first seed",
}


def get_config(name: str) -> ml_collections.ConfigDict:
  """The config of an arm, or of the base.

  Raises:
    ValueError: No arm has this name.
  """
  if name not in (BASE, *ARMS):
    raise ValueError(
      f"arms: no arm {name!r}; choose one of {BASE}, {', '.join(ARMS)}."
    )
  config = add_steps.get_config("grpo")
  options = config.data.task_options
  options.level = 3
  options.teacher_error = 0.7 if name == BASE else 0.0
  config.model.width = 64
  config.model.mlp_width = 192
  config.sft.steps = 600 if name == BASE else 200
  config.rl.steps = 100
  config.eval.every = 10
  config.checkpoint.every = 0
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  config.log.traces_every = 0
  if name == RL:
    config.phases = ("rl",)
  elif name in (SMALL_LABELS, SMALL_KEPT):
    config.model.width = 32
    config.model.mlp_width = 96
    config.sft.steps = 1000
  if name in (BASE, SMALL_LABELS, SMALL_KEPT):
    config.rl.steps = 0  # It is only evaluated.
  if name.startswith("sft-"):
    config.sft.num_records = int(name.removeprefix("sft-"))
    config.sft.optimizer.learning_rate = 5e-4
  if name == SMALL_LABELS:
    config.sft.num_records = 512
  return config


def with_needed(chosen: Sequence[str]) -> list[str]:
  """Adds the arms that these need first: the base, and kept completions."""
  needed = [BASE, *chosen]
  if SMALL_KEPT in chosen:
    at = needed.index(SMALL_KEPT)
    needed[at:at] = [*([] if TEACHER in chosen else [TEACHER]), KEPT]
  return needed


def sweep(add: Callable[..., None], name: str) -> None:
  """The cells of an arm."""
  del name
  for seed in range(NUM_SEEDS):
    add(seed=seed)

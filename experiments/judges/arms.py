"""The arms of the experiment on judges, and their configs.

    python -m experiments.sweeps.run --launcher=vmap --root=runs/judges/NAME \
        --config=experiments/judges/config.py:NAME

An arm is a sweep over seeds of `configs/judge.py`. "truth", "reverse" and
"marks" train judges, and "by-truth" a policy by the judge of its own seed.
"-kl" adds a KL coefficient of 0.05, and "-verifier" a verifier whose weight is
that of the judge. A seed means the same warm start in all arms but "itself".
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import ml_collections

from grpo_jax.configs import judge
from grpo_jax.tasks import verdict

# The sizes were chosen with seed 0.
SEEDS = (1, 2, 3, 4, 5)
EVERY = 25  # Steps between evaluations.
JUDGES = verdict.BELIEFS
POLICIES = (
  "by-verifier",
  *(f"by-{belief}" for belief in JUDGES),
  "itself",
  "by-truth-kl",
  "by-marks-verifier",
)
ARMS = (*JUDGES, *POLICIES)
_KL = 0.05


def get_config(name: str) -> ml_collections.ConfigDict:
  """The config of an arm.

  Raises:
    ValueError: No arm has this name.
  """
  if name not in ARMS:
    raise ValueError(f"arms: no arm {name!r}; choose one of {', '.join(ARMS)}.")
  config: Any = judge.get_config(_plain(name))
  if name.endswith("-kl"):
    config.algorithm.kl_coef = _KL
  if name.endswith("-verifier") and name in POLICIES[1:]:
    config.rewards.weights = (0.5, 0.5)
  if name in POLICIES:
    config.eval.every = EVERY
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  config.log.traces_every = 0
  return config


def follows_on(name: str, root: pathlib.Path) -> list[str]:
  """Overrides that name the judge of an arm, of its own seed."""
  belief = _plain(name).removeprefix("by-")
  if name in JUDGES or belief not in JUDGES:
    return []
  return [f"--config.judge.model={root}/{belief}/seed={{seed}}"]


def _plain(name: str) -> str:
  """The argument of `configs/judge.py`."""
  if name == POLICIES[0]:
    return name
  return name.removesuffix("-kl").removesuffix("-verifier")


def sweep(add: Callable[..., None], name: str) -> None:
  """The cells of an arm."""
  del name
  for seed in SEEDS:
    add(seed=seed)

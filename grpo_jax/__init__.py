"""grpo_jax: GRPO, its descendants and PPO in JAX.

    import grpo_jax

    config = grpo_jax.default_config("gspo")
    grpo_jax.train(config, "runs/mine")
    with grpo_jax.load("runs/mine") as run:
      print(grpo_jax.evaluate(run), grpo_jax.sample(run, "dcba="))

The names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_WHERE = {
  "train": "training.loop",
  "load": "training.runs",
  "load_checkpoint": "training.runs",
  "sample": "training.api",
  "evaluate": "training.api",
  "default_config": "training.config",
  "phase_config": "training.config",
  "algorithm_config": "training.config",
  "ALGORITHMS": "algorithms",
  "get_algorithm": "algorithms",
}
__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
  if name not in _WHERE:
    raise AttributeError(
      f"module 'grpo_jax' has no attribute {name!r}; public are"
      f" {', '.join(_WHERE)}."
    )
  return getattr(importlib.import_module(f"grpo_jax.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
  return sorted(__all__)

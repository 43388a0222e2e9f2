"""grpo_jax: GRPO, its descendants and PPO in JAX.

    import grpo_jax as g

    config = g.config("quickstart", "gspo", **{"rl.steps": 50})
    run = g.train(config)
    print(run.evaluate(), run.sample("dcba="))

docs/python.md has the rest. The public names are loaded at their first use.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_WHERE = {
  "config": "settings.overrides",
  "train": "api",
  "load": "api",
  "load_checkpoint": "api",
  "Run": "handle",
  "default_config": "settings.config",
  "phase_config": "settings.config",
  "algorithm_config": "settings.config",
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

"""The runs of arms: their settings, with the runs that they follow on."""

from __future__ import annotations

import ast
import pathlib
from types import ModuleType

from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides
from grpo_jax.settings.config import RunConfig


def of_arm(arms: ModuleType, name: str, size: str = "") -> RunConfig:
  """Makes the run of seed 3 of an arm; the folder of all runs is `root`.

  Args:
    arms: The module with the arms of an experiment.
    name: The arm.
    size: Its size; empty for the default one.
  """
  config = arms.get_config(f"{name}@{size}" if size else name)
  for override in arms.follows_on(name, pathlib.Path("root")):
    setting, _, value = override.removeprefix("--config.").partition("=")
    given = ast.literal_eval(value) if value.startswith("(") else value
    overrides.apply(config, {setting: given})
  config.seed = 3
  return config_lib.resolve(config)

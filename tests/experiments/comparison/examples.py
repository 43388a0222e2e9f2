"""Runs that are files alone, as a training leaves them."""

from __future__ import annotations

import functools
import json
import pathlib

from grpo_jax.configs import quickstart
from grpo_jax.training.runtime import log as log_lib


@functools.cache
def _config(algorithm: str) -> str:
  return quickstart.get_config(algorithm).to_json()


def make(
  folder: pathlib.Path,
  values: list[float],
  algorithm: str = "grpo",
  task: str = "sort",
  seed: int = 0,
  ended: bool = True,
  **settings: float,
) -> pathlib.Path:
  """Makes a run with these accuracies, and 100 tokens and 2 s a step."""
  folder.mkdir(parents=True)
  config = json.loads(_config(algorithm))
  config["data"]["name"], config["seed"] = task, seed
  config["algorithm"] |= settings
  log_lib.write_json(folder / log_lib.CONFIG, config)
  with log_lib.MetricsLog(folder) as log:
    log.write(10, "rl", {"eval/accuracy": values[0]})
    for step, value in enumerate(values[1:], start=11):
      numbers = {"eval/accuracy": value, "tokens/generated": 100.0 + seed}
      times = {"time/step_s": 3.0, "time/compile_s": 1.0}
      log.write(step, "rl", numbers | times)
    if ended:
      log.write_result(10, None, {"eval/accuracy": values[-1]}, 8)
  return folder

"""What the runs leave behind, and the numbers that are made of it.

| in the root          | content                                              |
|----------------------|------------------------------------------------------|
| `base/run`           | the run of the base                                  |
| a folder for each arm| a sweep of seeds                                     |
| `kept/kept.jsonl`    | right completions of an arm, for the smaller model   |
"""

from __future__ import annotations

import functools
import json
import pathlib

import numpy as np

from experiments.stages import arms as arms_lib
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import cells as cells_lib
from grpo_jax.training import generation, metrics_log

NUM_DRAWN = 4096  # Prompts of which completions are kept.


def base(root: pathlib.Path) -> pathlib.Path:
  """The run that arms begin with."""
  return root / arms_lib.BASE / "run"


def kept(root: pathlib.Path) -> pathlib.Path:
  """The completions that the smaller model imitates."""
  return root / arms_lib.KEPT / "kept.jsonl"


def num_drawn(root: pathlib.Path) -> int | None:
  """Tokens that were drawn for these; None while some are missing."""
  path = generation.position_of(kept(root))
  if not path.exists():
    return None
  done = json.loads(path.read_text("utf-8"))["done"]
  return done["tokens"] if done["prompts"] == NUM_DRAWN else None


class Results:
  """All that has ended in a root."""

  def __init__(self, root: pathlib.Path):
    self.root = root
    self.arms = [
      name for name in arms_lib.ARMS if sweeps_lib.has_ended(root / name)
    ]

  @functools.cached_property
  def base_accuracy(self) -> float:
    """Of the base; NaN while it is missing."""
    found = cells_lib.read_result(base(self.root))
    return float("nan") if found is None else found["after"]["eval/accuracy"]

  def curve(self, arm: str) -> tuple[np.ndarray, np.ndarray]:
    """What each seed has generated, and how often it is right.

    Returns:
      Tokens [S, N] that were drawn in training until an evaluation, and the
      held-out accuracy [S, N] there. The first one is before reinforcement.
    """
    folder = self.root / arm
    tokens, accuracy = [], []
    for name in cells_lib.read_manifest(folder):
      drawn, points = 0.0, []
      for line in metrics_log.read_lines(folder / name / metrics_log.METRICS):
        drawn += line.get("tokens/generated") or 0.0
        if "eval/accuracy" in line:
          points.append((drawn, line["eval/accuracy"]))
      tokens.append([x for x, _ in points])
      accuracy.append([x for _, x in points])
    return np.array(tokens), np.array(accuracy)

  def scores(self, arm: str, when: str) -> np.ndarray | None:
    """Held-out accuracy of each seed [S]; None while the arm is missing.

    Args:
      arm: One of `ARMS`.
      when: "before" or "after" reinforcement.
    """
    if arm not in self.arms:
      return None
    return self.curve(arm)[1][:, 0 if when == "before" else -1]

  def seconds(self) -> float:
    """Of all starts of everything."""
    names = (*self.arms, arms_lib.BASE, arms_lib.KEPT)
    return float(
      np.nansum([sweeps_lib.seconds(self.root / name) for name in names])
    )

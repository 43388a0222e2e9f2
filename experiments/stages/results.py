"""Records of the runs, and the numbers computed from them.

| in the root           | content                                            |
|-----------------------|----------------------------------------------------|
| `base/run`            | the run of the base                                |
| a folder for each arm | a sweep of seeds                                   |
| `kept/kept.jsonl`     | right completions of an arm, for the smaller model |

`ARM.json` has for each seed the tokens that were drawn until each evaluation,
and the share of right answers there. `base.json` has that share alone, and
`kept.json` the tokens that were drawn for the smaller model. All of them have
the seconds.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

from experiments.stages import arms as arms_lib
from experiments.sweeps import arms as sweeps_lib
from grpo_jax.training.evaluation import generation

NUM_DRAWN = 4096  # Prompts of which completions are kept.


def base(root: pathlib.Path) -> pathlib.Path:
  """The run that arms begin with."""
  return root / arms_lib.BASE / "run"


def kept(root: pathlib.Path) -> pathlib.Path:
  """The completions that the smaller model imitates."""
  return root / arms_lib.KEPT / "kept.jsonl"


def num_drawn(root: pathlib.Path) -> int | None:
  """Number of tokens drawn for these; None while some are missing."""
  path = generation.position_of(kept(root))
  if not path.exists():
    return None
  done = json.loads(path.read_text("utf-8"))["done"]
  return done["tokens"] if done["prompts"] == NUM_DRAWN else None


def of_run(lines: list[dict[str, Any]]) -> list[list[float]]:
  """[Tokens drawn until then, right answers] of each evaluation of a run."""
  drawn, points = 0.0, []
  for line in lines:
    drawn += line.get("tokens/generated") or 0.0
    if "eval/accuracy" in line:
      points.append([drawn, round(line["eval/accuracy"], 4)])
  return points


class Results:
  """Results of the runs that have left numbers in a folder."""

  def __init__(self, folder: pathlib.Path):
    self._found = sweeps_lib.recorded(
      folder, (arms_lib.BASE, arms_lib.KEPT, *arms_lib.ARMS)
    )

  @property
  def arms(self) -> list[str]:
    return [name for name in self._found if name in arms_lib.ARMS]

  @property
  def base_accuracy(self) -> float:
    """Accuracy of the base; NaN while the base is missing."""
    return self._found.get(arms_lib.BASE, {"accuracy": np.nan})["accuracy"]

  @property
  def num_drawn(self) -> int:
    """Tokens drawn for the smaller model; 0 while some are missing."""
    return self._found.get(arms_lib.KEPT, {"tokens": 0})["tokens"]

  def curve(self, arm: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens drawn by each seed, and its accuracy.

    Returns:
      Tokens [S, N] that were drawn in training until an evaluation, and the
      held-out accuracy [S, N] there. The first one is before reinforcement.
    """
    points = np.array(self._found[arm]["seeds"], float)
    return points[..., 0], points[..., 1]

  def scores(self, arm: str, when: str) -> np.ndarray | None:
    """Held-out accuracy of each seed [S]; None while the arm is missing.

    Args:
      arm: One of `ARMS`.
      when: "before" or "after" reinforcement.
    """
    if arm not in self._found:
      return None
    return self.curve(arm)[1][:, 0 if when == "before" else -1]

  def seconds(self) -> float:
    """Seconds of all starts of all runs."""
    return float(np.nansum([x["seconds"] for x in self._found.values()]))

"""Records of the runs, and the numbers computed from them.

| in the root           | content                                           |
|-----------------------|---------------------------------------------------|
| `bandit-NAME.json`    | `{"seconds", "regrets"}` of all seeds             |
| a folder for each arm | a sweep; `output.txt`, its output; `seconds.json` |
"""

from __future__ import annotations

import datetime
import json
import pathlib
import re

import numpy as np

from experiments.objectives import arms as arms_lib
from experiments.objectives import bandit
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import cells as cells_lib
from experiments.sweeps import groups as groups_lib
from grpo_jax.training.runtime import log

BANDITS = ("grpo", "mo_grpo", "gdpo")
REGRETS = ("quiet regret", "loud regret")
EXPLOITED = "exploited"  # Answers that the bug accepts, and nothing else does.
WARNED = "warned"  # 1 where the log doubts the scores of a run.
_EVERY = 5  # Steps of the bandit between numbers that are kept.


def bandit_path(root: pathlib.Path, name: str) -> pathlib.Path:
  return root / f"bandit-{name}.json"


def write_bandit(
  root: pathlib.Path, name: str, regrets: np.ndarray, seconds: float
) -> None:
  """Writes regrets [S, steps + 1, 2], of every fifth step."""
  kept = regrets[:, ::_EVERY].round(5).tolist()
  text = {"seconds": round(seconds, 1), "regrets": kept}
  log.write_json(bandit_path(root, name), text)


def warned(output: str) -> set[str]:
  """The folders of runs that a warning about perfect scores is about."""
  found = set()
  for line in output.splitlines():
    if "Suspicious by default" in line:
      found |= {*re.findall(r"([^/\s]+)/samples\.jsonl", line)}
  return found


class Results:
  """Results of the runs in a root that have ended."""

  def __init__(self, root: pathlib.Path):
    self._root = root
    self.arms = [
      name for name in arms_lib.ARMS if sweeps_lib.has_ended(root / name)
    ]
    self.bandits = [
      name for name in BANDITS if bandit_path(root, name).exists()
    ]

  def regrets(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps [N] and regrets [S, N, 2] of an algorithm on the bandit."""
    path = bandit_path(self._root, name)
    found = np.array(json.loads(path.read_text("utf-8"))["regrets"])
    return _EVERY * np.arange(found.shape[1]), found

  def curve(self, arm: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps [N] and values [S, N] of a metric of the log."""
    [group], _ = groups_lib.collect(self._root / arm, metric)
    steps = group.curves[0][0]
    return steps, np.array([values for _, values in group.curves])

  def scores(self, arm: str, metric: str, when: str) -> np.ndarray | None:
    """Returns a score of each seed.

    Args:
      arm: `bandit-NAME`, or one of `ARMS`.
      metric: For a bandit, a name in `REGRETS`; for an arm, `EXPLOITED`,
        `WARNED` or a held-out reward.
      when: "before" or "after" the phase "rl".

    Returns:
      [S]; None if the arm has not ended.
    """
    bandit_name = arm.removeprefix("bandit-")
    if bandit_name != arm:
      if bandit_name not in self.bandits:
        return None
      _, regrets = self.regrets(bandit_name)
      return regrets[:, 0 if when == "before" else -1, REGRETS.index(metric)]
    if arm not in self.arms:
      return None
    if metric == EXPLOITED:
      of = [
        self._held_out(arm, x, when) for x in ("accuracy_buggy", "accuracy")
      ]
      return of[0] - of[1]
    if metric == WARNED:
      text = (self._root / arm / sweeps_lib.OUTPUT).read_text("utf-8")
      names = cells_lib.read_manifest(self._root / arm)
      return np.array([float(name in warned(text)) for name in names])
    return self._held_out(arm, metric, when)

  def _held_out(self, arm: str, metric: str, when: str) -> np.ndarray:
    folder = self._root / arm
    return np.array(
      [
        cells_lib.read_result(folder / name)[when][f"eval/reward/{metric}"]
        for name in cells_lib.read_manifest(folder)
      ]
    )

  def seconds(self, arm: str) -> float:
    """Seconds of all starts of an arm, with compilation and evaluation."""
    bandit_name = arm.removeprefix("bandit-")
    if bandit_name != arm:
      path = bandit_path(self._root, bandit_name)
      return json.loads(path.read_text("utf-8"))["seconds"]
    return sweeps_lib.seconds(self._root / arm)

  def all_seconds(self) -> float:
    every = [*(f"bandit-{name}" for name in self.bandits), *self.arms]
    return sum(map(self.seconds, every))

  def date(self) -> str:
    """Day on which the last run ended, YYYY-MM-DD."""
    paths = [bandit_path(self._root, name) for name in self.bandits]
    paths += [self._root / arm / sweeps_lib.SECONDS for arm in self.arms]
    last = max(path.stat().st_mtime for path in paths)
    return datetime.date.fromtimestamp(last).isoformat()


def num_seeds(arm: str) -> int:
  """Number of seeds of an arm or a bandit."""
  is_bandit = arm.startswith("bandit-")
  return bandit.NUM_SEEDS if is_bandit else arms_lib.NUM_SEEDS

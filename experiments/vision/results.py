"""Record of an arm, and the numbers computed from it.

`ARM.json` has for each seed and each domain of held-out prompts the share of
right answers and the mean overlap with the right answer: of GRPO before its
first step and after its last, of imitation after its last. The file also has
the seconds of all seeds together.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.sweeps import arms as sweeps_lib
from experiments.vision import arms

_REWARD = "eval/domain/{}/reward"  # Half the accuracy and half the overlap.
_ACCURACY = "eval/domain/{}/accuracy"


def of_run(lines: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
  """Domain -> "accuracy" and "overlap" of each evaluation, from a run's log."""
  found: dict[str, dict[str, list[float]]] = {}
  for domain in arms.DOMAINS:
    accuracy, reward = (
      [line[name] for line in lines if name in line]
      for name in (_ACCURACY.format(domain), _REWARD.format(domain))
    )
    found[domain] = {
      "accuracy": [round(x, 4) for x in accuracy],
      "overlap": [
        round(2 * y - x, 4) for x, y in zip(accuracy, reward, strict=True)
      ],
    }
  return found


class Results(sweeps_lib.Recorded):
  """The arms that have ended, by name."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder, arms.ARMS)

  def scores(
    self, arm: str, domains: Sequence[str], what: str = "accuracy"
  ) -> np.ndarray | None:
    """Mean over domains at the end, of each seed [S].

    Args:
      arm: Name in `arms.ARMS`; `base` is the warm start, which GRPO's runs have
        evaluated.
      domains: Names in `arms.DOMAINS`.
      what: "accuracy" or "overlap".

    Returns:
      The means; None while the arm is missing.
    """
    place = 0 if arm == arms.BASE else -1
    arm = arms.GRPO if arm == arms.BASE else arm
    if arm not in self._found:
      return None
    return np.array(
      [
        np.mean([seed[domain][what][place] for domain in domains])
        for seed in self._found[arm]["seeds"]
      ]
    )

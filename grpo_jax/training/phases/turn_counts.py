"""What is counted of the turns of episodes whose environment is on the host."""

from __future__ import annotations

import numpy as np

_SHOWN = 8  # Turns with numbers of their own.
_LATER = "later"
_COUNTS = ("calls", "blocked", "failed", "tokens", "observed")


class TurnCounts:
  """Sums over the rows of a process, of each of the first turns.

  Those of all later turns are added up. The names are there whatever happens,
  so that several processes have the same ones.
  """

  def __init__(self, max_turns: int):
    """Nothing is counted yet.

    Args:
      max_turns: Most turns of an episode.
    """
    shown = min(max_turns, _SHOWN)
    self._names = [str(turn) for turn in range(shown)]
    if max_turns > shown:
      self._names.append(_LATER)
    self._sums = {
      name: np.zeros(len(self._names)) for name in (*_COUNTS, "seconds")
    }

  def add(self, name: str, turn: int, amount: float = 1.0) -> None:
    """Adds to "calls", "blocked", "failed", "tokens" or "observed".

    "seconds" too, from a question to its answer.
    """
    self._sums[name][min(turn, len(self._names) - 1)] += amount

  def metrics(self) -> dict[str, float]:
    """By their names in the log; seconds are means over the calls."""
    found = {
      f"turn/{turn}/{name}": float(self._sums[name][place])
      for name in _COUNTS
      for place, turn in enumerate(self._names)
    }
    calls = np.maximum(self._sums["calls"], 1)
    means = self._sums["seconds"] / calls
    return found | {
      f"time/answer_s/{turn}": float(mean)
      for turn, mean in zip(self._names, means, strict=True)
    }

"""What is done about rows that no verifier could score.

A row that fails alone is left out of the loss. A verifier that fails on most
rows has a defect, and a run that goes on trains on the rest, or on nothing.
"""

from __future__ import annotations

import collections
import logging
import re
from collections.abc import Mapping, Sequence

from grpo_jax.training import escapes, hosts

# Steps in a row: one may be the fault of a machine that was busy.
PATIENCE = 3
_NUM_SHOWN = 3  # Messages of a step that are logged.


class Complaints:
  """Messages of verifiers: logged, and counted by what they say."""

  def __init__(self):
    self._counts: collections.Counter[str] = collections.Counter()

  def log(self, what: str, messages: Sequence[str]) -> None:
    """Logs messages of failed rows.

    Args:
      what: Has failed.
      messages: Some of them; text of a verifier, which may quote a completion.
    """
    for message in messages:
      text = escapes.escaped(message)
      logging.warning("%s%s: %s", hosts.label(), what, text)
      self._counts[re.sub(r"^row \d+: ", "", text)] += 1

  def commonest(self) -> str:
    """The message that was heard most often; empty if there was none."""
    return next((text for text, _ in self._counts.most_common(1)), "")


def some(messages: Mapping[int, str]) -> list[str]:
  """The messages of a few rows, with their numbers."""
  return [f"row {row}: {text}" for row, text in messages.items()][:_NUM_SHOWN]


class Patience:
  """Counts steps in which too many rows were unscored.

  Attributes:
    exhausted: There have been `PATIENCE` of them, one after another.
  """

  def __init__(self, max_unscored: float):
    """Begins to count.

    Args:
      max_unscored: Share of rows, as `RewardsConfig` has it.
    """
    self._max_unscored = max_unscored
    self._steps: list[str] = []

  @property
  def exhausted(self) -> bool:
    return len(self._steps) >= PATIENCE

  def step(
    self, step: int, metrics: Mapping[str, float], num_rows: int
  ) -> None:
    """Looks at the metrics of a step that drew so many rows, if it drew any."""
    count = metrics.get("unscored", 0.0)
    if self.exhausted:
      return
    if count > self._max_unscored * num_rows:
      self._steps.append(f"{count:.0f} of {num_rows} in step {step}")
    else:
      self._steps.clear()

  def check(self, complaints: Complaints) -> None:
    """Raises once it is exhausted.

    Raises:
      ValueError: Says how many rows were unscored, and why most of them.
    """
    if self.exhausted:
      why = complaints.commonest()
      raise ValueError(
        f"{', '.join(self._steps)}: so many rows could not be scored; allowed"
        f" is a share of config.rewards.max_unscored={self._max_unscored:g}."
        + (f" The commonest error: {why}" if why else _NO_ERROR)
        + " The run is saved. Correct the verifier, and start it again with the"
        " same command; or set --config.rewards.max_unscored."
      )


_NO_ERROR = (
  " No verifier of this process failed: their rewards did not apply (None), or"
  " were infinite."
)


def excess(
  num_unscored: float, num_rows: int, max_unscored: float
) -> str | None:
  """Why an evaluation says nothing of the policy; None if it does."""
  if num_unscored <= max_unscored * num_rows:
    return None
  return (
    f"{num_unscored:.0f} of {num_rows} completions could not be scored; allowed"
    f" is a share of config.rewards.max_unscored={max_unscored:g}"
  )

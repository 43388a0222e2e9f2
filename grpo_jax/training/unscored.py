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


def too_many(
  numbers: Mapping[str, float], max_unscored: float, why: str
) -> str:
  """What a run ends with that the rule `too_many_unscored` has stopped.

  Args:
    numbers: Of its alarm: "rows" of a batch, and unscored ones by "step N".
    max_unscored: Share of rows, as `RewardsConfig` has it.
    why: The commonest message of verifiers; empty if there was none.
  """
  rows = numbers["rows"]
  steps = [
    f"{count:.0f} of {rows:.0f} in {step}"
    for step, count in numbers.items()
    if step != "rows"
  ]
  return (
    f"{', '.join(steps)}: so many rows could not be scored; allowed is a share"
    f" of config.rewards.max_unscored={max_unscored:g}."
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

"""Messages about rows that no verifier could score.

A row that fails alone is left out of the loss. A verifier that fails on most
rows has a defect, and a run that goes on trains on the rest, or on nothing.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Mapping

from grpo_jax.training.runtime import files, hosts

_NUM_SHOWN = 3  # Different messages of a step that are logged.
_NUM_KEPT = 10_000  # Different messages that are counted: some quote a row.


class Complaints:
  """Messages of verifiers: logged, and counted by their text."""

  def __init__(self):
    self._counts: collections.Counter[tuple[str, str]] = collections.Counter()

  def log(self, what: str, messages: Mapping[int, str]) -> None:
    """Logs messages of failed rows: each new one, and then each tenfold count.

    A broken verifier gives the same message for each row of each step.

    Args:
      what: The failure, as the beginning of the line.
      messages: Message of each row, by its number; text of a verifier, which
        may quote a completion.
    """
    rows: dict[str, list[int]] = {}
    for row, message in messages.items():
      rows.setdefault(files.escaped(message), []).append(row)
    num_logged = 0
    for text, of_text in rows.items():
      key = what, text
      before = self._counts[key]
      count = before + len(of_text)
      if before or len(self._counts) < _NUM_KEPT:
        self._counts[key] = count
      is_new = not before or len(str(count)) > len(str(before))
      if not is_new or num_logged == _NUM_SHOWN:
        continue
      num_logged += 1
      where = f"row {of_text[0]}"
      if count > 1:
        where += f" ({count} rows by now)"
      logging.warning("%s%s, %s: %s", hosts.label(), what, where, text)

  def commonest(self) -> str:
    """The most frequent message; empty if there was none."""
    by_text: collections.Counter[str] = collections.Counter()
    for (_, text), count in self._counts.items():
      by_text[text] += count
    return next((text for text, _ in by_text.most_common(1)), "")


def too_many(
  numbers: Mapping[str, float], max_unscored: float, why: str, last: str
) -> str:
  """The message for a run that the rule `too_many_unscored` has stopped.

  Args:
    numbers: Numbers of its alarm: "rows" of a batch, and unscored ones by "step
      N".
    max_unscored: Share of rows (`config.rewards.max_unscored`).
    why: The commonest message of verifiers; empty if there was none.
    last: A sentence about the last checkpoint.
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
    + f" {last} Correct the verifier, and start the run again with the same"
    " command; or set --config.rewards.max_unscored."
  )


_NO_ERROR = (
  " No verifier of this process failed: their rewards did not apply (None), or"
  " were infinite."
)


def excess(
  num_unscored: float, num_rows: int, max_unscored: float
) -> str | None:
  """The reason why an evaluation has too few scores; None if it has enough."""
  if num_unscored <= max_unscored * num_rows:
    return None
  return (
    f"{num_unscored:.0f} of {num_rows} completions could not be scored; allowed"
    f" is a share of config.rewards.max_unscored={max_unscored:g}"
  )

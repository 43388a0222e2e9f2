"""Contexts of episodes on the host: when a summary is due, and what follows it.

The device writes ids and knows nothing of turns (`rollout/host_contexts.py`).
Here are the turns of each episode: what was read, what was done, which
observation is held back while a summary is written. All of it is ids: what a
next context begins with are the very tokens of the one before, and no text is
encoded twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.rollout import host_contexts
from grpo_jax.types import HostCompaction

Ids = tuple[int, ...]


class Pair(NamedTuple):
  """A turn after the first one: an observation, and the action after it."""

  observation: Ids
  action: Ids

  @property
  def size(self) -> int:
    return len(self.observation) + len(self.action)


class _Episode:
  """One episode.

  Attributes:
    first: Ids of its first prompt.
    prompt_size: Tokens that its context began with.
    read: What the action that comes next answers; None in the first turn.
    held: What is read when the next context begins; None if nothing waits.
    pairs: Its turns.
    turns: Actions since the context began.
    number: Of the context, from 0.
    summarizes: A summary is written.
    opening: What the next context begins with, until it is taken.
  """

  def __init__(self, first: Ids):
    self.first = first
    self.prompt_size = len(first)
    self.read: Ids | None = None
    self.held: Ids | None = None
    self.pairs: list[Pair] = []
    self.turns = 0
    self.number = 0
    self.summarizes = False
    self.opening: Ids | None = None


class Contexts:
  """The contexts of the episodes of this process."""

  def __init__(
    self,
    compaction: HostCompaction,
    prompts: Sequence[Sequence[int]],
    num_slots: int,
  ):
    """All episodes are in their first context.

    Args:
      compaction: When they are not any more.
      prompts: Ids of each first prompt.
      num_slots: T, of what follows a prompt.
    """
    self._compaction = compaction
    self._num_slots = num_slots
    self._episodes = [_Episode(tuple(map(int, ids))) for ids in prompts]

  def room(self, row: int) -> int:
    """Tokens that may follow what the context begins with."""
    size = self._compaction.context_len - self._episodes[row].prompt_size
    return min(max(size, 1), self._num_slots)

  def summarizes(self, row: int) -> bool:
    """Whether what it writes is a summary, and no action."""
    return self._episodes[row].summarizes

  def acted(self, row: int, action: Sequence[int]) -> None:
    """Notes an action that is whole."""
    episode = self._episodes[row]
    episode.turns += 1
    if episode.read is not None:  # It answers more than the first prompt.
      episode.pairs.append(Pair(episode.read, tuple(map(int, action))))
      del episode.pairs[: -self._compaction.keep_turns or None]

  def to_read(
    self, row: int, observation: Sequence[int], size: int
  ) -> tuple[Ids, bool]:
    """What is read after an action, and whether it asks for a summary.

    Args:
      row: The episode.
      observation: What the environment has said; held back if one is due.
      size: Tokens of the completion so far.
    """
    compaction, episode = self._compaction, self._episodes[row]
    said = tuple(map(int, observation))
    episode.read = said
    is_due = self.room(row) - size - len(said) < compaction.reserve
    if compaction.every:
      is_due |= episode.turns >= compaction.every
    if not is_due or episode.number >= compaction.max_compactions:
      return said, False
    episode.held, episode.summarizes, episode.turns = said, True, 0
    return compaction.instruction, True

  def summarized(self, row: int, summary: Sequence[int]) -> None:
    """Puts the next context together, once a summary has come to its end."""
    compaction, episode = self._compaction, self._episodes[row]
    assert episode.held is not None
    opening = episode.first[: compaction.head_len]
    before, after = compaction.resume
    told = (*before, *map(int, summary[:-1]), *after)
    # Also if it is dropped: an ablation keeps the same turns.
    size = len(opening) + len(told)
    if compaction.keeps_summary:
      opening += told
    most = min(
      compaction.prompt_len,
      compaction.context_len - compaction.reserve - len(episode.held),
    )
    kept: list[Pair] = []
    for pair in reversed(episode.pairs):
      size += pair.size
      if size > most or len(kept) == compaction.keep_turns:
        break
      kept.append(pair)
    for pair in reversed(kept):
      opening += pair.observation + pair.action
    episode.opening = opening

  def open(self) -> host_contexts.Openings:
    """Begins the contexts that are ready; NumPy arrays."""
    num_slots = self._compaction.prompt_len
    shape = len(self._episodes), num_slots
    fields: dict[str, Any] = {
      "tokens": np.zeros(shape, np.int32),
      "mask": np.zeros(shape, bool),
      "came": np.zeros(shape[0], bool),
    }
    for row, episode in enumerate(self._episodes):
      if (ids := episode.opening) is None:
        continue
      fields["tokens"][row, num_slots - len(ids) :] = ids
      fields["mask"][row, num_slots - len(ids) :] = True
      fields["came"][row] = True
      episode.prompt_size = len(ids)
      episode.number += 1
      episode.summarizes, episode.opening = False, None
    return host_contexts.Openings(**fields)

  def resumed(self) -> dict[int, Ids]:
    """What the contexts go on with that have begun since the last time."""
    found = {}
    for row, episode in enumerate(self._episodes):
      if episode.held is not None and not episode.summarizes:
        found[row], episode.held = episode.held, None
    return found

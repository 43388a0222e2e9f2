"""Sessions behind an interceptor: what is blocked never reaches a tool.

The interceptor is asked in the process that trains, and not in that of a
session, which may run what a policy wrote. A blocked call is not told to the
session: the policy reads the dummy observation, and the episode goes on.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_jax.rewards.agents import interceptor as interceptor_lib
from grpo_jax.rewards.workers import pool, sessions
from grpo_jax.rewards.workers.session_worker import Answer

EVENTS = interceptor_lib.Event._fields
_CONTEXT = 4096  # Last characters of what was read and written before.


class GuardedSessions:
  """Sessions with the methods of `sessions.HostSessions`, and a guard."""

  def __init__(
    self,
    inner: sessions.HostSessions,
    interceptor: interceptor_lib.Interceptor,
    close: Callable[[], None] = lambda: None,
  ):
    """Takes the sessions over.

    Args:
      inner: Whom calls are told that pass.
      interceptor: Who decides.
      close: Called at the end, after that of the sessions.
    """
    self._inner = inner
    self._interceptor = interceptor
    self._close = close

  def close(self) -> None:
    """Ends the sessions and their workers. May be called again."""
    self._inner.close()
    self._close()

  def begin(
    self,
    prompts: Sequence[str],
    extras: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
  ) -> GuardedEpisodes:
    """One episode for each row, as there."""
    episodes = self._inner.begin(prompts, extras, seeds)
    return GuardedEpisodes(episodes, self._interceptor, prompts)

  def score_names(self, prompt: str, extras: Mapping[str, Any]) -> list[str]:
    """Names of the scores, with those of the interceptor.

    Raises:
      ValueError: There is no such session, or a score of its own has the name
        of one of the interceptor's.
    """
    names = self._inner.score_names(prompt, extras)
    if taken := sorted({*names} & {*EVENTS}):
      raise ValueError(
        f"config.interceptor: the environment {self._inner.path!r} has scores"
        f" {taken} of its own, and so has an interceptor; rename them there, or"
        " leave config.interceptor.rules empty."
      )
    return sorted([*names, *EVENTS])


class GuardedEpisodes(sessions.Asked):
  """Episodes with the methods of `sessions.Episodes`, and four more scores.

  These scores are numbers of actions of the episode: those that were "flagged",
  "judged", "blocked" and "unjudged"; see `interceptor.Event`.
  """

  def __init__(
    self,
    inner: sessions.Episodes,
    interceptor: interceptor_lib.Interceptor,
    prompts: Sequence[str],
  ):
    self.scores: dict[int, dict[str, float | None]] = {}
    self.blocked: set[int] = set()
    self._inner = inner
    self._interceptor = interceptor
    self._contexts = dict(enumerate(prompts))
    self._counts = [collections.Counter[str]() for _ in prompts]
    self._actions: dict[int, str] = {}
    self._dummies: dict[int, Answer | None] = {}
    self._ended: set[int] = set()  # By a blocked call; scores are awaited.

  @property
  def failures(self) -> pool.Failures:
    """Rows that have failed; their episodes are over."""
    return self._inner.failures

  @property
  def pending(self) -> frozenset[int]:
    return self._inner.pending | self._dummies.keys()

  def ask(self, actions: Mapping[int, tuple[str | None, bool]]) -> None:
    """Asks for answers to what passes; a blocked call has one already."""
    guard = self._interceptor
    texts = {row: x for row, (x, _) in actions.items() if x is not None}
    self._actions |= texts
    passed = dict(actions)
    found = self._blocked(texts)
    self.blocked = (self.blocked - texts.keys()) | found
    for row in found:
      if actions[row][1] or guard.abort:
        passed[row] = None, True
        self._ended.add(row)
      else:
        passed.pop(row)
        self._dummies[row] = Answer(guard.dummy, -guard.penalty, False, None)
    self._inner.ask(passed)

  def poll(self, timeout_s: float) -> dict[int, Answer | None]:
    dummies, self._dummies = self._dummies, {}
    found = self._inner.poll(0.0 if dummies else timeout_s) | dummies
    for row, answer in found.items():
      if row in self._ended and answer is not None:
        penalty = self._interceptor.penalty
        found[row] = Answer("", -penalty, True, answer.scores)
    self._settle()
    for row, answer in found.items():
      if answer is not None:
        said = answer.observation
        text = self._actions.pop(row, "")
        text += said if isinstance(said, str) else "".join(said)
        self._contexts[row] = (self._contexts[row] + text)[-_CONTEXT:]
    return found

  def fail(self, row: int, message: str) -> None:
    """Ends an episode whose session has said what nothing can be made of."""
    self.scores.pop(row, None)
    self._inner.fail(row, message)

  def _blocked(self, actions: Mapping[int, str]) -> set[int]:
    """The rows whose calls are not executed; counts what was decided."""
    rows = list(actions)
    events = self._interceptor.decide(
      list(actions.values()), [self._contexts[row] for row in rows]
    )
    blocked = set()
    for row, event in zip(rows, events, strict=True):
      self._counts[row].update(event._asdict())
      if event.blocked:
        blocked.add(row)
    return blocked

  def _settle(self) -> None:
    """Adds the interceptor's counts to scores that have come."""
    for row, scores in self._inner.scores.items():
      if row not in self.scores and not self.failures.failed[row]:
        counts = self._counts[row]
        self.scores[row] = scores | {x: float(counts[x]) for x in EVENTS}


# With an interceptor or without.
Sessions = sessions.HostSessions | GuardedSessions
Episodes = sessions.Episodes | GuardedEpisodes

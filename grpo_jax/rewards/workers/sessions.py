"""Sessions of a host environment, in processes that can be killed.

`types.HostEnvironment` defines a session. A row's session lives in one worker,
in a process of its own (`session_worker.py`). An exception, a hang, a process
that ends or an invalid number ends the episode of that row as failed: it is
unscored and never rewarded. The other rows and the run go on.

No row waits for the slowest. A row's action is sent when it is ready (`ask`),
and answers are taken as they come (`poll`). A worker has several sessions at
work, up to `concurrency`.

`GuardedSessions` puts an interceptor before sessions: a blocked call never
reaches a tool. The interceptor runs in the process that trains, and not in that
of a session, which may run a policy's code. A session is not told of a blocked
call: the policy reads the dummy observation, and the episode goes on.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from grpo_jax.rewards.agents import interceptor as interceptor_lib
from grpo_jax.rewards.workers import frames, pool, session_worker
from grpo_jax.rewards.workers.session_worker import (
  Beginning,
  SessionAnswer,
  SessionRequest,
)

# Between the deadline of a session, which its worker checks, and the worker's.
_SLACK_S = 10.0


class HostSessions:
  """Workers that run sessions. Not reentrant.

  ```
  with HostSessions("package.module:make") as sessions:
    episodes = sessions.begin(prompts, extras, seeds)
    episodes.ask({0: ("<tool>1+2</tool>", False), 1: ("<tool>3", False)})
    while episodes.pending:
      answers = episodes.poll(timeout_s=1.0)  # Of row 0, of row 1, or of both.
    scores = episodes.end([0, 1])
  ```
  """

  def __init__(
    self,
    path: str,
    row_timeout_s: float = 10.0,
    step_timeout_s: float = 120.0,
    num_workers: int = 2,
    variables: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    concurrency: int = 16,
  ):
    """Starts the workers and waits until they have imported everything.

    Args:
      path: "package.module:function", the factory of sessions.
      row_timeout_s: Seconds for the answer to one action; for the first also
        for the making of the session, for the last also for the scores.
      step_timeout_s: Seconds to wait for answers in a rollout.
      num_workers: Number of processes with sessions.
      variables: Names of environment variables that sessions get besides those
        of `processes.VARIABLES`.
      options: Arguments of the factory after its first three, by name; plain
        data.
      concurrency: Sessions that each worker has at work at the same time, at
        least 1. It is 1 if the factory has a true attribute `serial`, for
        example because its sessions share a tool.

    Raises:
      ValueError: The factory cannot be imported, does not take the options, or
        a number is out of range.
      RuntimeError: A worker could not import what the parent could.
    """
    options = dict(options or {})
    if concurrency < 1:
      raise ValueError(
        f"HostSessions: concurrency is {concurrency}; needs a number of"
        " sessions, at least 1."
      )
    self.concurrency = concurrency

    def load() -> None:
      factory = session_worker.load_factory(path, options)  # May raise.
      if getattr(factory, "serial", False):
        self.concurrency = 1

    self.path = path
    self.row_timeout_s = row_timeout_s
    self.step_timeout_s = step_timeout_s
    self._num_rollouts = 0
    self.pool = pool.Pool(
      "HostSessions",
      "session_worker",
      {"path": path, "options": options, "timeout_s": row_timeout_s},
      num_workers,
      row_timeout_s,
      step_timeout_s,
      variables=variables,
      meanwhile=load,
    )

  def __enter__(self) -> HostSessions:
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def close(self) -> None:
    """Kills the workers and the sessions. May be called again."""
    self.pool.close()

  def begin(
    self,
    prompts: Sequence[str],
    extras: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
  ) -> SessionEpisodes:
    """Begins an episode for each row; those of the previous rollout are over.

    Args:
      extras: Data of each row for the factory; plain data.
      seeds: Seed of each row, from 0 on.

    Raises:
      RuntimeError: The workers are closed.
    """
    self.pool.check_open()
    self._num_rollouts += 1
    return SessionEpisodes(
      self,
      self._num_rollouts,
      [
        Beginning(prompt, dict(extra), int(seed))
        for prompt, extra, seed in zip(prompts, extras, seeds, strict=True)
      ],
    )

  def score_names(self, prompt: str, extras: Mapping[str, Any]) -> list[str]:
    """Returns the names of the scores, from a session without an action.

    Raises:
      ValueError: The session fails, has no "accuracy", or has a "return", which
        is the sum of the rewards.
    """
    episodes = self.begin([prompt], [extras], [0])
    scores = episodes.end([0]).get(0)
    if scores is None or "accuracy" not in scores or "return" in scores:
      why = f"has the scores {sorted(scores or ())}"
      if scores is None:
        why = f"failed for the first problem: {episodes.failures.errors[0]}"
      raise ValueError(
        f"environment '{self.path}' {why}; needs a session whose scores()"
        " can be asked for at any time and have an 'accuracy' of 0 or 1, and no"
        " 'return', which is the sum of the rewards."
      )
    return sorted(scores)


class _Call(pool.PoolCall):
  """The requests of a rollout; each row has its worker."""

  is_concurrent = True

  def __init__(self, owner: HostSessions, failures: pool.Failures):
    super().__init__((), failures)
    self._owner = owner
    self.requests: dict[
      int, SessionRequest
    ] = {}  # Neither answered nor failed.
    self.answers: dict[int, SessionAnswer] = {}
    self._of_slot: dict[int, collections.deque[int]] = collections.defaultdict(
      collections.deque
    )

  def add(self, requests: Mapping[int, SessionRequest]) -> None:
    """Adds rows with requests; each row has no other request."""
    self.requests |= requests
    for row in requests:
      self._of_slot[row % self._owner.pool.num_workers].append(row)

  @property
  def num_pending(self) -> int:
    return sum(map(len, self._of_slot.values()))

  def message(self, index: int) -> SessionRequest:
    return self.requests[index]

  def record(
    self, index: int, content: Any, failure: frames.Failure | None
  ) -> None:
    if failure is not None:
      self.fail(index, *failure)
    else:
      self.answers[index] = session_worker.answer_of(content)
      self.requests.pop(index)

  def fail(self, index: int, kind: str, message: str) -> None:
    # A row that was answered more than once has failed after all.
    self.answers.pop(index, None)
    self.requests.pop(index, None)
    super().fail(index, kind, message)

  def timeout_s(self, index: int) -> float:
    return self._owner.row_timeout_s + _SLACK_S

  def take(self, slot: int, num_workers: int, num_open: int) -> list[int]:
    waiting = self._of_slot[slot]
    size = min(len(waiting), max(self._owner.concurrency - num_open, 0))
    return [waiting.popleft() for _ in range(size)]

  def put_back(self, slot: int, rows: Sequence[int]) -> None:
    for row in rows:
      self.fail(row, "worker_died", "the worker of its session ended")

  def lost(self, slot: int) -> None:
    # Sessions that had begun ended with their worker; others can still begin.
    waiting, self._of_slot[slot] = self._of_slot[slot], collections.deque()
    for row in waiting:
      if self.requests[row].beginning is None:
        self.put_back(slot, [row])
      else:
        self._of_slot[slot].append(row)

  def out_of_time(self, rows: Sequence[int], message: str) -> None:
    for waiting in self._of_slot.values():
      rows = [*rows, *waiting]
      waiting.clear()
    super().out_of_time(rows, message)


class PolledEpisodes:
  """The interface of episodes that are asked in turns, by `ask` and `poll`.

  Attributes:
    scores: Scores of rows whose episodes are over and have not failed.
    blocked: Rows whose last action an interceptor has blocked.
  """

  scores: dict[int, dict[str, float | None]]
  blocked: set[int]

  @property
  def pending(self) -> frozenset[int]:
    """Rows with a request whose answer `poll` has not returned yet."""
    raise NotImplementedError

  def ask(self, actions: Mapping[int, tuple[str | None, bool]]) -> None:
    """Sends actions, and does not wait for answers.

    Args:
      actions: (action, is last) by row. No row may be pending or have an
        episode that is over. An action of None asks for the scores alone. The
        second part is True for the last action of the episode.
    """
    raise NotImplementedError

  def poll(self, timeout_s: float) -> dict[int, SessionAnswer | None]:
    """Returns the answers that have come since; None for rows that have failed.

    Args:
      timeout_s: Seconds to wait for a first answer; 0 for no wait.
    """
    raise NotImplementedError

  def step(
    self, actions: Mapping[int, str], is_last: bool
  ) -> dict[int, SessionAnswer]:  # By row; those that are missing have failed.
    """Sends actions of some rows, and waits for all answers."""
    return self._wait({row: (x, is_last) for row, x in actions.items()})

  def end(self, rows: Iterable[int]) -> dict[int, dict[str, float | None]]:
    """Ends episodes that were cut off; returns their scores, as `step` does."""
    rows = list(rows)
    self._wait({row: (None, True) for row in rows})
    return {row: self.scores[row] for row in rows if row in self.scores}

  def _wait(
    self, actions: Mapping[int, tuple[str | None, bool]]
  ) -> dict[int, SessionAnswer]:
    self.ask(actions)
    answers: dict[int, SessionAnswer] = {}
    while self.pending & actions.keys():
      polled = self.poll(math.inf)
      answers |= {row: x for row, x in polled.items() if x is not None}
    return {row: answers[row] for row in actions if row in answers}


class SessionEpisodes(PolledEpisodes):
  """The sessions of one rollout.

  Attributes:
    failures: Rows that have failed; their episodes are over.
    scores: Scores of rows whose episodes are over and have not failed.
  """

  def __init__(
    self, owner: HostSessions, number: int, beginnings: list[Beginning]
  ):
    self.failures = pool.Failures(len(beginnings))
    self.scores: dict[int, dict[str, float | None]] = {}
    self.blocked: set[int] = set()
    self._owner = owner
    self._number = number
    self._beginnings: dict[int, Beginning] = dict(enumerate(beginnings))
    self._used_s = 0.0
    self._call = _Call(owner, self.failures)
    self._open_rows: set[int] = set()
    owner.pool.open(self._call)

  @property
  def pending(self) -> frozenset[int]:
    return frozenset(self._open_rows)

  def ask(self, actions: Mapping[int, tuple[str | None, bool]]) -> None:
    self._open_rows |= actions.keys()
    self._call.add(
      {
        row: SessionRequest(
          self._number, row, self._beginnings.pop(row, None), action, is_last
        )
        for row, (action, is_last) in actions.items()
        if not self.failures.failed[row]
      }
    )
    if actions:  # These rows work while others are asked.
      self._owner.pool.advance(self._call, time.monotonic())

  def poll(self, timeout_s: float) -> dict[int, SessionAnswer | None]:
    workers, call = self._owner.pool, self._call
    start = time.monotonic()
    limit = self._owner.step_timeout_s
    end = start + min(timeout_s, limit - self._used_s)
    while workers.has_unfinished_rows(call):
      has_some = bool(self._ready_rows())
      workers.advance(call, time.monotonic() if has_some else end)
      if has_some or time.monotonic() >= end:
        break
    self._used_s += time.monotonic() - start
    if self._used_s >= limit and workers.has_unfinished_rows(call):
      workers.give_up(call, limit)
    # A failed row may have been answered before.
    ready = self._ready_rows()
    self._open_rows -= ready
    answers: dict[int, SessionAnswer | None] = {}
    for row in sorted(ready):
      answer = call.answers.pop(row, None)
      answers[row] = answer
      if answer is not None and answer.scores is not None:
        self.scores[row] = answer.scores
    return answers

  def _ready_rows(self) -> set[int]:
    return {row for row in self._open_rows if row not in self._call.requests}

  def fail(self, row: int, message: str) -> None:
    """Ends an episode whose session has given an unusable answer."""
    self.scores.pop(row, None)
    self.failures.add(row, "raised", message)


EVENTS = interceptor_lib.Event._fields
_CONTEXT = 4096  # Last characters of the text before an action.


class GuardedSessions:
  """Sessions with the methods of `HostSessions`, behind an interceptor."""

  def __init__(
    self,
    inner: HostSessions,
    interceptor: interceptor_lib.Interceptor,
    close: Callable[[], None] = lambda: None,
  ):
    """Takes the sessions over; `close` is called after their own."""
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
    """Begins an episode for each row, as `HostSessions.begin` does."""
    episodes = self._inner.begin(prompts, extras, seeds)
    return GuardedEpisodes(episodes, self._interceptor, prompts)

  def score_names(self, prompt: str, extras: Mapping[str, Any]) -> list[str]:
    """Returns the names of the scores, with those of the interceptor.

    Raises:
      ValueError: The session fails, or one of its own scores has the name of
        one of the interceptor's.
    """
    names = self._inner.score_names(prompt, extras)
    if clash := sorted({*names} & {*EVENTS}):
      raise ValueError(
        f"config.interceptor: the environment {self._inner.path!r} has scores"
        f" {clash} of its own, and so has an interceptor; rename them there, or"
        " leave config.interceptor.rules empty."
      )
    return sorted([*names, *EVENTS])


class GuardedEpisodes(PolledEpisodes):
  """Episodes with the methods of `SessionEpisodes`, and four more scores.

  These scores are numbers of actions of the episode: those that were "flagged",
  "judged", "blocked" and "unjudged"; see `interceptor.Event`.
  """

  def __init__(
    self,
    inner: SessionEpisodes,
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
    self._dummies: dict[int, SessionAnswer | None] = {}
    self._ended: set[int] = set()  # By a blocked call; the scores are to come.

  @property
  def failures(self) -> pool.Failures:
    """Rows that have failed; their episodes are over."""
    return self._inner.failures

  @property
  def pending(self) -> frozenset[int]:
    return self._inner.pending | self._dummies.keys()

  def ask(self, actions: Mapping[int, tuple[str | None, bool]]) -> None:
    """Sends the actions that pass; a blocked call has its answer already."""
    guard = self._interceptor
    texts = {row: x for row, (x, _) in actions.items() if x is not None}
    self._actions |= texts
    allowed = dict(actions)
    blocked = self._blocked(texts)
    self.blocked = (self.blocked - texts.keys()) | blocked
    for row in blocked:
      if actions[row][1] or guard.abort:
        allowed[row] = None, True
        self._ended.add(row)
      else:
        allowed.pop(row)
        self._dummies[row] = SessionAnswer(
          guard.dummy, -guard.penalty, False, None
        )
    self._inner.ask(allowed)

  def poll(self, timeout_s: float) -> dict[int, SessionAnswer | None]:
    dummies, self._dummies = self._dummies, {}
    answers = self._inner.poll(0.0 if dummies else timeout_s) | dummies
    for row, answer in answers.items():
      if row in self._ended and answer is not None:
        penalty = self._interceptor.penalty
        answers[row] = SessionAnswer("", -penalty, True, answer.scores)
    self._settle()
    for row, answer in answers.items():
      if answer is not None:
        part = answer.observation
        text = self._actions.pop(row, "")
        text += part if isinstance(part, str) else "".join(part)
        self._contexts[row] = (self._contexts[row] + text)[-_CONTEXT:]
    return answers

  def fail(self, row: int, message: str) -> None:
    """Ends an episode whose session has given an unusable answer."""
    self.scores.pop(row, None)
    self._inner.fail(row, message)

  def _blocked(self, actions: Mapping[int, str]) -> set[int]:
    """Returns the rows whose calls are blocked; counts the decisions."""
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
Sessions = HostSessions | GuardedSessions
Episodes = SessionEpisodes | GuardedEpisodes

"""Sessions of a host environment, in processes that can be killed.

`types.HostEnvironment` says what a session is. A row's session lives in one
worker, in a process of its own (`session_worker.py`). An exception, a hang, a
process that ends or a number that is none ends the episode of that row as
failed: it is unscored and never rewarded. The other rows and the run go on.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo_jax.rewards import frames, pool, session_worker
from grpo_jax.rewards.session_worker import Answer, Beginning, Request

# Between the deadline of a session, which its worker watches, and the worker's.
_SLACK_S = 10.0


class HostSessions:
  """Workers in which sessions are held. Not reentrant.

  ```
  with HostSessions("package.module:make") as sessions:
    episodes = sessions.begin(prompts, extras, seeds)
    answers = episodes.step({0: "<tool>1+2</tool>"}, is_last=False)
    scores = episodes.end([0])
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
  ):
    """Starts the workers and waits until they have imported everything.

    Args:
      path: "package.module:function", the factory of sessions.
      row_timeout_s: Seconds for the answer to one action; for the first with
        the making of the session, for the last with the scores.
      step_timeout_s: Seconds for all answers of a rollout.
      num_workers: Processes, each of which waits for one session at a time.
      variables: Names of environment variables that sessions get besides those
        of `processes.VARIABLES`.
      options: Arguments of the factory after its first three, by name; plain
        data.

    Raises:
      ValueError: The factory cannot be imported, does not take the options, or
        a number is out of range.
      RuntimeError: A worker could not import what the parent could.
    """
    options = dict(options or {})
    session_worker.load_factory(path, options)  # Raises where it is read.
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
  ) -> Episodes:
    """One episode for each row; those of the rollout before are over.

    Args:
      prompts: Decoded prompt of each row.
      extras: What the factory needs of each row; plain data.
      seeds: Of each row, from 0 on.

    Raises:
      RuntimeError: The workers are closed.
    """
    self.pool.check_open()
    self._num_rollouts += 1
    return Episodes(
      self,
      self._num_rollouts,
      [
        Beginning(prompt, dict(extra), int(seed))
        for prompt, extra, seed in zip(prompts, extras, seeds, strict=True)
      ],
    )

  def score_names(self, prompt: str, extras: Mapping[str, Any]) -> list[str]:
    """Names of the scores, from a session that gets no action.

    Raises:
      ValueError: There is no such session, or it has no "accuracy", or a
        "return", which is the sum of the rewards.
    """
    episodes = self.begin([prompt], [extras], [0])
    found = episodes.end([0]).get(0)
    if found is None or "accuracy" not in found or "return" in found:
      said = f"has the scores {sorted(found or ())}"
      if found is None:
        said = f"failed for the first problem: {episodes.failures.errors[0]}"
      raise ValueError(
        f"environment '{self.path}' {said}; needed is a session whose scores()"
        " can be asked for at any time and have an 'accuracy' of 0 or 1, and no"
        " 'return', which is the sum of the rewards."
      )
    return sorted(found)


class _Call(pool.Call):
  """The requests of one turn; each row has its worker."""

  def __init__(
    self,
    requests: Mapping[int, Request],
    failures: pool.Failures,
    num_workers: int,
    row_timeout_s: float,
  ):
    super().__init__((), failures)
    self._row_timeout_s = row_timeout_s
    self.requests = requests
    self.answers: dict[int, Answer] = {}
    self._num_workers = num_workers
    self._of_slot: dict[int, collections.deque[int]] = collections.defaultdict(
      collections.deque
    )
    for row in requests:
      self._of_slot[row % num_workers].append(row)

  @property
  def num_pending(self) -> int:
    return sum(map(len, self._of_slot.values()))

  def message(self, index: int) -> Request:
    return self.requests[index]

  def record(
    self, index: int, content: Any, failure: frames.Failure | None
  ) -> None:
    if failure is not None:
      self.failures.add(index, *failure)
    else:
      self.answers[index] = session_worker.answer_of(content)

  def timeout_s(self, index: int) -> float:
    return self._row_timeout_s + _SLACK_S

  def take(self, slot: int, num_workers: int) -> list[int]:
    waiting = self._of_slot[slot]
    size = min(len(waiting), pool.MAX_CHUNK)
    return [waiting.popleft() for _ in range(size)]

  def put_back(self, slot: int, rows: Sequence[int]) -> None:
    self._of_slot[slot].extendleft(reversed(rows))

  def lost(self, slot: int) -> None:
    # Sessions that have begun ended with their worker; others can still begin.
    waiting, self._of_slot[slot] = self._of_slot[slot], collections.deque()
    for row in waiting:
      if self.requests[row].beginning is None:
        self.failures.add(row, "worker_died", "the worker of its session ended")
      else:
        self._of_slot[slot].append(row)

  def out_of_time(self, rows: Sequence[int], message: str) -> None:
    for waiting in self._of_slot.values():
      rows = [*rows, *waiting]
    super().out_of_time(rows, message)


class Episodes:
  """The sessions of one rollout.

  Attributes:
    failures: Rows that have failed; their episodes are over.
    scores: Of rows whose episodes are over and have not failed.
  """

  def __init__(
    self, owner: HostSessions, number: int, beginnings: list[Beginning]
  ):
    self.failures = pool.Failures(len(beginnings))
    self.scores: dict[int, dict[str, float | None]] = {}
    self._owner = owner
    self._number = number
    self._beginnings: dict[int, Beginning] = dict(enumerate(beginnings))
    self._used_s = 0.0

  def step(
    self, actions: Mapping[int, str], is_last: bool
  ) -> dict[int, Answer]:  # By row; those that are missing have failed.
    """Answers an action of some rows.

    Args:
      actions: By row, each of an episode that is not over.
      is_last: There is no other action, and the episodes are over.
    """
    return self._ask(
      {row: (action, is_last) for row, action in actions.items()}
    )

  def end(self, rows: Iterable[int]) -> dict[int, dict[str, float | None]]:
    """Ends episodes that were cut off; their scores by row, as in `step`."""
    self._ask({row: (None, True) for row in rows})
    return {row: self.scores[row] for row in rows if row in self.scores}

  def fail(self, row: int, message: str) -> None:
    """Ends an episode whose session has said what nothing can be made of."""
    self.scores.pop(row, None)
    self.failures.add(row, "raised", message)

  def _ask(
    self, asked: Mapping[int, tuple[str | None, bool]]
  ) -> dict[int, Answer]:
    workers = self._owner.pool
    requests = {
      row: Request(
        self._number, row, self._beginnings.pop(row, None), action, is_last
      )
      for row, (action, is_last) in asked.items()
    }
    call = _Call(
      requests, self.failures, workers.num_workers, self._owner.row_timeout_s
    )
    self._used_s += workers.run(call, self._owner.step_timeout_s, self._used_s)
    # What was answered more than once has failed after all.
    answers = {
      row: answer
      for row, answer in call.answers.items()
      if not self.failures.failed[row]
    }
    for row, answer in answers.items():
      if answer.scores is not None:
        self.scores[row] = answer.scores
    return answers

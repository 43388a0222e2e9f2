"""Episodes on the host: the rows of this process, as far as they are played.

Between two calls of the device (`rollout/host_turns.py`), `HostRows` tells the
actions of rows to their sessions, and returns the answers that have come. The
device gets ids, not text.

`EpisodeContexts` decides when a context is replaced by a summary, and what the
next one begins with. The device writes ids and knows nothing of turns
(`rollout/host_state.py`), so the turns of each episode are kept here:
observations, actions, and the observation that is held back while a summary is
written. All of it is ids: a next context begins with the very tokens of the one
before, and no text is encoded twice.

`TurnCounts` adds up metrics of the turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.data import pipeline
from grpo_jax.rewards.workers import sessions
from grpo_jax.rewards.workers.session_worker import SessionAnswer
from grpo_jax.rollout import host_state, host_turns
from grpo_jax.training.phases import judging
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import hosts
from grpo_jax.types import HostCompaction, Rollout, Scored

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
    read: Observation before the next action; None in the first turn.
    waiting: Observation that waits until the next context begins; None if
      there is none.
    pairs: Its turns.
    turns: Actions since the context began.
    number: Number of the context, from 0.
    summarizes: True while a summary is written.
    opening: Ids that the next context begins with, until they are taken.
  """

  def __init__(self, first: Ids):
    self.first = first
    self.prompt_size = len(first)
    self.read: Ids | None = None
    self.waiting: Ids | None = None
    self.pairs: list[Pair] = []
    self.turns = 0
    self.number = 0
    self.summarizes = False
    self.opening: Ids | None = None


class EpisodeContexts:
  """The contexts of the episodes of this process."""

  def __init__(
    self,
    compaction: HostCompaction,
    prompts: Sequence[Sequence[int]],
    num_slots: int,
  ):
    """Starts all episodes in their first context.

    Args:
      compaction: Rule for the end of a context.
      prompts: Ids of each first prompt.
      num_slots: T, slots after a prompt.
    """
    self._compaction = compaction
    self._num_slots = num_slots
    self._episodes = [_Episode(tuple(map(int, ids))) for ids in prompts]

  def room(self, row: int) -> int:
    """The number of tokens that may follow the opening of the context."""
    size = self._compaction.context_len - self._episodes[row].prompt_size
    return min(max(size, 1), self._num_slots)

  def summarizes(self, row: int) -> bool:
    """True if the row writes a summary instead of an action."""
    return self._episodes[row].summarizes

  def acted(self, row: int, action: Sequence[int]) -> None:
    """Records an action that the policy has completed."""
    episode = self._episodes[row]
    episode.turns += 1
    if episode.read is not None:  # Not the first turn.
      episode.pairs.append(Pair(episode.read, tuple(map(int, action))))
      del episode.pairs[: -self._compaction.keep_turns or None]

  def to_read(
    self, row: int, observation: Sequence[int], size: int
  ) -> tuple[Ids, bool]:
    """Returns the ids to read after an action, and if they ask for a summary.

    Args:
      observation: Ids from the environment; held back if a summary is due.
      size: Tokens of the completion so far.
    """
    compaction, episode = self._compaction, self._episodes[row]
    ids = tuple(map(int, observation))
    episode.read = ids
    is_due = self.room(row) - size - len(ids) < compaction.reserve
    if compaction.every:
      is_due |= episode.turns >= compaction.every
    if not is_due or episode.number >= compaction.max_compactions:
      return ids, False
    episode.waiting, episode.summarizes, episode.turns = ids, True, 0
    return compaction.instruction, True

  def summarized(self, row: int, summary: Sequence[int]) -> None:
    """Puts the next context together, once a summary is complete."""
    compaction, episode = self._compaction, self._episodes[row]
    assert episode.waiting is not None
    opening = episode.first[: compaction.head_len]
    before, after = compaction.resume
    summary_ids = (*before, *map(int, summary[:-1]), *after)
    # A summary counts even if it is dropped: an ablation keeps the same turns.
    size = len(opening) + len(summary_ids)
    if compaction.keeps_summary:
      opening += summary_ids
    max_size = min(
      compaction.prompt_len,
      compaction.context_len - compaction.reserve - len(episode.waiting),
    )
    pairs: list[Pair] = []
    for pair in reversed(episode.pairs):
      size += pair.size
      if size > max_size or len(pairs) == compaction.keep_turns:
        break
      pairs.append(pair)
    for pair in reversed(pairs):
      opening += pair.observation + pair.action
    episode.opening = opening

  def open(self) -> host_state.Openings:
    """Begins the contexts that are ready; returns NumPy arrays."""
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
    return host_state.Openings(**fields)

  def resumed(self) -> dict[int, Ids]:
    """Returns held observations of contexts that began since the last call."""
    observations = {}
    for row, episode in enumerate(self._episodes):
      if episode.waiting is not None and not episode.summarizes:
        observations[row], episode.waiting = episode.waiting, None
    return observations


_SHOWN = 8  # Turns with metrics of their own.
_LATER = "later"
_COUNTS = ("calls", "blocked", "failed", "tokens", "observed")


class TurnCounts:
  """Sums over the rows of a process, for each of the first turns.

  All later turns share one sum. The names do not depend on what happens, so
  that several processes have the same ones.
  """

  def __init__(self, max_turns: int):
    """Starts all sums at 0.

    Args:
      max_turns: Most turns of an episode.
    """
    num_named = min(max_turns, _SHOWN)
    self._names = [str(turn) for turn in range(num_named)]
    if max_turns > num_named:
      self._names.append(_LATER)
    self._sums = {
      name: np.zeros(len(self._names)) for name in (*_COUNTS, "seconds")
    }

  def add(self, name: str, turn: int, amount: float = 1.0) -> None:
    """Adds to "calls", "blocked", "failed", "tokens", "observed" or "seconds".

    "seconds" are those from a question to its answer.
    """
    self._sums[name][min(turn, len(self._names) - 1)] += amount

  def metrics(self) -> dict[str, float]:
    """Returns the sums by their names in the log, and mean seconds of calls."""
    sums = {
      f"turn/{turn}/{name}": float(self._sums[name][place])
      for name in _COUNTS
      for place, turn in enumerate(self._names)
    }
    calls = np.maximum(self._sums["calls"], 1)
    means = self._sums["seconds"] / calls
    return sums | {
      f"time/answer_s/{turn}": hosts.Seconds(mean)
      for turn, mean in zip(self._names, means, strict=True)
    }


# Seconds after which the device is asked whether other processes have answers.
_PATIENCE_S = 1.0


def contexts(
  turns: host_turns.HostTurns, batch: pipeline.PromptBatch, index: np.ndarray
) -> EpisodeContexts | None:
  """Makes the contexts of episodes of a batch; None without compaction."""
  if turns.compaction is None:
    return None
  tokens = np.asarray(batch.prompts.tokens)
  mask = np.asarray(batch.prompts.mask)
  return EpisodeContexts(
    turns.compaction,
    [tokens[i][mask[i]].tolist() for i in index],
    turns.config.max_new_tokens,
  )


class _Turn(NamedTuple):
  """An action of a former step, and the answer to it.

  Attributes:
    action, observation: Ids.
    reward: Reward of the action.
  """

  action: list[int]
  observation: list[int]
  reward: np.float32


def _turns_of(rollout: Rollout, row: int, num_turns: int) -> Iterator[_Turn]:
  """Yields the turns of a row that its session has answered."""
  tokens, observed = np.asarray(rollout.tokens[row]), rollout.observed
  assert observed is not None
  assert rollout.turn is not None
  assert rollout.turn_rewards is not None
  mask = np.asarray(rollout.completion_mask[row])
  is_observation = mask & np.asarray(observed[row])
  is_action = mask & ~is_observation
  turn = np.asarray(rollout.turn[row])
  rewards = np.asarray(rollout.turn_rewards[row])
  for number in range(num_turns):
    acts = is_action & (turn == number)
    yield _Turn(
      tokens[acts].tolist(),
      tokens[is_observation & (turn == number + 1)].tolist(),
      rewards[np.flatnonzero(acts)[-1]],
    )


class HostRows:
  """The episodes of this process, with the turns that were played.

  Attributes:
    episodes: Their sessions.
    done: Episodes that were not cut off.
    counts: Metrics of their turns.
  """

  def __init__(
    self,
    problem: problem_lib.Problem,
    turns: host_turns.HostTurns,
    episodes: sessions.Episodes,
    contexts: EpisodeContexts | None,
    num_rows: int,
  ):
    self.episodes = episodes
    self.done = np.zeros(num_rows, bool)
    self.counts = TurnCounts(turns.environment.max_turns)
    self._asked_at = np.zeros(num_rows)  # time.perf_counter().
    self._problem = problem
    self._environment = turns.environment
    self._contexts = contexts
    self._max_read_len = turns.max_read_len
    self._num_slots = turns.config.max_new_tokens
    self._returns = np.zeros(num_rows, np.float32)
    self._size = np.zeros(num_rows, np.int32)
    self._turns = np.zeros(num_rows, np.int32)  # Actions that sessions got.
    self._over = np.zeros(num_rows, bool)  # The device knows, or will.
    self._cut = np.zeros(num_rows, bool)  # Actions without an end.
    self._called_at = time.perf_counter()
    self._call_s = 0.0

  def nothing(self) -> host_state.HostAnswers:
    """Makes empty answers to all rows; NumPy arrays, as in all this class."""
    num_rows = len(self.done)
    fields: dict[str, Any] = {
      "observation": np.zeros((num_rows, self._max_read_len), np.int32),
      "size": np.zeros(num_rows, np.int32),
      "reward": np.zeros(num_rows, np.float32),
      "continues": np.zeros(num_rows, bool),
      "came": np.zeros(num_rows, bool),
    }
    if self._contexts is not None:
      fields["summarizes"] = np.zeros(num_rows, bool)
    return host_state.HostAnswers(**fields)

  def go_on(
    self, rollout: Rollout, cut: host_turns.CutTurn
  ) -> host_state.HostAnswers:
    """Plays former turns again, in new sessions.

    A session that does not give the answers of the former one has failed.

    Args:
      rollout, cut: Progress of the rows; NumPy arrays.

    Returns:
      The first answers for the device: which rows have failed.
    """
    over, turns = np.asarray(cut.over), np.asarray(cut.turn)
    self._over |= over
    self._size[:] = np.asarray(rollout.completion_mask).sum(axis=1)
    self._turns[:] = turns
    former_turns = {
      row: _turns_of(rollout, row, int(turns[row]))
      for row in map(int, np.flatnonzero(~over & (turns > 0)))
    }
    expected: dict[int, _Turn] = {}
    answers: Any = self.nothing()

    def ask(rows: Sequence[int]) -> None:
      calls: dict[int, tuple[str | None, bool]] = {}
      for row in rows:
        if (former := next(former_turns[row], None)) is not None:
          expected[row] = former
          calls[row] = self._problem.tokenizer.exact_text(former.action), False
      self.episodes.ask(calls)

    ask(list(former_turns))
    while self.episodes.pending:
      continues = []
      for row, answer in self.episodes.poll(_PATIENCE_S).items():
        former = expected.pop(row)
        if answer is None or not self._is_same(row, answer, former):
          self._over[row] = answers.came[row] = True
          continue
        self._returns[row] += former.reward
        continues.append(row)
      ask(continues)
    self._called_at = time.perf_counter()
    return answers

  def _is_same(self, row: int, answer: SessionAnswer, former: _Turn) -> bool:
    """Says if an answer equals that of a former step; if not, the row fails."""
    try:
      ids = self._problem.tokenizer.observation_ids(
        answer.observation, self._environment.max_observation_len
      )
    except ValueError:
      ids = []
    is_same = (
      not answer.done
      and list(ids) == former.observation
      and np.float32(answer.reward) == former.reward
    )
    if not is_same:
      self.episodes.fail(
        row,
        "environment: the episode goes on in another step"
        " (partial_len), and its session, which was made again with the same"
        " seed and actions, has answered otherwise; make its answers a function"
        " of prompt, extras, seed and actions, or set partial_len=None",
      )
    return is_same

  def ask(self, actions: host_state.Actions) -> None:
    """Tells the sessions the actions of their rows.

    Args:
      actions: NumPy arrays; a row that still writes, waits, or is over has no
        action.
    """
    self._call_s = time.perf_counter() - self._called_at
    length, ended = np.asarray(actions.length), np.asarray(actions.ended)
    tokens: Any = actions.tokens
    acts = length > 0
    self._size[acts] = np.asarray(actions.size)[acts]
    self._cut = acts & ~ended
    if self._contexts is not None:
      acts &= ~self._take_summaries(tokens, length, ended)
      ended = ended & acts
    self._turns += acts
    calls: dict[int, tuple[str | None, bool]] = {}
    for row in map(int, np.flatnonzero(ended)):
      ids = tokens[row, : length[row]].tolist()
      if self._contexts is not None:
        self._contexts.acted(row, ids)
      text = self._problem.tokenizer.exact_text(ids)
      calls[row] = text, self._turns[row] >= self._environment.max_turns
    for row in map(int, np.flatnonzero(acts)):
      self.counts.add("tokens", self._turns[row] - 1, float(length[row]))
    self._asked_at[list(calls)] = time.perf_counter()
    self.episodes.ask(calls)

  def _take_summaries(
    self, tokens: Any, length: np.ndarray, ended: np.ndarray
  ) -> np.ndarray:  # [B] bool
    """Takes the summaries that have ended; returns the rows that write one."""
    assert self._contexts is not None
    is_summary = np.zeros(len(length), bool)
    for row in map(int, np.flatnonzero(length)):
      if self._contexts.summarizes(row):
        is_summary[row] = True
        self.counts.add("tokens", self._turns[row], float(length[row]))
        if ended[row]:
          ids = tokens[row, : length[row]].tolist()
          self._contexts.summarized(row, ids)
    return is_summary

  def open(self) -> host_state.Openings:
    """Begins the contexts that are ready."""
    assert self._contexts is not None
    openings = self._contexts.open()
    self._size[np.asarray(openings.came)] = 0
    return openings

  def answers(self, is_idle: bool) -> host_state.HostAnswers:
    """Returns the answers that have come since the last call.

    An idle process waits for the first answer, and then for further ones as
    long as the last call of the device took: a call takes as long for one row
    as for all of them.

    Args:
      is_idle: True if no row of any process has work on the device.
    """
    answers: Any = self.nothing()
    self._end(answers, np.flatnonzero(self._cut).tolist())
    if self._contexts is not None:
      for row, ids in self._contexts.resumed().items():
        answers.came[row] = True
        self._tell(answers, row, ids)
    if is_idle and not answers.came.any():
      self._take(answers, _PATIENCE_S)
      end = time.perf_counter() + min(self._call_s, _PATIENCE_S)
      while self.episodes.pending and time.perf_counter() < end:
        self._take(answers, end - time.perf_counter())
    else:
      self._take(answers, 0.0)
    self._returns += answers.reward
    self._called_at = time.perf_counter()
    return answers

  def _end(self, answers: Any, rows: list[int]) -> None:
    """Ends episodes that are cut off; `end` waits for their scores later."""
    answers.came[rows] = True
    self._over[rows] = True
    self.episodes.ask({row: (None, True) for row in rows})

  def _take(self, answers: Any, timeout_s: float) -> None:
    """Adds the answers of the next `timeout_s` seconds to `answers`."""
    for row, answer in self.episodes.poll(timeout_s).items():
      if self._over[row]:
        continue  # Scores after it was cut off.
      answers.came[row] = True
      self._count(row, has_failed=answer is None)
      if answer is None:
        self._over[row] = True
        continue
      answers.reward[row] = answer.reward
      if answer.done or self._turns[row] >= self._environment.max_turns:
        self.done[row] = self._over[row] = True
        continue
      try:
        ids = self._problem.tokenizer.observation_ids(
          answer.observation, self._environment.max_observation_len
        )
      except ValueError as error:
        self.episodes.fail(row, f"environment: its observation: {error}")
        self._over[row] = True
        continue
      self.counts.add("observed", self._turns[row] - 1, float(len(ids)))
      if self._contexts is not None:
        ids, answers.summarizes[row] = self._contexts.to_read(
          row, ids, int(self._size[row])
        )
      self._tell(answers, row, ids)

  def _tell(self, answers: Any, row: int, ids: Sequence[int]) -> None:
    """Lets a row read ids, and continue if it has room for more."""
    room = self._num_slots
    if self._contexts is not None:
      room = self._contexts.room(row)
    answers.size[row] = len(ids)
    answers.observation[row, : len(ids)] = ids
    answers.continues[row] = self._size[row] + len(ids) < room
    if not answers.continues[row]:
      self._end(answers, [row])

  def _count(self, row: int, has_failed: bool) -> None:
    """Counts a call of a row that has ended."""
    turn = self._turns[row] - 1
    seconds = time.perf_counter() - self._asked_at[row]
    self.counts.add("calls", turn)
    self.counts.add("seconds", turn, seconds)
    self.counts.add("failed", turn, float(has_failed))
    self.counts.add("blocked", turn, float(row in self.episodes.blocked))

  def end(self) -> None:
    """Waits for the scores of episodes that were cut off."""
    while self.episodes.pending:
      self.episodes.poll(_PATIENCE_S)

  def scores(self) -> dict[str, np.ndarray]:  # each [B] float32
    """The scores of each row, with "return"; all NaN if the row has failed."""
    names = self._problem.score_names
    for row, scores in list(self.episodes.scores.items()):
      if set(scores) != set(names):
        self.episodes.fail(
          row, f"environment: scores {sorted(scores)}, at first {sorted(names)}"
        )
    failed = self.episodes.failures.failed
    self.done &= ~failed
    columns = {
      name: np.full(len(failed), np.nan, np.float32) for name in sorted(names)
    }
    for row, scores in self.episodes.scores.items():
      for name, value in scores.items():
        columns[name][row] = np.nan if value is None else value
    return {**columns, "return": np.where(failed, np.nan, self._returns)}


class HostSamples(NamedTuple):
  """A rollout, and the counts of this process.

  Attributes:
    rollout: The rollout, on the devices, split by rows.
    scored: Its rewards, from the sessions; on the devices too.
    failures: Number of failed rows of this process by kind; some are logged.
    errors: Error messages of these rows.
    seconds: Seconds in which the device had no work, because sessions were
      asked or waited for.
    calls: Calls of the program that advances the episodes.
    turns: Counts of each turn, by names of metrics.
    cut: Progress of rows that may go on; None if all of them end.
  """

  rollout: Rollout
  scored: Scored
  failures: dict[str, int]
  errors: judging.Errors
  seconds: float
  calls: int
  turns: dict[str, float]
  cut: host_turns.CutTurn | None = None

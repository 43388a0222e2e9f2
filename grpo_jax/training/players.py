"""Who writes completions: the player of a phase, and its episodes on the host.

In the graph a player is a function of arrays (`make_player`). With an
environment on the host, episodes are played turn after turn (`HostEpisodes`).

The device draws actions (`rollout/host_turns.py`), each process has those of
its own rows answered by their sessions (`rewards/sessions.py`), and the answers
go back to the device as they come: a row whose tool is slow holds up no other
one. What comes out is a `Rollout` as any other; of a row whose session has
failed all scores are NaN, so that it is unscored.

Of several processes, all go on until no row of any of them does.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import pipeline
from grpo_jax.learning import members
from grpo_jax.rewards import guarded_sessions
from grpo_jax.rollout import (
  compaction,
  contexts,
  correction,
  host_turns,
  sampling,
  seats,
)
from grpo_jax.training import config as config_lib
from grpo_jax.training import judging, programs, sharding, turn_counts
from grpo_jax.training import problem as problem_lib
from grpo_jax.types import (
  Environment,
  Player,
  Policy,
  Prompts,
  PyTree,
  Rollout,
  Scored,
)


def make_sample(
  policy: Policy,
  problem: problem_lib.Problem,
  opponents: seats.Opponents | None = None,
) -> Callable:
  """(params, prompts, key, config=…, group_size=…) -> a rollout.

  With opponents `params` are those of all models, as in `sampling.sample`.
  """
  if problem.compaction is None:
    sample: Callable = sampling.sample
    if problem.limits:
      sample = functools.partial(_sample_within, of_domains=problem.limits)
    return functools.partial(
      sample, policy, environment=problem.environment, opponents=opponents
    )
  assert problem.environment is not None
  return functools.partial(
    compaction.sample,
    policy,
    environment=problem.environment,
    compaction=problem.compaction,
  )


def _sample_within(
  policy: Policy,
  params: PyTree,
  prompts: Prompts,
  key: jax.Array,
  config: sampling.SamplingConfig,
  group_size: int,
  *,
  of_domains: tuple[int, ...],
  environment: Environment | None,
  opponents: seats.Opponents | None,
) -> Rollout:
  """As `sampling.sample`, with a budget for each domain of prompts.

  Prompts without a domain, as somebody asks for them, have all slots.
  """
  limits = contexts.budgets(
    of_domains, prompts, group_size, config.max_new_tokens
  )
  return sampling.sample(
    policy,
    params,
    prompts,
    key,
    config,
    group_size,
    limits=limits,
    environment=environment,
    opponents=opponents,
  )


def make_turns(
  policy: Policy,
  problem: problem_lib.Problem,
  config: sampling.SamplingConfig,
  group_size: int,
) -> host_turns.HostTurns:
  """The compiled parts of a rollout with the environment on the host."""
  assert problem.host_environment is not None
  return host_turns.HostTurns(
    policy, config, group_size, problem.host_environment
  )


def make_player(
  policy: Policy,
  problem: problem_lib.Problem,
  config: config_lib.SamplingConfig,
  group_size: int,
  required: frozenset[str],
  table: Table | None = None,
  corrects: correction.Correction | None = None,
) -> Player | host_turns.HostPlayer:
  """Who writes the completions of a phase.

  Args:
    policy: The model.
    problem: Prompts, and the environment that answers.
    config: How to draw.
    group_size: Completions per prompt.
    required: Optional inputs that the objective reads.
    table: Who sits in other seats of the environment; None: the policy.
    corrects: What is done with wrong completions; None: nothing.
  """
  sampler = config.sampler(
    problem.max_new_tokens,
    problem.tokenizer.end_ids,
    problem.tokenizer.pad_id,
    record_kept="kept_ids" in required,
    record_routing="routing" in required,
    mix_until=_mix_until(problem, config),
  )
  greedy = dataclasses.replace(
    sampler,
    temperature=0.0,
    record_kept=False,
    record_routing=False,
    mix=None,
  )
  has_greedy = "greedy_rewards" in required
  if problem.host_environment is not None:
    return host_turns.HostPlayer(
      make_turns(policy, problem, sampler, group_size),
      make_turns(policy, problem, greedy, 1) if has_greedy else None,
    )
  if table is None:
    sample = make_sample(policy, problem)
    played = functools.partial(members.played, sample)
  else:
    sample = make_sample(policy, problem, table.opponents)
    played = functools.partial(members.played_by_all, sample, table.views)
  return Player(
    played(config=sampler, group_size=group_size),
    played(config=greedy, group_size=1) if has_greedy else None,
    None
    if corrects is None
    else members.played(
      functools.partial(correction.correct, policy),
      config=sampler,
      correction=corrects,
    ),
  )


def _mix_until(
  problem: problem_lib.Problem, sampling: config_lib.SamplingConfig
) -> tuple[int, ...]:
  """The token after which inputs are mixed no more, if any are and one is.

  Raises:
    ValueError: Its text is not one token.
  """
  if not sampling.mix_rate or not sampling.mix_until:
    return ()
  try:
    ids = problem.tokenizer.markup_ids(sampling.mix_until)
  except ValueError:
    ids = []
  if len(ids) != 1:
    raise ValueError(
      f"config.sampling.mix_until={sampling.mix_until!r} is {len(ids)} tokens"
      f" {ids}, and one has to tell where mixing ends; choose a token of the"
      " tokenizer, or '' to mix whole completions."
    )
  return tuple(ids)


# Seconds after which the device is asked whether other processes have answers.
_PATIENCE_S = 1.0


class Table(NamedTuple):
  """Who plays with the policy.

  Attributes:
    opponents: Models, and who has which.
    views: Of each of the models, (parameters of all members) -> what is run.
  """

  opponents: seats.Opponents
  views: tuple[Callable[[members.Params], members.View], ...]


class Played(NamedTuple):
  """A rollout, and what was counted on the way by this process.

  Attributes:
    rollout: On the devices, split by rows.
    scored: What the sessions said of it, as rewards; the same.
    failures: Failed rows of this process by kind; some are logged.
    errors: Why they have failed.
    seconds: That the device had nothing to do, because sessions were asked or
      waited for.
    calls: Of the program that advances the episodes.
    turns: What was counted of each turn, by names of metrics.
  """

  rollout: Rollout
  scored: Scored
  failures: dict[str, int]
  errors: judging.Errors
  seconds: float
  calls: int
  turns: dict[str, float]


class HostEpisodes:
  """The compiled parts, and the loop of the host between them."""

  def __init__(
    self,
    problem: problem_lib.Problem,
    mesh: Mesh,
    turns: host_turns.HostTurns,
  ):
    """Compiles nothing yet.

    Args:
      problem: With sessions.
      mesh: The mesh of the run.
      turns: The parts.
    """
    self._problem = problem
    self._mesh = mesh
    self._turns = turns
    self._rows = sharding.by_rows(mesh)
    self._judged = sharding.by_rows_once(mesh)
    self._whole = sharding.replicated(mesh)
    constrain = sharding.episodes_constraint(mesh)

    def begin(params, prompts, key):
      fixed, episodes, seeds = turns.begin(params, prompts, key)
      return fixed, constrain(episodes), seeds

    def advance(fixed, episodes, answers):
      episodes, actions, left = turns.advance(fixed, episodes, answers)
      return constrain(episodes), actions, left

    self._begin = jax.jit(begin, out_shardings=(None, None, self._rows))
    self._advance = programs.Program(
      advance,
      self._whole,
      donate=1,
      out_shardings=(None, self._rows, self._whole),
    )
    self._finish = jax.jit(
      turns.finish, donate_argnums=2, out_shardings=self._rows
    )
    split = sharding.row_constraint(mesh)
    score = problem.judge.without_models().score
    self._score = programs.Program(
      lambda prompts, rollout: split(score({}, prompts, rollout)), self._whole
    )

  def play(
    self,
    params: PyTree,
    prompts: Prompts,
    key: jax.Array,
    batch: pipeline.PromptBatch,
  ) -> Played:
    """One episode of each row.

    Args:
      params: Of the policy, on the devices.
      prompts: On the devices, split by rows.
      key: As in `sampling.sample`.
      batch: The prompts that this process feeds.
    """
    turns, mesh = self._turns, self._mesh
    fixed, written, seeds = self._begin(params, prompts, key)
    num_rows = len(seeds)
    rows = judging.judged_rows(mesh, num_rows)
    fed = sharding.local_rows(self._rows, len(prompts.ids))
    host = _Host(
      self._problem,
      turns,
      self._problem.begin_sessions(
        batch,
        np.searchsorted(fed, rows // turns.group_size),
        judging.to_judge(mesh, seeds, num_rows),
      ),
      len(rows),
    )
    calls = 0
    idle_s = 0.0
    said = host.nothing()
    while True:
      written, actions, left = self._advance(
        fixed, written, sharding.from_local(said, self._judged)
      )
      calls += 1
      left = jax.device_get(left)
      if not left.goes_on:
        break
      started = time.perf_counter()
      host.ask(judging.to_judge(mesh, actions, num_rows))
      said = host.answers(is_idle=not left.writes)
      if not left.writes:
        idle_s += time.perf_counter() - started
    host.end()
    done, scores = sharding.from_local((host.done, host.scores()), self._judged)
    rollout = self._finish(prompts, fixed, written, done, scores)
    failures = host.episodes.failures
    self._problem.complaints.log(
      "an episode failed: unscored", failures.messages
    )
    scored = self._score(prompts, rollout)
    errors = judging.errors_of(mesh, batch, num_rows, failures.messages)
    return Played(
      *(rollout, scored, failures.counts, errors, idle_s),
      *(calls, host.counts.metrics()),
    )


class _Host:
  """The episodes of the rows of this process, as far as they are played.

  Attributes:
    episodes: Their sessions.
    done: Episodes that were not cut off.
    counts: Of their turns.
  """

  def __init__(
    self,
    problem: problem_lib.Problem,
    turns: host_turns.HostTurns,
    episodes: guarded_sessions.Episodes,
    num_rows: int,
  ):
    self.episodes = episodes
    self.done = np.zeros(num_rows, bool)
    self.counts = turn_counts.TurnCounts(turns.environment.max_turns)
    self._asked_at = np.zeros(num_rows)  # time.perf_counter().
    self._problem = problem
    self._environment = turns.environment
    self._num_slots = turns.config.max_new_tokens
    self._returns = np.zeros(num_rows, np.float32)
    self._size = np.zeros(num_rows, np.int32)
    self._turns = np.zeros(num_rows, np.int32)  # Actions that were asked.
    self._over = np.zeros(num_rows, bool)  # And the device knows, or will.
    self._cut = np.zeros(num_rows, bool)  # Actions without an end.
    self._called_at = time.perf_counter()
    self._call_s = 0.0

  def nothing(self) -> host_turns.Answers:
    """No answer to any row; NumPy arrays, as all here."""
    num_rows = len(self.done)
    fields: dict[str, Any] = {
      "observation": np.zeros(
        (num_rows, self._environment.max_observation_len), np.int32
      ),
      "size": np.zeros(num_rows, np.int32),
      "reward": np.zeros(num_rows, np.float32),
      "goes_on": np.zeros(num_rows, bool),
      "came": np.zeros(num_rows, bool),
    }
    return host_turns.Answers(**fields)

  def ask(self, actions: host_turns.Actions) -> None:
    """Tells the sessions what rows have done.

    Args:
      actions: NumPy arrays; no action where a row still writes, waits, or is
        over.
    """
    self._call_s = time.perf_counter() - self._called_at
    length, ended = np.asarray(actions.length), np.asarray(actions.ended)
    tokens: Any = actions.tokens
    acts = length > 0
    self._size[acts] = np.asarray(actions.size)[acts]
    self._turns += acts
    asked: dict[int, tuple[str | None, bool]] = {}
    for row in map(int, np.flatnonzero(ended)):
      text = self._problem.tokenizer.exact_text(
        tokens[row, : length[row]].tolist()
      )
      asked[row] = text, self._turns[row] >= self._environment.max_turns
    for row in map(int, np.flatnonzero(acts)):
      self.counts.add("tokens", self._turns[row] - 1, float(length[row]))
    self._asked_at[list(asked)] = time.perf_counter()
    self.episodes.ask(asked)
    self._cut = acts & ~ended

  def answers(self, is_idle: bool) -> host_turns.Answers:
    """What has come since the call before.

    Whoever is idle waits for the first answer, and then for more of them as
    long as the call took: it takes as long for one row as for all of them.

    Args:
      is_idle: No row of any process has something to do on the device.
    """
    answers: Any = self.nothing()
    self._end(answers, np.flatnonzero(self._cut).tolist())
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
    """Ends episodes that are cut off; their scores are waited for later."""
    answers.came[rows] = True
    self._over[rows] = True
    self.episodes.ask({row: (None, True) for row in rows})

  def _take(self, answers: Any, timeout_s: float) -> None:
    """Adds what has come until then to the answers."""
    cut = []
    for row, said in self.episodes.poll(timeout_s).items():
      if self._over[row]:
        continue  # Its scores, after it was cut off.
      answers.came[row] = True
      self._count(row, has_failed=said is None)
      if said is None:
        self._over[row] = True
        continue
      answers.reward[row] = said.reward
      if said.done or self._turns[row] >= self._environment.max_turns:
        self.done[row] = self._over[row] = True
        continue
      try:
        ids = self._problem.tokenizer.observation_ids(
          said.observation, self._environment.max_observation_len
        )
      except ValueError as error:
        self.episodes.fail(row, f"environment: its observation: {error}")
        self._over[row] = True
        continue
      self.counts.add("observed", self._turns[row] - 1, float(len(ids)))
      answers.size[row] = len(ids)
      answers.observation[row, : len(ids)] = ids
      answers.goes_on[row] = self._size[row] + len(ids) < self._num_slots
      if not answers.goes_on[row]:
        cut.append(row)
    self._end(answers, cut)

  def _count(self, row: int, has_failed: bool) -> None:
    """A call of a row has come to its end."""
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
    """Of each row, with "return"; all NaN where a row has failed."""
    names = self._problem.score_names
    for row, scores in list(self.episodes.scores.items()):
      if set(scores) != set(names):
        self.episodes.fail(
          row, f"environment: scores {sorted(scores)}, at first {sorted(names)}"
        )
    failed = self.episodes.failures.failed
    self.done &= ~failed
    found = {
      name: np.full(len(failed), np.nan, np.float32) for name in sorted(names)
    }
    for row, scores in self.episodes.scores.items():
      for name, value in scores.items():
        found[name][row] = np.nan if value is None else value
    return {**found, "return": np.where(failed, np.nan, self._returns)}

"""The sampler of an environment on the host: episodes, turn after turn.

The device draws actions (`rollout/host_turns.py`), each process has the
sessions of its own rows answer them (`rewards/workers/sessions.py`), and the
answers go back to the device as they come. A row whose tool is slow does not
hold up others. The result is a `Rollout` like any other. If the session of a
row has failed, all scores of the row are NaN, so that it is unscored. If
contexts are compacted, a row is an episode while it is played, and each of its
contexts is a row of the rollout (`episodes.py`).

With several processes, all go on until no row of any of them does.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import pipeline
from grpo_jax.rollout import compaction, host_turns, sampling
from grpo_jax.training.phases import episodes as episodes_lib
from grpo_jax.training.phases import judging
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import jit, sharding
from grpo_jax.types import (
  HostCompaction,
  Policy,
  Prompts,
  PyTree,
  Rollout,
  Scored,
)


def make_turns(
  policy: Policy,
  problem: problem_lib.Problem,
  config: sampling.SamplerConfig,
  group_size: int,
) -> host_turns.HostTurns:
  """Makes the compiled parts of a rollout with the environment on the host."""
  assert problem.host_environment is not None
  compacts = problem.compaction
  assert compacts is None or isinstance(compacts, HostCompaction)
  return host_turns.HostTurns(
    policy, config, group_size, problem.host_environment, compacts
  )


class HostSampler:
  """The sampler of episodes on the host: compiled parts, and their loop."""

  def __init__(
    self,
    problem: problem_lib.Problem,
    mesh: Mesh,
    turns: host_turns.HostTurns,
    keeps_contexts: bool = True,
  ):
    """Compiles nothing yet.

    Args:
      problem: The problem, with sessions.
      keeps_contexts: True if a rollout has all contexts of its episodes, False
        for the last ones only.
    """
    self._problem = problem
    self._mesh = mesh
    self._turns = turns
    self._rows = sharding.by_rows(mesh)
    self._judged = sharding.by_rows_once(mesh)
    self._replicated = sharding.replicated(mesh)
    constrain = sharding.episodes_constraint(mesh)

    def make_begin(begin):
      def program(*inputs):
        fixed, episodes, seeds = begin(*inputs)
        return fixed, constrain(episodes), seeds

      return jax.jit(program, out_shardings=(None, None, self._rows))

    def advance(fixed, episodes, answers):
      episodes, actions, work = turns.advance(fixed, episodes, answers)
      return constrain(episodes), actions, work

    self._begin = make_begin(turns.begin)
    self._resume = make_begin(functools.partial(host_turns.begin, turns))
    self._pause = jax.jit(
      functools.partial(host_turns.pause, turns), out_shardings=self._rows
    )
    self._advance = jit.Program(
      advance,
      self._replicated,
      donate=1,
      out_shardings=(None, self._rows, self._replicated),
    )

    def reopen(params, episodes, openings):
      return constrain(turns.reopen(params, episodes, openings))

    def keep(rollout):
      return rollout if keeps_contexts else compaction.last_rows(rollout)

    def finish(*arguments):
      return keep(turns.finish(*arguments))

    self._keep = keep
    self._reopen = jit.Program(reopen, self._replicated, donate=1)
    # Last contexts alone are smaller than the buffers they are taken from, so
    # these buffers cannot be reused.
    returns_all = keeps_contexts or turns.compaction is None
    self._finish = jax.jit(
      finish, donate_argnums=2 if returns_all else (), out_shardings=self._rows
    )
    self._reward = problem.reward.without_models()
    self._score = judging.scoring_program(self._reward, mesh)

  def sample(
    self,
    params: PyTree,
    prompts: Prompts,
    key: jax.Array,
    batch: pipeline.PromptBatch,
    meanwhile: Callable[[], None] | None = None,
    resumed: host_turns.Resumed | None = None,
  ) -> episodes_lib.HostSamples:
    """Samples an episode of each row, or as much of it as a step may have.

    Args:
      params: Parameters of the policy, on the devices.
      prompts: Prompts on the devices, split by rows.
      key: As in `sampling.sample`.
      meanwhile: Called once, by all processes between the same two calls of the
        program: when all rows wait for their sessions for the first time, or
        else at the end.
      resumed: Rows that go on, or begin, and may wait for another step; `key`
        is not read then. None: all rows begin, and end.
    """
    turns, mesh = self._turns, self._mesh
    if resumed is None:
      fixed, state, seeds = self._begin(params, prompts, key)
    else:
      fixed, state, seeds = self._resume(params, prompts, resumed)
    num_rows = len(seeds)
    rows = judging.judged_rows(mesh, num_rows)
    fed = sharding.local_rows(self._rows, len(prompts.ids))
    index = np.searchsorted(fed, rows // turns.group_size)
    host = episodes_lib.HostRows(
      self._problem,
      turns,
      self._problem.begin_sessions(
        batch, index, judging.to_judge(mesh, seeds, num_rows)
      ),
      episodes_lib.contexts(turns, batch, index),
      len(rows),
    )
    calls = 0
    idle_s = 0.0
    answers = host.nothing()
    if resumed is not None:
      start_s = time.perf_counter()
      answers = host.go_on(
        *judging.to_judge(mesh, (resumed.rollout, resumed.cut), num_rows)
      )
      idle_s += time.perf_counter() - start_s
    while True:
      state, actions, work = self._advance(
        fixed, state, sharding.from_local(answers, self._judged)
      )
      calls += 1
      work = jax.device_get(work)
      if not work.continues:
        break
      start_s = time.perf_counter()
      host.ask(judging.to_judge(mesh, actions, num_rows))
      if meanwhile is not None and not work.writes and not work.reopens:
        meanwhile()
        meanwhile = None
      if work.reopens:
        openings = sharding.from_local(host.open(), self._judged)
        state = self._reopen(params, state, openings)
      answers = host.answers(is_idle=not work.writes and not work.reopens)
      if not work.writes:
        idle_s += time.perf_counter() - start_s
    if meanwhile is not None:
      meanwhile()
    host.end()
    done, scores = sharding.from_local((host.done, host.scores()), self._judged)
    cut = None
    if resumed is None:
      rollout = self._finish(prompts, fixed, state, done, scores)
    else:
      rollout, cut = self._pause(prompts, resumed, fixed, state, done, scores)
    failures = host.episodes.failures
    self._problem.complaints.log(
      "an episode failed: unscored", failures.messages
    )
    scored = self._score(prompts, rollout)
    num_contexts = len(rollout.tokens) // num_rows
    messages = {
      row * num_contexts + number: text
      for row, text in failures.messages.items()
      for number in range(num_contexts)
    }
    errors = judging.errors_of(mesh, batch, num_rows * num_contexts, messages)
    return episodes_lib.HostSamples(
      *(rollout, scored, failures.counts, errors, idle_s),
      *(calls, host.counts.metrics(), cut),
    )

  def shapes(
    self, params: PyTree, prompts: Prompts, key: jax.Array
  ) -> tuple[Rollout, Scored]:
    """The shapes of the result of `sample`; nothing is run."""

    shapes = self._turns.shapes(params, prompts, key, self._problem.score_names)
    rollout = jax.eval_shape(self._keep, shapes)
    score = functools.partial(self._reward.score, {})
    return rollout, jax.eval_shape(score, prompts, rollout)


def host_episodes(
  problem: problem_lib.Problem,
  mesh: Mesh,
  turns: host_turns.HostTurns,
  keeps_contexts: bool = True,
) -> Any:
  """Makes the sampler of the environment that a problem has on the host.

  Args:
    problem, mesh, turns, keeps_contexts: Arguments of `HostSampler`; an
      environment that asks over HTTP has one context.

  Returns:
    A `HostSampler`, or a `served_episodes.ServedEpisodes`.
  """
  if problem.is_served:
    from grpo_jax.training.phases import served_episodes  # A web server.

    return served_episodes.ServedEpisodes(problem, mesh, turns)
  return HostSampler(problem, mesh, turns, keeps_contexts)

"""Drivers, which advance the state of a run by one batch.

A driver takes the state and a batch from the stream, dispatches the compiled
stages of `step/step.py` and returns at once: the metrics of the step are
fetched later, while the next step runs. `make_driver` chooses one of these:

* given completions: one program, which trains on the completions of the data;
* fused: one program, which samples, scores and updates;
* ahead: two programs, one of which draws rollouts ahead of the other;
* split: two programs, with the verifiers of the host between them;
* episodes: the host plays the turns of a rollout between calls of the device.

The last two wait for the host, for its verifiers or for its sessions. A driver
that also gets the batches that come next draws their rollouts ahead; they wait
in `TrainState.queue`. So the device has work while the host verifies. If
verifiers are part of the program, drawing ahead saves no time: it is there to
study the same order of draws and updates, with the same queue.

Of several processes, each passes the rows of a batch that its devices hold
(`rows_to_feed`), and scores the completions of these rows.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import pipeline
from grpo_jax.settings import config as config_lib
from grpo_jax.step import dynamic_sampling, step
from grpo_jax.step.rows import StepRows
from grpo_jax.training.phases import judging
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.problem import rewards
from grpo_jax.training.runtime import hosts, jit, sharding
from grpo_jax.types import (
  EpisodeSampler,
  PromptFields,
  Rollouts,
  Scored,
  TrainBatch,
  TrainState,
)


def train_batch(
  batch: pipeline.SupervisedBatch, rows: np.ndarray, num_rows: int
) -> TrainBatch:
  """Makes a `TrainBatch` of completions that come with the data.

  Of a pair, the preferred row is right and has the reward 1.

  Args:
    rows: Numbers of these rows in the whole batch.
  """
  everyone = np.ones(len(rows), bool)
  group_size = len(batch.tokens) // len(batch.prompt_tokens)
  is_pair = group_size == 2
  is_chosen = (rows % group_size == 0) & is_pair
  groups = (rows // group_size).astype(np.int32)
  prompts: Any = batch.prompt_tokens, batch.prompt_mask, batch.images
  arrays: dict[str, Any] = {
    "prompts": PromptFields(*prompts),
    "prompt_index": groups,
    "group_id": groups,
    "tokens": batch.tokens,
    "completion_mask": batch.completion_mask,
    "mask": batch.completion_mask & ~batch.observed,
    "rewards": is_chosen.astype(np.float32),
    "valid": everyone,
    "terminated": everyone,
    "correct": is_chosen | (not is_pair),
  }
  return TrainBatch(**arrays, num_groups=num_rows // group_size)


@dataclasses.dataclass(frozen=True)
class StepResult:
  """The result of a dispatched step.

  Attributes:
    metrics: Waits for the step, and returns its metrics.
    rows: Waits for the rows of the step, and returns them, on the devices
      of one run. None in phases whose completions come from data.
    batch: The prompts of the rows that this process feeds.
    errors: Error messages of rows that this process judges and that could not
      be scored.
    host_reports: Reports of sessions on each rollout in `TrainState.queue`. No
      array holds them.
  """

  metrics: Callable[[], dict[str, float]]
  rows: Callable[[], StepRows] | None = None
  batch: pipeline.PromptBatch | None = None
  errors: judging.Errors = dataclasses.field(default_factory=dict)
  host_reports: tuple[judging.HostReport, ...] = ()


# Counts of this process -> () -> counts of all processes, fetched later.
Totals = Callable[[dict[str, float]], Callable[[], dict[str, float]]]

# (state, batch, *batches that come next) -> the next state, and the result.
Driver = Callable[..., tuple[TrainState, StepResult]]


def make_driver(
  problem: problem_lib.Problem,
  mesh: Mesh,
  phase: step.Phase,
  host_reports: Sequence[judging.HostReport] = (),
) -> Driver:
  """Makes the driver of a phase; see the list at the top of the module.

  Args:
    host_reports: `StepResult.host_reports` of the step before the first one.
  """
  if phase.sampler is None:
    return _supervised(mesh, phase)
  if isinstance(phase.sampler, EpisodeSampler):
    return _Episodes(problem, mesh, phase, host_reports)
  if problem.reward.asks_host:
    return _Split(problem, mesh, phase)
  return _ahead(mesh, phase) if phase.num_ahead else _fused(mesh, phase)


def make_draw(
  problem: problem_lib.Problem, mesh: Mesh, phase: step.Phase
) -> Callable[[TrainState, pipeline.PromptBatch], dynamic_sampling.Groups]:
  """Makes (state, batch) -> scored completions, without an update."""
  if isinstance(phase.sampler, EpisodeSampler):
    return _Episodes(problem, mesh, phase).draw
  if problem.reward.on_host is not None:
    return _Split(problem, mesh, phase).draw
  rows = sharding.by_rows(mesh)
  program = jit.Program(
    functools.partial(step.draw_stage, phase=phase),
    sharding.replicated(mesh),
    out_shardings=rows,
  )
  return lambda state, batch: program(
    state, sharding.from_local(batch.prompts, rows)
  )


def rows_to_feed(
  problem: problem_lib.Problem, mesh: Mesh, phase: config_lib.PhaseConfig
) -> np.ndarray:
  """The rows of each batch of a phase that this process passes on."""
  rows, size = sharding.by_rows(mesh), phase.num_prompts
  if not problem.reward.asks_host:
    return sharding.local_rows(rows, size * phase.max_rounds)
  # The split driver draws round after round, each on all devices.
  of_round = sharding.local_rows(rows, size)
  return np.concatenate(
    [start * size + of_round for start in range(phase.max_rounds)]
  )


def _supervised(mesh: Mesh, phase: step.Phase) -> Driver:
  """Makes the executor for completions that come with the data."""
  advance = jit_step(mesh, step.supervised_step, phase)
  rows = sharding.by_rows(mesh)

  def driver(state: TrainState, batch: pipeline.SupervisedBatch):
    num_rows = sharding.num_rows(rows, len(batch.tokens))
    local_rows = sharding.local_rows(rows, num_rows)
    inputs = sharding.from_local(train_batch(batch, local_rows, num_rows), rows)
    state, metrics = advance(state, inputs)
    return state, StepResult(lambda: _numbers(metrics))

  return driver


def _fused(mesh: Mesh, phase: step.Phase) -> Driver:
  """Makes the driver with one program: sample, score, update."""
  advance = jit_step(mesh, step.fused_step, phase)
  by_rows = sharding.by_rows(mesh)

  def driver(state: TrainState, batch: pipeline.PromptBatch):
    prompts = sharding.from_local(batch.prompts, by_rows)
    state, metrics, rows = advance(state, prompts)
    return state, StepResult(lambda: _numbers(metrics), lambda: rows, batch)

  return driver


def _ahead(mesh: Mesh, phase: step.Phase) -> Driver:
  """Makes the driver with two programs: one draws ahead, one learns.

  Nothing stands between them, and the device runs one after the other. One
  program would take as long, and would be compiled three times: the first steps
  draw several batches, and the last ones draw none.
  """
  by_rows, replicated = sharding.by_rows(mesh), sharding.replicated(mesh)
  sample = jit.Program(
    functools.partial(step.rollout_stage, phase=phase),
    replicated,
    out_shardings=by_rows,
  )
  learn = jit_step(mesh, step.stale_step, phase)

  def driver(
    state: TrainState,
    batch: pipeline.PromptBatch,
    *following: pipeline.PromptBatch,
  ):
    step_prompts = sharding.from_local(batch.prompts, by_rows)

    def draw(state: TrainState, batch: pipeline.PromptBatch, ahead: int):
      prompts = sharding.from_local(batch.prompts, by_rows)
      return sample(state, prompts, jax.device_put(np.int32(ahead), replicated))

    state, queue = with_queue(state, (batch, *following), draw)
    state, metrics, rows = learn(state, step_prompts, queue[0])
    state = dataclasses.replace(state, queue=queue[1:])
    return state, StepResult(lambda: _numbers(metrics), lambda: rows, batch)

  return driver


def with_queue(
  state: TrainState,
  batches: Sequence[Any],
  draw: Callable[[TrainState, Any, int], Rollouts],
) -> tuple[TrainState, tuple[Rollouts, ...]]:
  """Takes the queue out of the state, and draws until the queue is full.

  Args:
    batches: Batch of the step, and those that come next.
    draw: (state without a queue, batch, steps until it is trained) -> rollouts
      of the policy.
  """
  queue = state.queue
  state = dataclasses.replace(state, queue=())
  missing = range(len(queue), len(batches))
  return state, (*queue, *(draw(state, batches[n], n) for n in missing))


class _Split:
  """The driver with the host's verifiers between two programs.

  The device works through its programs in the order of dispatch. A rollout that
  is drawn ahead is dispatched before the host verifies, so the device draws
  while the host verifies. The update needs the scores, and comes after.
  """

  def __init__(
    self, problem: problem_lib.Problem, mesh: Mesh, phase: step.Phase
  ):
    rows, replicated = sharding.by_rows(mesh), sharding.replicated(mesh)
    self._problem, self._mesh, self._phase = problem, mesh, phase
    self._rows, self._replicated = rows, replicated
    self._judged_rows = sharding.by_rows_once(mesh)
    self._totals = totals(mesh)
    self._sample, self._greedy = (
      jit.Program(
        functools.partial(stage, phase=phase), replicated, out_shardings=rows
      )
      for stage in (step.sample_stage, step.greedy_stage)
    )
    self._learn = jit_step(mesh, step.learn_stage, phase)
    reward: Any = phase.reward
    self._reward = reward
    self._service = (
      reward.service if isinstance(reward, rewards.RewardSum) else None
    )
    constrain = sharding.row_constraint(mesh)
    self._complete = jit.Program(
      lambda *inputs: constrain(reward.score(*inputs)), replicated
    )
    min_std = phase.config.min_reward_std
    self._add, self._describe, self._choose_groups = (
      jit.Program(function, replicated, out_shardings=replicated)
      for function in (
        lambda collected, groups, recycled: dynamic_sampling.add(
          collected, groups, min_std, recycled
        ),
        dynamic_sampling.metrics,
        lambda collected: dynamic_sampling.choose_groups(
          collected, phase.when_short
        ),
      )
    )

  def __call__(
    self,
    state: TrainState,
    batch: pipeline.PromptBatch,
    *following: pipeline.PromptBatch,
  ) -> tuple[TrainState, StepResult]:
    queue: tuple[Rollouts, ...] = ()
    of_rounds: dict[str, jax.Array] = {}
    trains: jax.Array | None = None
    errors: judging.Errors = {}
    if self._phase.max_rounds == 1:
      state, queue = with_queue(state, (batch, *following), self._draw)
      groups, counts = self._scored_groups(state, batch, queue[0], errors)
    else:
      collected, counts = judging.collect(
        lambda batch: self._scored_groups(
          state, batch, self._draw(state, batch, 0), errors
        ),
        self._add,
        batch,
        self._phase.max_rounds,
        dynamic_sampling.surplus(state.waiting),
      )
      state = dynamic_sampling.with_surplus(state, collected)
      groups, trains = self._choose_groups(collected)
      of_rounds = self._describe(collected)
    state, metrics, rows = self._learn(state, groups, trains)
    total = self._totals(counts)
    return dataclasses.replace(state, queue=queue[1:]), StepResult(
      lambda: _numbers(metrics | of_rounds) | total(),
      lambda: rows,
      batch,
      errors,
    )

  def draw(
    self, state: TrainState, batch: pipeline.PromptBatch
  ) -> dynamic_sampling.Groups:
    """Returns scored completions of prompts, without an update."""
    rollouts = self._draw(state, batch, 0)
    return self._scored_groups(state, batch, rollouts, {})[0]

  def _draw(
    self, state: TrainState, batch: pipeline.PromptBatch, ahead: int
  ) -> Rollouts:
    prompts = sharding.from_local(batch.prompts, self._rows)
    steps = jax.device_put(np.int32(ahead), self._replicated)
    return Rollouts(
      self._sample(state, prompts, steps), self._greedy(state, prompts, steps)
    )

  def _scored_groups(
    self,
    state: TrainState,
    batch: pipeline.PromptBatch,
    rollouts: Rollouts,
    errors: judging.Errors,
  ) -> tuple[dynamic_sampling.Groups, dict[str, float]]:
    """Returns scored groups of the batch, and counts; adds to `errors`."""
    host_rollout = judging.rollout_to_judge(self._mesh, rollouts.rollout)
    host_greedy = baseline = None
    if rollouts.greedy is not None:
      host_greedy = judging.rollout_to_judge(self._mesh, rollouts.greedy)
    start_s = time.perf_counter()
    calls = self._service.calls if self._service else 0
    with jax.transfer_guard("allow"):
      scores, failures, messages = self._problem.host_scores(
        batch, host_rollout, self._reward
      )
      if host_greedy is not None:
        baseline, *_ = self._problem.host_scores(
          batch, host_greedy, self._reward
        )
    counts = {f"unscored/{kind}": float(n) for kind, n in failures.items()}
    counts["time/verifier_s"] = hosts.Seconds(time.perf_counter() - start_s)
    if self._service:
      counts["judge/calls"] = float(self._service.calls - calls)
    self._problem.complaints.log("a verifier failed: unscored", messages)
    num_rows = len(rollouts.rollout.prompt_index)
    errors |= judging.errors_of(self._mesh, batch, num_rows, messages)
    prompts = sharding.from_local(batch.prompts, self._rows)
    scored = self._score(state, prompts, rollouts.rollout, scores)
    of_greedy = None
    if baseline is not None:
      of_greedy = self._score(state, prompts, rollouts.greedy, baseline)
    return dynamic_sampling.Groups(
      prompts, rollouts.rollout, scored, of_greedy
    ), counts

  def _score(
    self, state, prompts, rollout, scores: rewards.HostScores
  ) -> Scored:
    """Scores a rollout: combines the host's rewards with the device's."""
    if self._reward.is_host_alone:
      with jax.transfer_guard("allow"):
        alone = self._reward.score_on_host(scores)
      return sharding.from_local(alone, self._judged_rows)
    scores = sharding.from_local(scores, self._judged_rows)
    return self._complete(
      state.params, prompts, rollout, scores, state.phase_step
    )


def totals(mesh: Mesh) -> Totals:
  """Makes a function that adds up the counts of all processes.

  Of `hosts.Seconds` the maximum is taken. All processes call the function with
  the same names, in the same order.
  """
  if jax.process_count() == 1:
    return lambda counts: lambda: counts
  exchange = hosts.Exchange(mesh)

  def post(counts: dict[str, float]):
    posted = exchange.post(*counts.values())

    def fetch():
      values = dict(zip(counts, jax.device_get(posted).T, strict=True))
      return {
        name: float(
          x.max() if isinstance(counts[name], hosts.Seconds) else x.sum()
        )
        for name, x in values.items()
      }

    return fetch

  return post


class _Episodes:
  """The driver for an environment on the host, whose sessions score rollouts.

  If rollouts are played ahead, the update of a step is dispatched when all rows
  of such a rollout wait for their sessions for the first time, so that the
  device has work meanwhile. The rollout is drawn by a copy of the weights
  before that update, since the update overwrites them.

  A rollout that is played ahead has been scored, and waits with its scores: its
  sessions are over and cannot be asked again. Their reports that no array holds
  wait in this object, and in `StepResult` for a checkpoint. With partial
  rollouts, a step continues the rows of all places, and the error of a failed
  row waits with its group.
  """

  def __init__(
    self,
    problem: problem_lib.Problem,
    mesh: Mesh,
    phase: step.Phase,
    host_reports: Sequence[judging.HostReport] = (),
  ):
    self._rows = sharding.by_rows(mesh)
    replicated = sharding.replicated(mesh)
    assert isinstance(phase.sampler, EpisodeSampler)
    assert isinstance(phase.reward, rewards.RewardSum)
    # Episodes have the weights of the phase.
    problem = dataclasses.replace(problem, reward=phase.reward)
    from grpo_jax.training.phases import host_sampler  # Starts processes.

    self._sampler = host_sampler.host_episodes(
      problem, mesh, phase.sampler.turns
    )
    self._greedy = None
    if phase.sampler.greedy is not None:
      self._greedy = host_sampler.host_episodes(
        problem, mesh, phase.sampler.greedy, keeps_contexts=False
      )
    self._key_of = jax.jit(
      lambda state, ahead: step.step_keys(state, ahead)[0],
      out_shardings=replicated,
    )
    self._stamp = jax.jit(step.with_version, out_shardings=self._rows)
    # A jitted function may return its inputs themselves, so they are copied.
    self._copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
    self._replicated = replicated
    self._learn = jit_step(mesh, step.learn_stage, phase)
    self._totals = totals(mesh)
    self._host_reports = list(host_reports)
    self._partial = phase.partial
    if phase.partial is not None:
      self._resume = jit.Program(
        phase.partial.resumed, replicated, out_shardings=self._rows
      )
      self._learn = jit_step(mesh, step.partial_step_of_host, phase)

  def __call__(
    self,
    state: TrainState,
    batch: pipeline.PromptBatch,
    *following: pipeline.PromptBatch,
  ) -> tuple[TrainState, StepResult]:
    if self._partial is not None:
      return self._advance(state, batch)
    batches = batch, *following
    queue = list(state.queue)
    state = dataclasses.replace(state, queue=())
    results: list[Any] = []  # Once the update is dispatched.
    times: dict[str, float] = {"time/environment_s": hosts.Seconds(0)}

    def learn():
      if results:
        return
      prompts = sharding.from_local(batch.prompts, self._rows)
      rollout, _, scored, baseline = queue[0]
      assert scored is not None
      groups = dynamic_sampling.Groups(prompts, rollout, scored, baseline)
      results.extend(self._learn(state, groups, None))

    for number in range(len(queue), len(batches)):
      is_meanwhile = 0 < number == len(batches) - 1
      rollouts, report, seconds = self._sample_batch(
        state, batches[number], number, learn if is_meanwhile else None
      )
      queue.append(rollouts)
      self._host_reports.append(report)
      seconds["time/environment_s"] += times["time/environment_s"]
      times |= {name: max(times.get(name, x), x) for name, x in seconds.items()}
    learn()
    state, metrics, rows = results
    report = self._host_reports.pop(0)
    total = self._totals(report.counts | times)
    return dataclasses.replace(state, queue=tuple(queue[1:])), StepResult(
      lambda: _numbers(metrics) | total(),
      lambda: rows,
      batch,
      report.errors,
      tuple(self._host_reports),
    )

  def _advance(
    self, state: TrainState, batch: pipeline.PromptBatch
  ) -> tuple[TrainState, StepResult]:
    """Makes a step in which the rows of all places get a few more tokens."""
    prompts = sharding.from_local(batch.prompts, self._rows)
    key = self._key_of(state, jax.device_put(np.int32(0), self._replicated))
    inputs = state.params["policy"], prompts, key, batch
    resumed = self._resume(state, prompts)
    sample, counts, baseline = self._play(*inputs, resumed=resumed)
    total = self._totals(counts)
    state, metrics, rows = self._learn(
      state, prompts, sample.rollout, sample.cut, sample.scored, baseline
    )
    reports = *self._host_reports, judging.HostReport({}, sample.errors)
    errors = judging.errors_here(batch, reports)
    self._host_reports = [judging.HostReport({}, errors)]
    return state, StepResult(
      lambda: _numbers(metrics) | total(),
      lambda: rows,
      batch,
      errors,
      tuple(self._host_reports),
    )

  def draw(
    self, state: TrainState, batch: pipeline.PromptBatch
  ) -> dynamic_sampling.Groups:
    """Returns scored episodes of prompts, without an update."""
    rollouts, *_ = self._sample_batch(state, batch, 0, None)
    prompts = sharding.from_local(batch.prompts, self._rows)
    assert rollouts.scored is not None
    return dynamic_sampling.Groups(
      prompts, rollouts.rollout, rollouts.scored, rollouts.baseline
    )

  def _play(
    self, *inputs: Any, **options: Any
  ) -> tuple[Any, dict[str, float], Scored | None]:
    """Plays episodes; returns them, counts, and the scores of greedy ones."""
    samples = self._sampler.sample(*inputs, **options)
    counts = {f"unscored/{k}": float(n) for k, n in samples.failures.items()}
    counts["time/environment_s"] = hosts.Seconds(samples.seconds)
    if self._greedy is None:
      return samples, counts | samples.turns, None
    greedy = self._greedy.sample(*inputs)
    counts["time/environment_s"] += greedy.seconds
    return samples, counts | samples.turns, greedy.scored

  def _sample_batch(
    self,
    state: TrainState,
    batch: pipeline.PromptBatch,
    ahead: int,
    meanwhile: Callable[[], None] | None,
  ) -> tuple[Rollouts, judging.HostReport, dict[str, float]]:
    """Plays a batch; returns its sessions' report and seconds by name, too.

    Args:
      batch: Batch of the step, or a later one.
      ahead: Number of steps by which it is later.
      meanwhile: Called while sessions are waited for; overwrites the state.
    """
    prompts = sharding.from_local(batch.prompts, self._rows)
    nothing: Any = None
    numbers_of = TrainState(
      *(state.step, state.phase, state.phase_step, nothing), {}, nothing
    )
    pair = state.params["policy"], numbers_of
    policy, numbers_of = self._copy(pair) if meanwhile is not None else pair
    key = self._key_of(state, jax.device_put(np.int32(ahead), self._replicated))
    inputs = policy, prompts, key, batch
    samples, counts, baseline = self._play(*inputs, meanwhile=meanwhile)
    seconds: dict[str, float] = {
      k: x for k, x in counts.items() if isinstance(x, hosts.Seconds)
    }
    counts = {k: x for k, x in counts.items() if k not in seconds}
    rollout = self._stamp(numbers_of, samples.rollout)
    rollouts = Rollouts(rollout, None, samples.scored, baseline)
    return rollouts, judging.HostReport(counts, samples.errors), seconds


def jit_step(mesh: Mesh, function: Callable, phase: step.Phase) -> jit.Program:
  """Compiles a stage that consumes the state and returns the next one."""
  replicated = sharding.replicated(mesh)
  if mesh.size == 1:
    return jit.Program(
      functools.partial(function, phase=phase),
      replicated,
      donate=0,
      out_shardings=replicated,
    )

  def stage(state, *inputs):
    state, metrics, *rows = function(state, *inputs, phase=phase)
    # The new state gets the shardings of the old one. Otherwise the compiler
    # may choose others, which the next step would not fit.
    state = sharding.constrain_state(mesh, state)
    metrics = jax.lax.with_sharding_constraint(metrics, replicated)
    return state, metrics, *(sharding.constrain_written(mesh, rows))

  stage.__name__ = function.__name__
  return jit.Program(stage, replicated, donate=0)


def _numbers(metrics: dict[str, jax.Array]) -> dict[str, float]:
  return numbers(jax.device_get(metrics))


def numbers(fetched: dict[str, Any]) -> dict[str, Any]:
  """Turns fetched scalars into Python numbers; arrays, as of guards, stay."""
  return {k: x if np.ndim(x) else float(x) for k, x in fetched.items()}

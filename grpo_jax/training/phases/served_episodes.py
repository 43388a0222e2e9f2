"""The sampler of an environment that asks the policy over HTTP.

    problem.sessions ── rows ──▶ its process ── requests ──▶ our server
          ▲                                                      │
          └── results of rows ◀── draws, in this thread ◀────────┘

All episodes of a step are played at the same time, and requests that come at
the same time are drawn together. At the end each conversation is a row of a
`Rollout`, as with any other environment on the host.
"""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import pipeline
from grpo_jax.rewards.workers import pool, verifiers_process
from grpo_jax.rollout import drawing, host_turns
from grpo_jax.serving import endpoint, engine
from grpo_jax.training.phases import episodes as episodes_lib
from grpo_jax.training.phases import judging
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.problem import served as served_lib
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Prompts, PyTree, Rollout, Scored

_POLL_S = 0.02


class ServedEpisodes:
  """A sampler with the methods of `host_sampler.HostSampler`."""

  def __init__(
    self, problem: problem_lib.Problem, mesh: Mesh, turns: host_turns.HostTurns
  ):
    """Compiles nothing yet.

    Args:
      problem: The problem, with an environment that asks over HTTP.
      turns: The policy, the settings of its draws, and sizes.

    Raises:
      ValueError: The algorithm needs a record that is not made here.
    """
    assert isinstance(problem.sessions, served_lib.Served)
    for name in ("record_kept", "record_routing"):
      if getattr(turns.config, name):
        raise ValueError(
          f"config.data.environment={turns.environment.path!r}: what an"
          f" algorithm asks to be recorded ({name}) is not recorded of answers"
          " to requests; choose another algorithm, or switch that off."
        )
    self._problem, self._mesh = problem, mesh
    self._served, self._turns = problem.sessions, turns
    self._rows = sharding.by_rows(mesh)
    self._sampler: engine.Drawer | None = None
    self._speaker = endpoint.Speaker(
      problem.encoder,
      problem.bytes_of,
      endpoint.calls_named(self._served.settings.calls),
    )
    self._keys = jax.jit(
      lambda key, ids: jax.random.key_data(
        drawing.row_keys(key, ids, turns.group_size)
      ),
      out_shardings=self._rows,
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
  ) -> episodes_lib.HostSamples:
    """Samples an episode of each row; see `host_sampler.HostSampler.sample`.

    Raises:
      RuntimeError: The process of the environment does not start any more.
      ValueError: A prompt is not one of the environment's.
    """
    keys = sharding.to_local(self._keys(key, prompts.ids))
    episodes = [
      served_lib.Episode(_prompt(batch, row // self._turns.group_size), k)
      for row, k in enumerate(keys)
    ]
    step = _StepEpisodes(self._problem, self._turns, batch, episodes)
    sampler = self._sampler_for(len(episodes))
    limits = served_lib.ServedLimits(
      self._turns.config.max_new_tokens,
      self._turns.environment.max_action_len,
      self._turns.config.temperature,
      self._turns.config.top_p,
    )
    rollouts = self._served.rollouts
    number = rollouts.begin(episodes, self._speaker, sampler, limits)
    calls = sampler.calls
    try:
      step.run(number, sampler, params, meanwhile)
    finally:
      rollouts.end()
      sampler.drop("the step is over.")
    arrays = sharding.from_local(step.arrays(), self._rows)
    rollout = Rollout(**arrays, num_groups=len(prompts.ids))
    self._problem.complaints.log(
      "an episode failed: unscored", step.failures.messages
    )
    return episodes_lib.HostSamples(
      rollout,
      self._score(prompts, rollout),
      step.failures.counts,
      judging.errors_of(
        self._mesh, batch, len(episodes), step.failures.messages
      ),
      seconds=rollouts.now,
      calls=sampler.calls - calls,
      turns=step.counts().metrics(),
    )

  def shapes(
    self, params: PyTree, prompts: Prompts, key: jax.Array
  ) -> tuple[Rollout, Scored]:
    """The shapes of the result of `sample`; nothing is run."""
    del params, key
    num_groups = len(prompts.ids)
    nobody = served_lib.Episode([], np.zeros(0, np.uint32))
    nothing: Any = pipeline.PromptBatch(prompts, [])
    episodes = num_groups * self._turns.group_size * [nobody]
    step = _StepEpisodes(self._problem, self._turns, nothing, episodes)

    def scored_rollout(arrays, prompts):
      rollout = Rollout(**arrays, num_groups=num_groups)
      return rollout, self._reward.score({}, prompts, rollout)

    return jax.eval_shape(scored_rollout, step.arrays(), prompts)

  def _sampler_for(self, num_rows: int) -> engine.Drawer:
    """The sampler, whose program is made for the first number of rows."""
    if self._sampler is None:
      turns, settings = self._turns, self._served.settings
      self._sampler = engine.Drawer(
        turns.policy,
        self._mesh,
        dataclasses.replace(
          turns.config,
          max_new_tokens=turns.environment.max_action_len,
          end_ids=turns.environment.action_ends,
          lanes=None,  # `continued` has no lanes.
        ),
        min(num_rows, settings.num_rows or num_rows),
        self._problem.max_prompt_len + turns.config.max_new_tokens,
        is_own=False,
        pause_s=settings.pause_s,
        max_waiting=2**20,
      )
    return self._sampler


def _prompt(batch: pipeline.PromptBatch, place: int) -> list[int]:
  prompts = batch.prompts
  return np.asarray(prompts.tokens[place])[
    np.asarray(prompts.mask[place])
  ].tolist()


class _StepEpisodes:
  """The episodes of a step.

  Attributes:
    failures: Rows that have failed.
  """

  def __init__(
    self,
    problem: problem_lib.Problem,
    turns: host_turns.HostTurns,
    batch: pipeline.PromptBatch,
    episodes: Sequence[served_lib.Episode],
  ):
    assert isinstance(problem.sessions, served_lib.Served)
    self._problem, self._served = problem, problem.sessions
    self._turns, self._batch, self._episodes = turns, batch, episodes
    self.failures = pool.Failures(len(episodes))
    self.failures.counts[served_lib.REWRITTEN] = 0
    self._results: dict[int, verifiers_process.VerifiersEpisode] = {}
    self._pending = set(range(len(episodes)))

  def run(
    self,
    number: int,
    sampler: engine.Drawer,
    params: PyTree,
    meanwhile: Callable[[], None] | None,
  ) -> None:
    """Draws for requests until the environment has reported on every row.

    Args:
      number: Number of these episodes, from `OpenEpisodes.begin`.
      meanwhile: See `host_sampler.HostSampler.sample`.
    """
    served, rollouts = self._served, self._served.rollouts
    environment = served.environment
    try:
      environment.play(number, self._rows(), served.url, served.token)
    except verifiers_process.Ended as error:
      raise RuntimeError(
        f"config.data.environment={self._turns.environment.path!r}: its process"
        f" does not start any more: {error}"
      ) from None
    hangs = False
    while self._pending:
      start_s = time.perf_counter()
      if not sampler.work(params, _POLL_S):
        if meanwhile is not None and sampler.calls:
          meanwhile()
          meanwhile = None
        # The time that the policy takes does not count for the environment.
        rollouts.now += time.perf_counter() - start_s
      try:
        for result in environment.hear(number):
          self._take(result)
      except verifiers_process.Ended as error:
        self._fail_all("worker_died", f"environment: {error}")
        break
      hangs |= self._check_rows(rollouts.now)
      if rollouts.now > served.step_timeout_s:
        self._fail_all(
          "step_timeout",
          f"the {served.step_timeout_s:g} s for all rows are over"
          " (config.rewards.step_timeout_s)",
        )
        hangs = True
    if meanwhile is not None:
      meanwhile()
    if hangs:  # Nobody waits for what it still does.
      environment.kill()

  def _rows(self) -> list[dict[str, Any]]:
    """The rows for the environment: task and model of each."""
    rows: list[dict[str, Any]] = []
    for row in range(len(self._episodes)):
      group = row // self._turns.group_size
      extras = self._batch.records[group]["extras"]
      if "example" not in extras:
        raise ValueError(
          f"{self._turns.environment.path!r} plays its own tasks, and the"
          f" prompt {self._problem.prompt_texts([self._batch.records[group]])}"
          " is none of them; pass those of the run, as run.prompts(4)."
        )
      rows.append(
        {
          "row": row,
          "split": extras["split"],
          "example": extras["example"],
          "model": self._served.rollouts.model(row),
        }
      )
    return rows

  def _take(self, result: verifiers_process.VerifiersEpisode) -> None:
    """Notes the result of an episode that the environment has played."""
    row = result.row
    if row not in self._pending:
      return
    episode = self._episodes[row]
    self._pending.discard(row)
    episode.is_over = True
    if len(episode.answer_s) < len(episode.turns):
      episode.answer_s.append(time.monotonic() - episode.answered_at)
    if episode.failed:
      self.failures.add(row, served_lib.REWRITTEN, episode.failed)
    elif result.error:
      self.failures.add(row, "raised", f"environment: {result.error}")
    elif not episode.turns:
      self.failures.add(row, "raised", "environment: it has asked for nothing")
    else:
      self._results[row] = result

  def _check_rows(self, now: float) -> bool:
    """Fails rows without a request for too long; says if there were any."""
    limit = self._served.row_timeout_s
    late = [
      row
      for row in self._pending
      if not self._episodes[row].waits
      and now - self._episodes[row].seen_s > limit
    ]
    for row in late:
      self._pending.discard(row)
      self._episodes[row].is_over = True
      self.failures.add(row, "timeout", f"no request in {limit:g} s")
    return bool(late)

  def _fail_all(self, kind: str, message: str) -> None:
    for row in self._pending:
      self._episodes[row].is_over = True
      self.failures.add(row, kind, message)
    self._pending.clear()

  def counts(self) -> episodes_lib.TurnCounts:
    """Counts calls, tokens and seconds of each turn.

    A call is an action that was answered.
    """
    counts = episodes_lib.TurnCounts(self._turns.environment.max_turns)
    for row, episode in enumerate(self._episodes):
      for number, turn in enumerate(episode.turns):
        counts.add("tokens", number, len(turn.output.ids))
        if number:
          counts.add("observed", number - 1, len(turn.observed))
      for number, seconds in enumerate(episode.answer_s):
        counts.add("calls", number)
        counts.add("seconds", number, seconds)
      if self.failures.failed[row]:
        counts.add("failed", max(len(episode.turns) - 1, 0))
    return counts

  def arrays(self) -> dict[str, Any]:
    """The rows of a `Rollout`, as NumPy arrays."""
    num_rows, num_slots = len(self._episodes), self._turns.config.max_new_tokens
    shape = num_rows, num_slots
    arrays: dict[str, np.ndarray] = {
      "tokens": np.full(shape, self._turns.config.pad_id, np.int32),
      "completion_mask": np.zeros(shape, bool),
      "observed": np.zeros(shape, bool),
      **{name: np.zeros(shape, np.float32) for name in drawing.RECORDS},
      "turn": np.zeros(shape, np.int32),
      "turn_rewards": np.zeros(shape, np.float32),
      "state_id": np.zeros(shape, np.int32),
    }
    for row, episode in enumerate(self._episodes):
      place = 0
      for number, turn in enumerate(episode.turns):
        place = _write(arrays, row, place, number, turn)
      if row in self._results and place:
        arrays["turn_rewards"][row, place - 1] = self._results[row].reward
    index = np.repeat(
      np.arange(num_rows // self._turns.group_size, dtype=np.int32),
      self._turns.group_size,
    )
    return {
      **arrays,
      "terminated": np.array([self._is_done(row) for row in range(num_rows)]),
      "prompt_index": index,
      "group_id": index,
      "scores": self._scores(),
    }

  def _is_done(self, row: int) -> bool:
    reply = self._results.get(row)
    return reply is not None and reply.done and not self._episodes[row].is_full

  def _scores(self) -> dict[str, np.ndarray]:  # each [B] float32
    """The scores of each row; all NaN if the row has failed."""
    names = [*sorted(self._problem.score_names), served_lib.RETURN]
    columns = {
      name: np.full(len(self._episodes), np.nan, np.float32) for name in names
    }
    for row, result in self._results.items():
      scores = {
        served_lib.ACCURACY: float(result.reward >= 1),
        **result.metrics,
        served_lib.RETURN: result.reward,
      }
      for name in names:
        columns[name][row] = scores.get(name, np.nan)
    return columns


def _write(
  arrays: dict[str, np.ndarray],
  row: int,
  start: int,
  number: int,
  turn: served_lib.ServedTurn,
) -> int:
  """Writes a turn into its slots; returns where the next one begins."""
  middle = start + len(turn.observed)
  end = middle + len(turn.output.ids)
  arrays["tokens"][row, start:end] = [*turn.observed, *turn.output.ids]
  arrays["completion_mask"][row, start:end] = True
  arrays["observed"][row, start:middle] = True
  arrays["turn"][row, start:end] = number
  # States with the same last observation are the same.
  observation = np.asarray(turn.observed, np.int32).tobytes()
  arrays["state_id"][row, middle:end] = zlib.crc32(observation) & 0x7FFFFFFF
  for name in drawing.RECORDS:
    arrays[name][row, middle:end] = getattr(turn.output, name)
  return end

"""The training loop, read from top to bottom.

Set-up, then for each phase: restore or enter, and step. Metrics of step n are
fetched while step n + 1 runs. A run can be killed at any moment and started
again with the same command: it continues from the last checkpoint, and ends
with the same bytes as if nothing had happened.

Several runs that are one program (`many.py`) go through the same loop: a crew
moves all of them on by a step, and everything else is done for each.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import ml_collections
import numpy as np

from grpo_jax.training import (
  checkpoints,
  drivers,
  hosts,
  lock,
  models,
  paths,
  probe,
  progress,
  runs,
  sharding,
)
from grpo_jax.training import config as config_lib
from grpo_jax.training import problem as problem_lib
from grpo_jax.training import run as run_lib
from grpo_jax.training.run import Result, Run


class Crew(Protocol):
  """What moves the runs of a phase on."""

  def advance(self, batches: list[list[Any]]) -> list[drivers.Outcome]:
    """One step of all runs.

    Args:
      batches: Of each run the batch of the step, and those that come next.

    Returns:
      What the step will have to say of each run.
    """

  def at_hand(self, run: Run) -> contextlib.AbstractContextManager[None]:
    """Has the state of a run in `run.state`, on its devices, for a while."""


class Alone:
  """One run, whose state is always at hand."""

  def __init__(self, run: Run, index: int):
    parts = run.phases[index].parts
    self._run = run
    self._driver = drivers.make_driver(run.problem, run.mesh, parts)

  def advance(self, batches: list[list[Any]]) -> list[drivers.Outcome]:
    """See `Crew`."""
    self._run.state, outcome = self._driver(self._run.state, *batches[0])
    return [outcome]

  @contextlib.contextmanager
  def at_hand(self, run: Run) -> Iterator[None]:
    """See `Crew`."""
    del run
    yield


def train(
  config: ml_collections.ConfigDict, workdir: str | os.PathLike
) -> Result:
  """Runs the phases of a config, or what is left of them.

  Args:
    config: See `config.py`; the resolved form is saved in the workdir.
    workdir: Folder of the run, local or gs://; an unfinished run in it is
      continued.

  Raises:
    KeyError, TypeError, ValueError: The config, data, checkpoint or a verifier
      is at fault, or another process trains in `workdir`; nothing that was
      written is lost.
    FloatingPointError: The loss or gradient is not finite.
  """
  settings = config_lib.resolve(config)
  workdir = paths.parse(workdir)
  mesh = sharding.make_mesh(**dataclasses.asdict(settings.mesh))
  config_json = config.to_json()
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(mesh))  # For the kernels of models.
    directory = workdir / "checkpoints"
    saved: checkpoints.Checkpoints | None = None
    watch = stack.enter_context(
      hosts.Watch(
        settings.hosts.timeout_s,
        settings.hosts.stall_s,
        describe=lambda: checkpoints.describe(directory),
        settle=lambda: saved.wait() if saved else None,
      )
    )
    hosts.check_same(
      config=zlib.crc32(config_json.encode()), workdir=str(workdir)
    )
    stack.enter_context(lock.held(workdir))
    saved = checkpoints.Checkpoints(directory, keep=settings.checkpoint.keep)
    stack.callback(saved.close)
    problem = problem_lib.make_problem(settings)
    stack.callback(problem.close)
    probe.check(problem)
    policy = models.make_policy(settings, problem, mesh)
    run = run_lib.open_run(
      stack,
      settings,
      config_json,
      workdir,
      saved=saved,
      problem=problem,
      policy=policy,
      phases=runs.make_phases(settings, problem, policy, mesh),
      mesh=mesh,
      watch=watch,
      stop=stack.enter_context(hosts.Stop(mesh)),
      compiling=stack.enter_context(run_lib.compile_clock()),
    )
    stack.push(watch.failing)  # Before whatever waits for other processes.
    go_through([run], functools.partial(Alone, run))
    run.patience.check(problem.complaints)
    return run_lib.result(run)


def go_through(together: Sequence[Run], crew_of: Callable[[int], Crew]) -> None:
  """Takes runs that have got equally far through the phases that are left.

  Args:
    together: The runs; if there are several, one whose loss is not finite is
      left behind with its `failure`.
    crew_of: (index of a phase) -> what moves them on in it.
  """
  first = together[0]
  if (last_step := first.saved.latest_step()) is not None:
    name = first.config.phases[first.first]
    hosts.say(f"continuing after step {last_step} ({name})")
  for index in range(first.first, len(first.phases)):
    if first.stopping or not going_on(together):
      break
    crew = crew_of(index)
    _run_phase(together, index, crew)
  for run in together:
    run.saved.wait()


def going_on(together: Sequence[Run]) -> list[Run]:
  """The runs that are not left behind."""
  return [run for run in together if run.failure is None]


def _run_phase(together: Sequence[Run], index: int, crew: Crew) -> None:
  """Steps through one phase, from wherever the states are in it."""
  for run in going_on(together):
    with crew.at_hand(run):
      run_lib.enter(run, index)
    run.after = None
  # They all have its sizes; what was left behind also stays where it was.
  first = going_on(together)[0]
  name = first.config.phases[index]
  phase = first.config.section(name)
  done = int(first.state.phase_step)
  offset = int(first.state.step) - done
  if phase.of_kind.evaluates and done == 0:
    for run in going_on(together):
      with crew.at_hand(run):
        summary = run_lib.evaluate(run)
      run.before = run.before or summary
      run.log.write(offset, name, summary)

  book = _Book(together, crew, name, offset, done + 1)
  feed = _Feed(together, index)
  pending: Callable[[], None] | None = None
  with jax.transfer_guard("disallow"):
    # Looked at once a step: whatever stops the loop has also been saved.
    stopping = first.stop.look()
    while done < phase.steps and not stopping and going_on(together):
      with run_lib.profiled(first, offset + done + 1):
        batches = feed.next(phase.steps - done)
        compiled = first.compiling.seconds
        outcomes = crew.advance(batches)
        compile_s = first.compiling.seconds - compiled
      if pending is not None:
        pending()
      done += 1
      is_due = phase.of_kind.evaluates and run_lib.due(
        first.config.eval.every, done, phase.steps
      )
      pending = functools.partial(
        book.record, done, outcomes, compile_s, is_due
      )
      stopping = first.stop.look() or first.stopping
      is_saved = stopping or run_lib.due(
        first.config.checkpoint.every, done, phase.steps
      )
      if is_due or is_saved:
        pending()
        pending = None
      if is_saved:
        _save(together, crew, index, offset + done, feed)
  book.display.done()


class _Feed:
  """The batches of a phase, each with the stream's state before it.

  Batches wait whose step is not done: the next one, and those that rollouts are
  drawn for ahead.
  """

  def __init__(self, together: Sequence[Run], index: int):
    self._streams = [run.streams[index] for run in together]
    self._ahead = 1 + together[0].phases[index].parts.staleness
    self._waiting: list[collections.deque[tuple[Any, Any]]] = [
      collections.deque() for _ in together
    ]

  def next(self, steps_left: int) -> list[list[Any]]:
    """Of each run the batch of this step, and those that come next."""
    batches = []
    for stream, waiting in zip(self._streams, self._waiting, strict=True):
      while len(waiting) < min(self._ahead, steps_left):
        waiting.append((stream.get_state(), next(stream)))
      batches.append([batch for _, batch in waiting])
      waiting.popleft()
    return batches

  def position(self, i: int) -> Any:
    """Where the stream of run `i` goes on after this step."""
    waiting = self._waiting[i]
    return waiting[0][0] if waiting else self._streams[i].get_state()


class _Book:
  """Writes and shows what the steps of a phase have to say."""

  def __init__(
    self,
    together: Sequence[Run],
    crew: Crew,
    name: str,
    offset: int,
    first_step: int,
  ):
    """Nothing has been recorded yet.

    Args:
      together: The runs.
      crew: Moves them on.
      name: Of the phase.
      offset: Steps of the phases before.
      first_step: The first one of the phase in this process.
    """
    self._together, self._crew = together, crew
    self._name, self._offset, self._first = name, offset, first_step
    self._phase = together[0].config.section(name)
    self.display = progress.Progress(name, self._phase.steps)
    self._clock = time.perf_counter()  # When the last step was recorded.

  def record(
    self,
    done: int,
    outcomes: Sequence[drivers.Outcome],
    compile_s: float,
    is_due: bool,
  ) -> None:
    """Waits for step `done` of the phase, and evaluates if that is due.

    Raises:
      FloatingPointError: The loss or gradient of the only run is not finite.
    """
    numbers = [outcome.metrics() for outcome in outcomes]
    now = time.perf_counter()
    times = {"time/step_s": now - self._clock, "time/compile_s": compile_s}
    self._clock = now
    if done == self._first:
      hosts.say(f"{self._name}: traced and compiled in {compile_s:.1f} s")
    written = []
    for run, own, outcome in zip(
      self._together, numbers, outcomes, strict=True
    ):
      if run.failure is not None:
        continue
      try:
        with contextlib.ExitStack() as stack:
          if is_due:
            stack.enter_context(self._crew.at_hand(run))
          step = self._offset, done
          written.append(
            run_lib.record(
              run, self._name, *step, own | times, outcome.samples, is_due
            )
          )
      except FloatingPointError as error:
        if len(self._together) == 1:
          raise
        run.failure = error
        print(f"{run.saved.directory.parent} is left behind: {error}")
    if written and hosts.is_main():
      shown = [self._phase.of_kind.shows(own) for own in written]
      means = {key: float(np.mean([x[key] for x in shown])) for key in shown[0]}
      self.display.update(
        done, means, sum(own["tokens_per_second"] for own in written)
      )
    self._together[0].watch.step()
    if is_due:
      self._clock = time.perf_counter()


def _save(
  together: Sequence[Run], crew: Crew, index: int, step: int, feed: _Feed
) -> None:
  """Saves all runs; none is a checkpoint ahead of another for long."""
  with jax.transfer_guard("allow"):
    if len(together) > 1:
      for run in going_on(together):
        run.saved.wait()
    for i, run in enumerate(together):
      if run.failure is None:
        with crew.at_hand(run):
          run_lib.save(run, index, step, feed.position(i))

"""The training loop, read from top to bottom.

The loop sets up a run, and then, for each phase, restores or enters it and
steps through it. Metrics of step n are fetched while step n + 1 runs. A run can
be killed at any moment and started again with the same command: it continues
from the last checkpoint, and ends with the same bytes as if nothing had
happened.

Several runs that are one program (`many.py`) go through the same loop: a
stepper advances all of them by a step, and everything else is done for each
run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from grpo_jax.algorithms import options
from grpo_jax.settings import config as config_lib
from grpo_jax.training import run as run_lib
from grpo_jax.training import steps, tracing
from grpo_jax.training.evaluation import lint
from grpo_jax.training.phases import build, executors
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.run import OpenRun, Result
from grpo_jax.training.runtime import (
  checkpoints,
  compilation,
  files,
  hosts,
  lock,
  sharding,
  terminal,
)


class OneRun(steps.Stepper):
  """The stepper of a single run, whose state is always on its devices."""

  def __init__(self, run: OpenRun, index: int):
    phase = run.phases[index].phase
    self._run = run
    self._driver = run.program(
      "step",
      index,
      lambda: executors.make_driver(
        run.problem, run.mesh, phase, run.host_reports
      ),
    )

  def advance(self, batches: list[list[Any]]) -> list[executors.StepResult]:
    self._run.state, outcome = self._driver(self._run.state, *batches[0])
    self._run.host_reports = outcome.host_reports
    return [outcome]

  def places(self, run: OpenRun) -> np.ndarray:  # [P] int32
    return jax.device_get(run.state.schedule["places"])

  @contextlib.contextmanager
  def at_hand(self, run: OpenRun) -> Iterator[None]:
    del run
    yield


def train(
  config: ml_collections.ConfigDict, workdir: str | os.PathLike
) -> Result:
  """Runs the phases of a config, or those that are left.

  Args:
    config: See `config.py`; the resolved form is saved in the workdir.
    workdir: Folder of the run, local or gs://; an unfinished run in it is
      continued.

  Raises:
    KeyError, TypeError, ValueError: The config, data, checkpoint or a verifier
      is at fault, or another process trains in `workdir`; nothing that was
      written is lost.
    FloatingPointError: The loss or gradient is not finite.
    health.Halted: A rule of `config.health.halt` (`HealthHalt`) or a guard
      (`GuardHalt`) has stopped the run; the message names the step of the last
      checkpoint.
  """
  settings = config_lib.resolve(config)
  workdir = files.parse(workdir)
  mesh = sharding.make_mesh(**dataclasses.asdict(settings.mesh))
  config_json = config.to_json()
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(mesh))  # For the kernels of models.
    directory = workdir / "checkpoints"
    store: checkpoints.Checkpoints | None = None
    watch = stack.enter_context(
      hosts.Watch(
        settings.hosts.timeout_s,
        settings.hosts.stall_s,
        describe=lambda: checkpoints.describe(directory),
        wait_for_save=lambda: store.wait() if store else None,
      )
    )
    hosts.check_same(
      config=zlib.crc32(config_json.encode()), workdir=str(workdir)
    )
    stack.enter_context(lock.held(workdir))
    store = checkpoints.Checkpoints(directory, settings.checkpoint.keep)
    stack.callback(store.close)
    with terminal.waiting("reading the data"):
      problem = problem_lib.make_problem(settings)
    stack.callback(problem.close)
    sizes = [phase.group_size for phase in settings.stages if phase.samples]
    if problem.reward.asks_host:
      from grpo_jax.training.problem import probe  # Asks worker processes.

      probe.check(problem, *sizes[:1])
    lint.before_training(settings, problem)
    run = run_lib.open_run(
      stack,
      settings,
      config_json,
      workdir,
      store=store,
      problem=problem,
      prepared=run_lib.prepare(settings, problem, mesh, workdir),
      mesh=mesh,
      watch=watch,
      stop=stack.enter_context(hosts.Stop(mesh)),
      compiling=stack.enter_context(compilation.clock()),
    )
    stack.push(watch.failing)  # Runs before exits that wait for others.
    go_through([run], functools.partial(OneRun, run))
    if failure := _failure(run) or run.failure:
      raise failure
    return run_lib.result(run)


def go_through(
  together: Sequence[OpenRun], crew_of: Callable[[int], steps.Stepper]
) -> None:
  """Takes runs that are at the same step through the phases that are left.

  Args:
    together: The runs. If there are several, one whose loss is not finite, that
      a health rule stops, or whose data fail is left behind with its `failure`.
      A run that a guard has halted is left behind in any case.
    crew_of: (index of a phase) -> the stepper of the runs in that phase.
  """
  first = together[0]
  if (last_step := first.store.latest_step()) is not None:
    name = first.config.phases[first.first]
    config = first.config
    num_steps = sum(config.section(phase).steps for phase in config.phases)
    is_over = last_step == num_steps
    suffix = ", which was the last" if is_over else ""
    hosts.say(f"continuing after step {last_step} ({name}){suffix}")
    if is_over:
      hosts.say(
        "for more steps: a new --workdir, and this one as"
        " --config.start_workdir"
      )
  for index in range(first.first, len(first.phases)):
    if all(run.stopping for run in active(together)):
      break
    crew = crew_of(index)
    _run_phase(together, index, crew)
    _leave_behind(together, active(together))
  for run in together:
    run.store.wait()


def active(together: Sequence[OpenRun]) -> list[OpenRun]:
  """Returns the runs that are not left behind."""
  return [run for run in together if run.failure is None]


def _failure(run: OpenRun) -> Exception | None:
  """The exception for a run that a health rule has stopped, or None."""
  if run.health.halted is None:
    return None
  run.store.wait()
  return run.health.failure(run.problem.complaints, run.store.latest_step())


def _leave_behind(together: Sequence[OpenRun], runs: Sequence[OpenRun]) -> None:
  """Leaves those of several runs behind that a health rule has stopped.

  Args:
    together: The runs; a single run stops the loop itself.
    runs: The runs to look at, which have been saved since.
  """
  for run in runs if len(together) > 1 else ():
    run.failure = _failure(run)
    if run.failure is not None:
      workdir = run.store.directory.parent
      logging.warning("%s is left behind: %s", workdir, run.failure)


def _run_phase(
  together: Sequence[OpenRun], index: int, crew: steps.Stepper
) -> None:
  """Steps through one phase, from the step that the states are at."""
  for run in together:  # A run that was left behind is in the program too.
    with crew.at_hand(run):
      run_lib.enter(run, index)
    run.after = None
  # All runs have its sizes; a run that was left behind stays at its old step.
  first = active(together)[0]
  name = first.config.phases[index]
  phase = first.config.section(name)
  plan = first.phases[index].phase.plan
  if phase.micro_batch_size not in (None, plan.micro_batch_size):
    hosts.say(build.update_path(name, phase, plan))
  done = int(first.state.phase_step)
  offset = int(first.state.step) - done
  if phase.of_kind.evaluates and done == 0:
    for run in active(together):
      with crew.at_hand(run):
        summary = run_lib.evaluate(run)
        run.before = run.before or summary
        if run.guards.probes(name, done, phase.steps, True):
          with jax.transfer_guard("allow"):
            summary = summary | run.guards.look(run.state)[0]
      run.log.write(offset, name, summary)
      tracing.write_evaluation(run, name, offset, at_start=True)

  book = steps.Recorder(together, crew, index, offset, done + 1)
  feed = steps.Batches(together, index, crew)
  if phase.samples and first.phases[index].phase.trains_policy:
    algorithm, objective = first.config.objective(name)
    short_name = algorithm.name.rpartition(":")[2]  # Without the module.
    hosts.say(f"{name}: {short_name}; {options.in_force(objective)}")
  pending: Callable[[], None] | None = None
  with book.display, jax.transfer_guard("disallow"):
    # Looked at once a step, so that a step that stops the loop is also saved.
    stopping = first.stop.look()
    while done < phase.steps and not stopping and active(together):
      with run_lib.profiled(first, offset + done + 1):
        batches = feed.next(phase.steps - done)
        compiled = first.compiling.count
        with book.advancing():
          outcomes = feed.counted(batches, crew.advance(batches))
        of_step = first.compiling.count - compiled
      if pending is not None:
        pending()
      for run in active(together):
        run.store.check()
      done += 1
      looks = phase.of_kind.evaluates or phase.of_kind.measures
      is_due = looks and run_lib.due(first.config.eval.every, done, phase.steps)
      is_kept = run_lib.due(first.config.checkpoint.every, done, phase.steps)
      is_probed = first.guards.probes(name, done, phase.steps, is_kept)
      pending = functools.partial(
        book.record, done, outcomes, of_step, is_due, is_probed
      )
      stopping = first.stop.look() or all(
        run.stopping for run in active(together)
      )
      halted = [run for run in active(together) if run.health.halted]
      is_saved = stopping or bool(halted) or is_kept
      is_traced = tracing.is_traced(first.config, name, done)
      if is_due or is_saved or is_traced or is_probed:
        pending()
        pending = None
      _leave_halted(together)
      # A state that canaries have not looked at is not saved: it is redone.
      if is_saved and (is_probed or not first.guards.watches(name)):
        _save(together, crew, index, offset + done, feed)
      _leave_behind(together, halted)


def _leave_halted(together: Sequence[OpenRun]) -> None:
  """Leaves runs behind that a guard has halted; their checkpoints stay."""
  for run in active(together):
    if run.guards.halted:
      run.store.wait()
      run.failure = run.guards.error(run.store.latest_step())
      if len(together) > 1:
        workdir = run.store.directory.parent
        logging.warning("%s is left behind: %s", workdir, run.failure)


def _save(
  together: Sequence[OpenRun],
  crew: steps.Stepper,
  index: int,
  step: int,
  feed: steps.Batches,
) -> None:
  """Saves all runs; no checkpoint is ahead of another one for long."""
  with jax.transfer_guard("allow"):
    if len(together) > 1:
      for run in active(together):
        run.store.wait()
    for i, run in enumerate(together):
      if run.failure is None:
        with crew.at_hand(run):
          run_lib.save(run, index, step, feed.position(i))

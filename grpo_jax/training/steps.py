"""Steps of a phase: their batches, the stepper of runs, and their records."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from grpo_jax.training import run as run_lib
from grpo_jax.training import tracing
from grpo_jax.training.monitor import health
from grpo_jax.training.phases import executors
from grpo_jax.training.run import OpenRun
from grpo_jax.training.runtime import compilation, hosts, terminal


class Stepper(Protocol):
  """The object that advances the runs of a phase."""

  def advance(self, batches: list[list[Any]]) -> list[executors.StepResult]:
    """Advances all runs by one step; returns the result of each.

    Args:
      batches: For each run the batch of the step, and those that come next.
    """

  def places(self, run: OpenRun) -> Any:
    """Returns the places in its pool of a run's next prompts, [P] int32.

    Waits for the step that chooses them.
    """

  def at_hand(self, run: OpenRun) -> contextlib.AbstractContextManager[None]:
    """Puts the state of a run into `run.state`, on its devices, for a while."""


class Batches:
  """The batches of a phase, each with the state of the stream before it.

  The batches of steps that are not done yet wait in a queue: the next one, and
  those for which rollouts are drawn ahead.
  """

  def __init__(self, together: Sequence[OpenRun], index: int, crew: Stepper):
    self._together, self._crew = together, crew
    self._streams = [run.streams[index] for run in together]
    phase = together[0].phases[index].phase
    self._ahead = 1 + phase.num_ahead
    self._is_chosen = phase.is_told_prompts
    self._totals: executors.Totals | None = None
    self._waiting: list[collections.deque[tuple[Any, Any]]] = [
      collections.deque() for _ in together
    ]

  def next(self, steps_left: int) -> list[list[Any]]:
    """Returns for each run the batch of this step, and those that come next.

    A run that is left behind, because of an earlier failure or since its data
    fail here, is in the program too: it gets the batches of another run.

    Raises:
      FileNotFoundError, ValueError: The data of the only run are at fault, or
        those of all runs that are left.
    """
    batches = []
    for run, stream, waiting in zip(
      self._together, self._streams, self._waiting, strict=True
    ):
      try:
        batches.append(self._of_run(run, stream, waiting, steps_left))
      except (FileNotFoundError, ValueError) as error:
        run.failure = error
        batches.append([])
        if not any(x.failure is None for x in self._together):
          raise
        logging.warning(
          "%s is left behind: %s", run.store.directory.parent, error
        )
    substitute = next(ahead for ahead in batches if ahead)
    return [ahead or substitute for ahead in batches]

  def _of_run(
    self, run: OpenRun, stream: Any, waiting: Any, steps_left: int
  ) -> list[Any]:
    """The batches of a run; none if it is left behind."""
    if run.failure is not None:
      return []
    while len(waiting) < min(self._ahead, steps_left):
      before = stream.get_state()
      if self._is_chosen:
        waiting.append((before, stream.take(self._crew.places(run))))
      else:
        waiting.append((before, next(stream)))
    batches = [batch for _, batch in waiting]
    waiting.popleft()
    return batches

  def counted(
    self, batches: list[list[Any]], outcomes: Sequence[executors.StepResult]
  ) -> list[executors.StepResult]:
    """Adds to a step's metrics the number of records left out for their images.

    Args:
      batches: The batches of the step (`next`).
      outcomes: The result of the step for each run.
    """
    return [
      self._with_unusable(run, ahead[0].num_unusable, outcome)
      if run.config.data.images
      else outcome
      for run, ahead, outcome in zip(
        self._together, batches, outcomes, strict=True
      )
    ]

  def _with_unusable(
    self, run: OpenRun, number: int, outcome: executors.StepResult
  ) -> executors.StepResult:
    if self._totals is None:
      self._totals = executors.totals(run.mesh)
    total = self._totals({"data/unusable": float(number)})
    return dataclasses.replace(
      outcome, metrics=lambda: {**outcome.metrics(), **total()}
    )

  def position(self, i: int) -> Any:
    """The state of the stream of run `i` after this step."""
    waiting = self._waiting[i]
    return waiting[0][0] if waiting else self._streams[i].get_state()


class Recorder:
  """Writes and shows metrics, samples and traces of the steps of a phase."""

  def __init__(
    self,
    together: Sequence[OpenRun],
    crew: Stepper,
    index: int,
    offset: int,
    first_step: int,
  ):
    """Starts with nothing recorded.

    Args:
      first_step: The first step of the phase in this process.
    """
    self._together, self._crew = together, crew
    config = together[0].config
    self._name, self._offset = config.phases[index], offset
    self._first = first_step
    self._phase = config.section(self._name)
    self._tracers = [tracing.Tracer(run, index) for run in together]
    self.display = terminal.Progress(self._name, self._phase.steps)
    self._pace = terminal.Pace()
    self._is_compiled = False
    self._clock = time.perf_counter()  # Time of the last record.

  @contextlib.contextmanager
  def advancing(self) -> Iterator[None]:
    """Surrounds the start of a step; shows that the first one compiles."""
    with contextlib.ExitStack() as stack:
      if not self._is_compiled:
        stack.enter_context(terminal.waiting(f"{self._name}: compiling"))
      yield
    self._is_compiled = True

  def record(
    self,
    done: int,
    outcomes: Sequence[executors.StepResult],
    compiled: compilation.Count,
    is_due: bool,
    is_probed: bool,
  ) -> None:
    """Records step `done` of the phase; evaluates and looks at canaries if due.

    The call waits for the step.

    Raises:
      FloatingPointError: The loss or gradient of the only run is not finite.
    """
    numbers = [outcome.metrics() for outcome in outcomes]
    now = time.perf_counter()
    times = {
      "time/step_s": now - self._clock,
      "time/compile_s": compiled.seconds,
    }
    self._pace.step(times["time/step_s"] - compiled.seconds)
    self._clock = now
    if done == self._first:
      hosts.say(f"{self._name}: {compiled.describe()}")
    lines = []
    config = self._together[0].config
    is_traced = tracing.is_traced(config, self._name, done)
    for run, metrics, outcome, tracer in zip(
      self._together, numbers, outcomes, self._tracers, strict=True
    ):
      if run.failure is not None:
        continue
      try:
        with contextlib.ExitStack() as stack:
          if is_due or is_traced or is_probed:
            stack.enter_context(self._crew.at_hand(run))
          step = self._offset, done
          line = run_lib.record(
            *(run, self._name, *step, metrics | times, outcome),
            *(is_due, is_probed),
          )
          if is_due and self._phase.of_kind.evaluates:
            tracing.write_evaluation(run, self._name, sum(step))
          is_alarm = config.log.traces_every > 0 and health.has_alarm(line)
          if is_traced or (is_alarm and outcome.rows is not None):
            tracer.write(sum(step), outcome, is_traced, is_alarm)
          # The last evaluation stays on the screen until the next.
          lines.append((run.after or {}) | line)
      except FloatingPointError as error:
        if len(self._together) == 1:
          raise
        run.failure = error
        self.display.alarm(
          f"{run.store.directory.parent} is left behind: {error}"
        )
    if is_due:
      self._pace.evaluation(sum(run.evaluation_s for run in self._together))
    if lines and hosts.is_main():
      self._show(done, lines)
    self._together[0].watch.step()
    if is_due or is_probed:
      self._clock = time.perf_counter()

  def _show(self, done: int, lines: Sequence[Mapping[str, float]]) -> None:
    """Shows the metrics that have been written of a step."""
    evaluations = 0
    if self._phase.of_kind.evaluates:
      every = self._together[0].config.eval.every
      evaluations = terminal.num_due(every, done, self._phase.steps)
    self.display.update(
      done,
      terminal.together([self._phase.of_kind.shows(line) for line in lines]),
      sum(line["tokens_per_second"] for line in lines),
      self._pace.left(self._phase.steps - done, evaluations),
    )

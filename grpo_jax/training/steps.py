"""Steps of a phase: their batches, what moves runs on, and what is recorded."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from grpo_jax.training import drivers, hosts, progress
from grpo_jax.training import run as run_lib
from grpo_jax.training.run import Run


class Crew(Protocol):
  """What moves the runs of a phase on."""

  def advance(self, batches: list[list[Any]]) -> list[drivers.Outcome]:
    """One step of all runs.

    Args:
      batches: For each run the batch of the step, and those that come next.

    Returns:
      What the step will have to say of each run.
    """

  def at_hand(self, run: Run) -> contextlib.AbstractContextManager[None]:
    """Has the state of a run in `run.state`, on its devices, for a while."""


class Feed:
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
    """For each run the batch of this step, and those that come next."""
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


class Book:
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
      name: Name of the phase.
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
            run_lib.record(run, self._name, *step, own | times, outcome, is_due)
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

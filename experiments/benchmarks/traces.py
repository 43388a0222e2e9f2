"""The cost of traces: rounds of steps with and without them, in turn.

    python -m experiments.benchmarks.traces --config=configs/quickstart.py
    python -m experiments.benchmarks.traces --config=configs/gsm8k_cpu.py \
        --config.log.traces_every=20 --rounds=5

A round has as many steps as there are between two traces. In every other round
one step is traced as a run traces it: the host waits for the step, runs the new
policy over its rows, and fetches and writes some of them. The median round of
each kind counts, so that a machine that is busy for a while does not decide.
All programs are compiled before. The program prints the ratio of the rounds,
the seconds of host work on a trace, the bytes of a trace in the file, and the
bytes of the step's program with and without the rows that it hands out.
"""

from __future__ import annotations

import contextlib
import pathlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.step import step as step_lib
from grpo_jax.training import loop, replay, steps, tracing
from grpo_jax.training import run as run_lib
from grpo_jax.training.phases import executors
from grpo_jax.training.runtime import log, sharding, traces

_CONFIG = flags_lib.define_config()
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Of each kind.", 1)
_MIB = 2**20


def main(argv: Sequence[str]) -> int:
  """Measures, and prints a few lines."""
  del argv
  settings = config_lib.resolve(_CONFIG.value)
  index = next(
    i
    for i, name in enumerate(settings.phases)
    if settings.section(name).samples
  )
  every = settings.log.traces_every or 20
  with contextlib.ExitStack() as stack:
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    run = stack.enter_context(replay.opened(folder, settings, step=1))
    run.log = stack.enter_context(log.MetricsLog(folder))
    for earlier in range(index):  # Their members, and none of their steps.
      run_lib.enter(run, earlier)
    run_lib.enter(run, index)
    bytes_with, bytes_without = _sizes(run, index)
    seconds, writing = _measured(run, index, every)
    size = run.log.position()[traces.FILE]
  on, off = (statistics.median(seconds[is_on]) for is_on in (True, False))
  name = settings.phases[index]
  print(f"{every} steps of phase {name} in {_ROUNDS.value} rounds of each kind")
  print(f"without traces  {off / every * 1e3:10.2f} ms a step")
  print(f"with traces     {on / every * 1e3:10.2f} ms a step")
  print(f"ratio           {on / off:10.4f}")
  took = statistics.median(writing)
  print(f"a trace         {took * 1e3:10.2f} ms, {took / off:.4f} of a round")
  print(f"in the file     {size / (_ROUNDS.value + 1) / 1024:10.1f} KiB")
  for kind, count in bytes_with.items():
    before = bytes_without[kind] / _MIB
    print(f"{kind:15} {count / _MIB:10.2f} MiB, {before:.2f} without rows")
  return 0


def _measured(
  run: run_lib.OpenRun, index: int, every: int
) -> tuple[dict[bool, list[float]], list[float]]:
  """Seconds of rounds with and without traces, and of traces.

  The first round of each kind is not counted.
  """
  crew = loop.OneRun(run, index)
  feed = steps.Batches([run], index, crew)
  tracer = tracing.Tracer(run, index)
  seconds: dict[bool, list[float]] = {True: [], False: []}
  writing = []
  for number in range(2 * (_ROUNDS.value + 1)):
    is_on = number % 2 == 0
    started = time.perf_counter()
    before: executors.StepResult | None = None
    for step in range(every):
      (outcome,) = crew.advance(feed.next(1 << 30))
      if before is not None:
        before.metrics()
      before = outcome
      if is_on and step == every // 2:
        outcome.metrics()
        writing.append(-time.perf_counter())
        tracer.write(1, outcome)
        writing[-1] += time.perf_counter()
    assert before is not None
    before.metrics()
    if number >= 2:
      seconds[is_on].append(time.perf_counter() - started)
  return seconds, writing[1:]


def _sizes(
  run: run_lib.OpenRun, index: int
) -> tuple[dict[str, int], dict[str, int]]:
  """Bytes of the step's program, with its rows and without; see JAX."""
  phase = run.phases[index].phase
  if run.problem.reward.asks_host or run.problem.host_environment:
    return {}, {}  # The host is in the middle of it.
  batch = next(run_lib.make_stream(run.config, run.problem, run.mesh, index))
  prompts = sharding.from_local(batch.prompts, sharding.by_rows(run.mesh))

  def without(state: Any, prompts: Any, *, phase: step_lib.Phase) -> Any:
    return step_lib.fused_step(state, prompts, phase=phase)[:2]

  def size(function: Any) -> dict[str, int]:
    step: Any = executors.jit_step(run.mesh, function, phase)
    found = step.lower(run.state, prompts).compile().memory_analysis()
    return {
      "handed out": found.output_size_in_bytes,
      "temporary": found.temp_size_in_bytes,
    }

  return size(step_lib.fused_step), size(without)


if __name__ == "__main__":
  flags_lib.run(main)

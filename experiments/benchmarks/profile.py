r"""Profile of a training step, operation by operation, as text.

    python -m experiments.benchmarks.profile --preset=L

The step is the fused one of `step.py`, with the flags of that benchmark for its
sizes. It is compiled and run, and then JAX's profiler records one run. An
operation is an instruction of the compiled program. Its time leaves out the
instructions that it runs: a loop's time is without its body. XLA runs
independent operations on several threads at the same time. Each of these then
has its share of the time, so the sum is at most the time of the step.
Operations with the same phase, module and shape are one line, so the layers of
a model are added up.

A rate is the operations of matrix products over seconds. It stands beside the
best rate of a product, measured in the same process. The work of an operation's
helper threads counts to the seconds of the operation and has no line of its
own. Some products, such as those of weight gradients, only start their threads
and are not waited for: their time is in the lines of operations that run at the
same time, or in no line. So read the rate of all products of a phase, not of
one product. Recording itself takes time: the seconds of the step are printed
with and without it.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import itertools
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax

from experiments.benchmarks import inputs, timing, workload
from experiments.benchmarks import step as step_benchmark
from experiments.pods import costs, hlo
from grpo_jax.cli import flags as flags_lib
from grpo_jax.step import step as step_lib
from grpo_jax.training.phases import executors
from grpo_jax.training.runtime import sharding

_LINES = 25  # Of the table of operations.
_PHASES = ("prefill", "decode", "rollout", "verifier", "update")
# Scopes that say nothing of what is computed.
_PLAIN = (*_PHASES, "while", "body", "cond", "closed_call", "checkpoint", "vjp")


class Event(NamedTuple):
  """An interval of a thread's work.

  Attributes:
    name: The instruction that was run, or another label of the profiler.
    start, end: Times, nanoseconds.
  """

  name: str
  start: float
  end: float


class Kind(NamedTuple):
  """Properties that the operations of one line share.

  Attributes:
    phase: Phase of the step; "other" if the program does not name it.
    module: Module of the model, or the function that made the operation.
    shape: Shape of the result; for products also the shapes of the factors.
    flops: Operations of one run; 0 where nothing is multiplied.
  """

  phase: str
  module: str
  shape: str
  flops: float


def _innermost(events: Iterable[Event]) -> Iterator[Event]:
  """Yields the events of a thread without the parts that inner events take.

  Args:
    events: The events of one thread. Any two of them follow each other, or
      one lies within the other.
  """
  open_events: list[Event] = []
  at = 0.0

  def until(end):
    nonlocal at
    if open_events and at < end:
      yield Event(open_events[-1].name, at, end)
    at = end

  for event in sorted(events, key=lambda x: (x.start, -x.end)):
    while open_events and open_events[-1].end <= event.start:
      yield from until(open_events[-1].end)
      open_events.pop()
    yield from until(event.start)
    open_events.append(event)
  while open_events:
    yield from until(open_events[-1].end)
    open_events.pop()


def shared(threads: Iterable[Iterable[Event]]) -> dict[str, float]:
  """Name -> seconds; if several threads work, the seconds are divided by them.

  Args:
    threads: The events of each thread, as in `_innermost`.
  """
  found: dict[str, float] = collections.defaultdict(float)
  changes = []
  for part in itertools.chain.from_iterable(map(_innermost, threads)):
    changes += [(part.start, 1, part.name), (part.end, -1, part.name)]
  running: collections.Counter[str] = collections.Counter()
  before, num_running = 0.0, 0
  for now, change, name in sorted(changes):
    if num_running:
      each = (now - before) / num_running / 1e9
      for other, count in running.items():
        found[other] += each * count
    before = now
    num_running += change
    running[name] += change
    if not running[name]:
      del running[name]
  return dict(found)


def kinds(text: str) -> dict[str, Kind]:
  """Describes each instruction of a compiled program, by its name."""
  module = hlo.parse(text)
  found = {}
  for computation in module.computations.values():
    for one in computation.instructions.values():
      flops, factors = 0.0, ""
      fused = module.computations.get(one.attribute("calls") or "")
      of, parts = computation, [one]
      if fused is not None:
        of, parts = fused, [*fused.instructions.values()]
      for part in parts:
        if part.opcode in ("dot", "convolution"):
          flops += costs.product_flops(of, part)
          names = part.operands[:2]
          factors = " · ".join(_shape(of.instructions[x]) for x in names)
      shape = f"{factors} → {_shape(one)}" if factors else _shape(one)
      found[one.name] = Kind(*_place(one), shape, flops)
  return found


def _shape(one: hlo.Instruction) -> str:
  if not one.arrays:
    return ""
  return "×".join(map(str, one.arrays[0].dims)) or "one"


def _place(one: hlo.Instruction) -> tuple[str, str]:
  """Phase and module of an instruction, by the scopes of its trace."""
  scopes = one.op_name.split("/")
  parts = [re.sub(r"[\w.]+\((.*)\)", r"\1", x) for x in scopes[1:]]
  phase = next((x for x in reversed(parts) if x in _PHASES), "other")
  useful = [x for x in parts if re.fullmatch(r"[a-z_]+", x) and x not in _PLAIN]
  if "transpose(" in one.op_name:
    useful.append("gradient")
  return phase, "/".join(useful[-3:]) or one.opcode


def table(
  seconds: dict[Kind, tuple[int, float]], step_s: float, best: float
) -> list[str]:
  """The lines of both tables.

  Args:
    seconds: Number of runs of each kind, and their seconds in all.
    step_s: Seconds of the step that was recorded.
    best: Operations a second of the fastest product.
  """
  total = sum(s for _, s in seconds.values())
  of_phase: dict[tuple[str, bool], list[float]] = collections.defaultdict(
    lambda: [0, 0.0, 0.0]
  )
  for kind, (count, s) in seconds.items():
    sums = of_phase[kind.phase, kind.flops > 0]
    sums[0] += count
    sums[1] += s
    sums[2] += kind.flops * count
  lines = [
    f"{total:.3f} s in operations, {total / step_s:.2f} × the step",
    "",
    f"{'phase':<10}{'operations':<12}{'count':>8}{'seconds':>9}{'share':>7}"
    f"{'GFLOP/s':>9}{'of best':>8}",
  ]

  def row(start, count, s, flops):
    rate = f"{flops / s / 1e9:>9.1f}{flops / s / best:>8.0%}" if flops else ""
    return f"{start}{count:>8}{s:>9.3f}{s / total:>7.1%}{rate}"

  for (phase, is_product), (times, s, flops) in sorted(
    of_phase.items(), key=lambda x: -x[1][1]
  ):
    what = "products" if is_product else "others"
    lines.append(row(f"{phase:<10}{what:<12}", int(times), s, flops))
  lines += [
    "",
    f"{'':<22}{'count':>8}{'seconds':>9}{'share':>7}{'GFLOP/s':>9}"
    f"{'of best':>8}",
  ]
  largest = sorted(seconds.items(), key=lambda x: -x[1][1])
  for kind, (count, s) in largest[:_LINES]:
    lines.append(f"{kind.phase} {kind.module}: {kind.shape}")
    lines.append(row(" " * 22, count, s, kind.flops * count))
  rest = largest[_LINES:]
  lines.append(f"{len(rest)} further kinds")
  lines.append(
    row(" " * 22, sum(n for _, (n, _) in rest), sum(s for _, (_, s) in rest), 0)
  )
  return lines


def _recorded(folder: str, known: dict[str, Kind]) -> dict[Kind, tuple]:
  """Counts and seconds in the files of the profiler in a folder."""
  (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
  threads = [
    [
      Event(event.name, event.start_ns, event.start_ns + event.duration_ns)
      for event in line.events
      if event.name in known
    ]
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes
    for line in plane.lines
  ]
  counts = collections.Counter(x.name for events in threads for x in events)
  seconds = shared(threads)
  found: dict[Kind, tuple[int, float]] = {}
  for name, count in counts.items():
    before = found.get(known[name], (0, 0.0))
    found[known[name]] = before[0] + count, before[1] + seconds.get(name, 0.0)
  return found


def report(work: workload.Work) -> str:
  """Compiles, runs and records a step; returns the text about it."""
  mesh = sharding.make_mesh(1)
  with (
    contextlib.closing(inputs.make_problem(work, "fused")) as of,
    jax.set_mesh(mesh),
  ):
    phase, state = inputs.make_phase(work, of, mesh, num_lengths=1)
    prompts = jax.device_put(
      inputs.make_batch(work).prompts, sharding.by_rows(mesh)
    )
    step = executors.jit_step(mesh, step_lib.fused_step, phase)
    compiled = step.lower(state, prompts).compile()

    def run():
      nonlocal state
      state, *_ = compiled(step.inputs, state, prompts)
      return state

    products = timing.ceilings(work, phase.plan.micro_batch_size)["flops_per_s"]
    runs = {name: ceiling.run for name, ceiling in products.items()}
    seconds = timing.measure({**runs, "step": run}, 3)
    best = max(x.amount / min(seconds[name]) for name, x in products.items())
    with tempfile.TemporaryDirectory() as folder:
      with jax.profiler.trace(folder):
        start = time.perf_counter()
        jax.block_until_ready(run())
        recorded_s = time.perf_counter() - start
      found = _recorded(folder, kinds(compiled.as_text() or ""))
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes")
  lines = [
    f"{now}, {jax.devices()[0].device_kind}, {os.cpu_count()} cores, JAX"
    f" {jax.__version__}, load {os.getloadavg()[0]:.1f}",
    f"fused step: hidden {work.hidden}, {work.layers} layers, {work.prompts} x"
    f" {work.group} rows of {work.prompt_len} + {work.completion_len} tokens,"
    f" {work.dtype}",
    f"a step takes {min(seconds['step']):.3f} s, and {recorded_s:.3f} s while"
    f" it is recorded; the best product {best / 1e9:.0f} GFLOP/s",
  ]
  return "\n".join([*lines, *table(found, recorded_s, best)])


def main(argv: Sequence[str]) -> int:
  """Prints the report."""
  del argv
  print(report(step_benchmark.work_of_flags()))
  return 0


if __name__ == "__main__":
  flags_lib.run(main)

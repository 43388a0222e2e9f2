"""The training loop, read from top to bottom.

Set-up, then for each phase: restore or enter, and step. Metrics of step n are
fetched while step n + 1 runs. The run can be killed at any moment and started
again with the same command: it continues from the last checkpoint, and ends
with the same bytes as if nothing had happened.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import ml_collections
import numpy as np
from jax.sharding import Mesh

from grpo_jax.training import (
  assembly,
  checkpoints,
  drivers,
  evaluation,
  hosts,
  metrics_log,
  paths,
  probe,
  progress,
  runs,
  sharding,
  unscored,
)
from grpo_jax.training import config as config_lib
from grpo_jax.training import problem as problem_lib
from grpo_jax.training import step as step_lib
from grpo_jax.types import TrainState

# Settings that a resumed run may change: how it is watched, and the devices
# that compute it, on which its numbers depend by round-off alone.
MAY_CHANGE = frozenset(
  (
    *("hosts", "log", "mesh", "profile_steps", "required_accuracy"),
    "rewards.max_unscored",
  )
)


@dataclasses.dataclass(frozen=True)
class Result:
  """How a run ended.

  Attributes:
    step: Steps done, over all phases.
    preempted: True if SIGTERM stopped it; the same command continues.
    before, after: Held-out means (`evaluation.summarize`) at the start of the
      first "rl" phase and at the end; None without such a phase.
    num_prompts: Held-out prompts behind them.
    examples: Held-out completions at the end, one per prompt.
  """

  step: int
  preempted: bool
  before: dict[str, float] | None
  after: dict[str, float] | None
  num_prompts: int
  examples: list[evaluation.Completion]


class _CompileClock:
  """Seconds that JAX has spent on tracing and compiling."""

  def __init__(self):
    self.seconds = 0.0

  def __call__(self, event: str, duration_secs: float, **_: Any) -> None:
    if event.startswith("/jax/core/compile/"):
      self.seconds += duration_secs


@contextlib.contextmanager
def compile_clock() -> Iterator[_CompileClock]:
  clock = _CompileClock()
  jax.monitoring.register_event_duration_secs_listener(clock)
  try:
    yield clock
  finally:
    jax.monitoring.unregister_event_duration_listener(clock)


@dataclasses.dataclass
class Run:
  """What a run keeps open, and the state as it moves on."""

  config: config_lib.RunConfig
  problem: problem_lib.Problem
  mesh: Mesh
  evaluator: evaluation.Evaluator
  saved: checkpoints.Checkpoints
  log: metrics_log.MetricsLog | metrics_log.NoLog
  profile_dir: paths.Path
  stop: hosts.Stop
  watch: hosts.Watch
  compiling: _CompileClock
  state: TrainState
  before: dict[str, float] | None = None
  after: dict[str, float] | None = None  # Last evaluation of this phase.
  examples: list[evaluation.Completion] = dataclasses.field(
    default_factory=list
  )
  patience: unscored.Patience = dataclasses.field(init=False)
  clock: float = 0.0  # seconds; when the last step was recorded
  tracing: pathlib.Path | None = None  # Where a trace is being written.

  def __post_init__(self):
    self.patience = unscored.Patience(self.config.rewards.max_unscored)


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
      is at fault; nothing that was written is lost.
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
    saved = checkpoints.Checkpoints(directory, keep=settings.checkpoint.keep)
    stack.callback(saved.close)
    problem = problem_lib.make_problem(settings)
    stack.callback(problem.close)
    probe.check(problem)
    policy = assembly.make_policy(settings, problem, mesh)
    # All phases at once: sizes that do not fit are found before any work.
    phases = runs.make_phases(settings, problem, policy, mesh)
    shapes = runs.abstract_start(policy, settings.seed)
    runs.abstract_state(phases, shapes)
    streams = [
      make_stream(settings, problem, mesh, index)
      for index in range(len(phases))
    ]

    position, first = None, 0
    last_step = saved.latest_step()
    if last_step is not None:
      # Without a checkpoint nothing is continued, and all may change.
      metrics_log.check_config(workdir, json.loads(config_json), MAY_CHANGE)
      position = saved.extra(last_step)
      first = position["phase"]
      state = runs.restore(saved, last_step, phases, shapes, mesh)
      hosts.say(f"continuing after step {last_step} ({settings.phases[first]})")
    else:
      state = runs.first_state(settings, problem, policy, mesh)
    evaluator = evaluation.Evaluator(
      problem,
      policy,
      mesh,
      settings.eval.num_prompts,
      settings.eval.batch_size,
      settings.eval.temperature,
    )
    log: metrics_log.MetricsLog | metrics_log.NoLog = metrics_log.NoLog()
    if hosts.is_main():
      metrics_log.save_run_info(workdir, config_json)
      log = metrics_log.MetricsLog(
        workdir,
        tensorboard=settings.log.tensorboard,
        wandb_project=settings.log.wandb_project,
        resume_step=last_step,
        resume_position=position["log"] if position else None,
      )
    stack.enter_context(log)
    run = Run(
      config=settings,
      problem=problem,
      mesh=mesh,
      evaluator=evaluator,
      saved=saved,
      log=log,
      profile_dir=workdir / "profile",
      stop=stack.enter_context(hosts.Stop(mesh)),
      watch=watch,
      compiling=stack.enter_context(compile_clock()),
      state=state,
      before=position["before"] if position else None,
    )

    stack.push(watch.failing)  # Before whatever waits for other processes.
    for index in range(first, len(phases)):
      if run.stop.agreed() or run.patience.exhausted:
        break
      parts, enter, _ = phases[index]
      if position and index == first:
        streams[index].set_state(position["stream"])
      else:
        state = enter(run.state)
        run.state = jax.device_put(state, sharding.of_state(mesh, state))
        run.state = with_reference(run, index)
      _run_phase(run, parts, index, streams[index])

    saved.wait()
    run.patience.check(problem.complaints)
    return result(run)


def result(run: Run) -> Result:
  """How the run has ended, evaluated where that is missing, and saved."""
  preempted = run.stop.agreed()
  after = None
  if "rl" in run.config.phases and not preempted:
    # The last step of an "rl" phase has been evaluated, unless it was done
    # by an earlier start of this run.
    after = run.after or evaluate(run)
  if not preempted:
    run.log.write_result(
      int(run.state.step), run.before, after, run.evaluator.num_prompts
    )
  return Result(
    step=int(run.state.step),
    preempted=preempted,
    before=run.before,
    after=after,
    num_prompts=run.evaluator.num_prompts,
    examples=run.examples,
  )


def with_reference(run: Run, index: int) -> TrainState:
  """The state at the start of a phase, with its teacher if it has one."""
  phase: config_lib.PhaseConfig = getattr(run.config, run.config.phases[index])
  if not phase.reference_workdir or run.state.ref_params is None:
    return run.state
  return runs.with_reference_of(run.state, phase.reference_workdir, run.mesh)


def make_stream(
  config: config_lib.RunConfig,
  problem: problem_lib.Problem,
  mesh: Mesh,
  index: int,
) -> Any:
  """The batches of phase `index`, from the first on."""
  name = config.phases[index]
  phase: config_lib.PhaseConfig = getattr(config, name)
  seed = int(np.random.SeedSequence((config.seed, index)).generate_state(1)[0])
  make = problem.supervised_stream if name == "sft" else problem.prompt_stream
  num_prompts = phase.num_prompts * phase.max_rounds
  rows = drivers.rows_to_feed(problem, mesh, phase)
  return make(seed, num_prompts, phase.max_prompt_len, rows.tolist())


def _run_phase(
  run: Run, parts: step_lib.Parts, index: int, stream: Any
) -> None:
  """Steps through one phase, from wherever the state is in it."""
  name = run.config.phases[index]
  phase: config_lib.PhaseConfig = getattr(run.config, name)
  advance = drivers.make_driver(run.problem, run.mesh, parts)
  run.after = None
  done = int(run.state.phase_step)
  first = done + 1  # In this process.
  offset = int(run.state.step) - done
  if name == "rl" and done == 0:
    summary = evaluate(run)
    run.before = run.before or summary
    run.log.write(offset, name, summary)

  display = progress.Progress(name, phase.steps)

  def record_step(
    done: int, outcome: drivers.Outcome, compile_s: float, is_due: bool
  ) -> None:
    metrics = outcome.metrics()
    now = time.perf_counter()
    seconds, run.clock = now - run.clock, now
    if done == first:
      hosts.say(f"{name}: traced and compiled in {compile_s:.1f} s")
    times = {"time/step_s": seconds, "time/compile_s": compile_s}
    metrics = record(
      run, name, offset, done, metrics | times, outcome.samples, is_due
    )
    if hosts.is_main():
      display.update(done, shown(name, metrics), metrics["tokens_per_second"])
    run.watch.step()
    if is_due:
      run.clock = time.perf_counter()

  pending: Callable[[], None] | None = None
  # Batches whose step is not done, each with the stream's state before it:
  # the next one, and those that rollouts are drawn for ahead.
  upcoming: collections.deque[tuple[Any, Any]] = collections.deque()
  run.clock = time.perf_counter()
  with jax.transfer_guard("disallow"):
    # Looked at once a step: whatever stops the loop has also been saved.
    stopping = run.stop.look()
    while done < phase.steps and not stopping:
      with _profiled(run, offset + done + 1):
        while len(upcoming) < min(1 + parts.staleness, phase.steps - done):
          upcoming.append((stream.get_state(), next(stream)))
        batches = [batch for _, batch in upcoming]
        compiled = run.compiling.seconds
        run.state, outcome = advance(run.state, *batches)
        compile_s = run.compiling.seconds - compiled
      upcoming.popleft()
      if pending is not None:
        pending()
      done += 1
      is_due = name == "rl" and due(run.config.eval.every, done, phase.steps)
      pending = functools.partial(record_step, done, outcome, compile_s, is_due)
      stopping = run.stop.look() or run.patience.exhausted
      if due(run.config.checkpoint.every, done, phase.steps) or stopping:
        pending()
        pending = None
        with jax.transfer_guard("allow"):
          position = upcoming[0][0] if upcoming else stream.get_state()
          save(run, index, offset + done, position)
      elif is_due:
        pending()
        pending = None
  display.done()


def record(
  run: Run,
  name: str,
  offset: int,
  done: int,
  metrics: dict[str, float],
  samples: Callable[[], list[dict[str, Any]]],
  is_due: bool,
) -> dict[str, float]:
  """Writes what a step has to say.

  Args:
    run: Its state is evaluated, if that is due.
    name: Of the phase.
    offset: Steps of the phases before.
    done: Steps of this phase, this one included.
    metrics: Of the step, with its `time/step_s`, seconds.
    samples: As in `drivers.Outcome`.
    is_due: Whether to evaluate.

  Returns:
    All that was written.

  Raises:
    FloatingPointError: The loss or the gradient is not finite.
  """
  _check_finite(run, name, done, metrics)
  phase: config_lib.PhaseConfig = getattr(run.config, name)
  num_rows = phase.num_prompts * phase.group_size
  run.patience.step(offset + done, metrics, num_rows)
  tokens = metrics.get("tokens/generated", metrics["tokens/trained"])
  metrics["tokens_per_second"] = tokens / metrics["time/step_s"]
  if is_due:
    metrics |= evaluate(run)
  run.log.write(offset + done, name, metrics)
  every = run.config.log.samples_every
  if hosts.is_main() and every and (done == 1 or done % every == 0):
    run.log.write_samples(offset + done, samples())
  return metrics


def shown(name: str, metrics: dict[str, float]) -> dict[str, float]:
  """What the display has of the metrics of a step."""
  if name == "rl":
    return {
      "reward": metrics.get("drawn/reward", metrics["reward/mean"]),
      "accuracy": metrics.get("drawn/accuracy", metrics["accuracy"]),
    }
  if name == "value":
    explained = metrics.get("value/explained_variance")
    return {
      "value loss": metrics["value/loss"],
      **({} if explained is None else {"explained": explained}),
    }
  return {"loss": metrics["loss"]}


def due(every: int, done: int, steps: int) -> bool:
  """Whether something happens after `done` steps: always after the last."""
  return done == steps or (every > 0 and done % every == 0)


def evaluate(run: Run) -> dict[str, float]:
  """Held-out means; keeps the completions for the summary."""
  with jax.transfer_guard("allow"):
    results = run.evaluator.completions(
      assembly.evaluation_params(run.state), jax.random.key(0)
    )
  run.examples = [group[0] for group in results]
  run.after = evaluation.summarize(results)
  return run.after


def save(run: Run, index: int, global_step: int, stream_state: Any) -> None:
  """Everything the run needs to go on; the log reaches the disk first."""
  run.log.flush()
  extra = {
    "phase": index,
    "stream": stream_state,
    "log": run.log.position(),
    "before": run.before,
  }
  if run.state.queue:
    extra["queue"] = len(run.state.queue)
  run.saved.save(global_step, run.state, extra)


def _check_finite(
  run: Run, name: str, done: int, metrics: dict[str, float]
) -> None:
  bad = [
    f"{model}{name}"
    for model in ("", "value/")
    for name in ("loss", "gradient_norm")
    if not math.isfinite(metrics.get(f"{model}{name}", 0.0))
  ]
  if bad:
    run.saved.wait()
    last = run.saved.latest_step()
    checkpoint = run.config.model.checkpoint
    culprit = "critic" if bad[0].startswith("value/") else name
    doubt = f", or doubt the weights in {checkpoint}" if checkpoint else ""
    raise FloatingPointError(
      f"phase {name}, step {done}:"
      f" {', '.join(f'{k} is {metrics[k]}' for k in bad)}. The last checkpoint"
      f" in {run.saved.directory} is"
      f" {'missing' if last is None else f'step {last}'}. Look at metrics.jsonl"
      " for the steps before, and start again in another --workdir with a"
      f" lower config.{culprit}.optimizer.learning_rate{doubt}."
    )


@contextlib.contextmanager
def _profiled(run: Run, global_step: int) -> Iterator[None]:
  """Traces the steps of `config.profile_steps` for xprof."""
  steps = run.config.profile_steps
  if steps and global_step == steps[0]:
    run.tracing = paths.scratch(run.profile_dir)
    jax.profiler.start_trace(str(run.tracing))
  yield
  if run.tracing is not None and global_step == steps[1]:
    jax.block_until_ready(run.state)
    jax.profiler.stop_trace()
    paths.publish(run.tracing, run.profile_dir)
    run.tracing = None

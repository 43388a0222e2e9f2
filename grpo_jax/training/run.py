"""An open run: its files, its state, and the records of its steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax import imports
from grpo_jax.settings import config as config_lib
from grpo_jax.training import inputs
from grpo_jax.training.evaluation import evaluation, rows
from grpo_jax.training.monitor import guards as guards_lib
from grpo_jax.training.monitor import health as health_lib
from grpo_jax.training.phases import checkpointed, executors, judging
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import (
  checkpoints,
  compilation,
  files,
  hosts,
  sharding,
  terminal,
)
from grpo_jax.training.runtime import log as log_lib
from grpo_jax.types import Policy, TrainState

if TYPE_CHECKING:
  from grpo_jax.training.evaluation import reward_models

_NOWHERE = pathlib.Path()
# Settings that a resumed run may change: those of monitoring, and the devices,
# on which its numbers depend by round-off alone.
MAY_CHANGE = frozenset(
  (
    *("health", "hosts", "log", "mesh"),
    "profile_steps",
    *("judge.service.key_variable", "judge.service.max_calls"),
    *("judge.service.max_in_flight", "judge.service.max_tries"),
    *("judge.service.timeout_s", "required_accuracy", "rewards.max_unscored"),
    "rewards.worker_memory_gib",
  )
)


@dataclasses.dataclass(frozen=True)
class Result:
  """The end of a run.

  Attributes:
    step: Steps done, over all phases.
    preempted: True if a signal stopped the run; the same command continues it.
    stopped_by: Name of that signal, "SIGTERM" or "SIGINT"; or empty.
    saved_step: Step of the last checkpoint if a signal stopped the run. Steps
      that canaries have not looked at are not saved.
    before, after: Held-out means (`evaluation.summarize`) at the start of the
      first phase that is evaluated and at the end; None without such a phase.
    num_prompts: Number of held-out prompts behind these means.
    examples: Held-out completions at the end, one per prompt.
    has_drawn: True if a phase trains the policy on what it draws.
  """

  step: int
  preempted: bool
  before: dict[str, float] | None
  after: dict[str, float] | None
  num_prompts: int
  examples: list[evaluation.Completion]
  has_drawn: bool
  stopped_by: str = ""
  saved_step: int | None = None

  @property
  def stopped(self) -> str:
    """The step where a signal stopped the run, and the saved step, in words."""
    text = f"after step {self.step}, and "
    if self.saved_step == self.step:
      return f"{text}saved"
    if self.saved_step is None:
      return f"{text}no checkpoint has been saved yet"
    return f"{text}the last checkpoint is of step {self.saved_step}"


@dataclasses.dataclass
class OpenRun:
  """An open run: its files, its programs, and its state as it advances.

  Attributes:
    config_hash: Hash of the settings that may not change when it continues.
    phases: The phases, compiled for no step yet.
    evaluator, store, log: Held-out prompts, checkpoints, and the log.
    stop: Request to end the run, by a signal.
    state: State after the last step.
    position: Extra data of the checkpoint that the run continues from; None at
      the start.
    before, after: First evaluation of the run, last one of this phase.
    rewards: Reward of each held-out prompt in the last evaluation that was
      traced; None for a prompt that was not scored. None if no evaluation was
      traced.
    health: Health rules, which look at the numbers of each step.
    guards: Guards, which give verdicts on its steps.
    measured: Held-out pairs of phases that train a reward model, by phase name.
    tracing: Folder of the profile that is being written, or None.
    failure: The exception for which the run is left behind while others go on;
      None if it goes on.
    programs: Compiled programs by (purpose, name of the phase), so that a phase
      that comes again is not compiled again.
    evaluation_s: Seconds of the last evaluation, without compilation.
    host_reports: Reports of sessions on the rollouts in the queue of the state.
  """

  config: config_lib.RunConfig
  config_hash: str
  problem: problem_lib.Problem
  mesh: Mesh
  phases: list[checkpointed.OpenPhase]
  streams: list[Any]
  evaluator: evaluation.Evaluator
  store: checkpoints.Checkpoints
  log: log_lib.MetricsLog | log_lib.NoLog
  profile_dir: files.Path
  stop: hosts.Stop
  watch: hosts.Watch
  compiling: compilation.Clock
  state: TrainState
  position: dict[str, Any] | None = None
  before: dict[str, float] | None = None
  after: dict[str, float] | None = None
  examples: list[evaluation.Completion] = dataclasses.field(
    default_factory=list
  )
  rewards: list[float | None] | None = None
  health: health_lib.Monitor = dataclasses.field(init=False)
  guards: guards_lib.Guards = dataclasses.field(init=False)
  measured: dict[str, reward_models.HeldOut] = dataclasses.field(init=False)
  tracing: pathlib.Path | None = None
  index: int = 0
  failure: Exception | None = None
  programs: dict[tuple[str, str], Any] = dataclasses.field(default_factory=dict)
  evaluation_s: float = 0.0
  host_reports: tuple[judging.HostReport, ...] = ()

  def __post_init__(self):
    self.host_reports = judging.read_reports(
      (self.position or {}).get("told", ())
    )
    self.health = self._monitor()
    self.guards = guards_lib.open_guards(
      *(self.config, self.problem, self.phases, self.mesh, self.evaluator),
      self.store.directory.parent,
      self.position,
    )
    self.measured = {}
    for name, phase in zip(self.config.phases, self.phases, strict=True):
      if self.config.section(name).of_kind.measures:
        from grpo_jax.training.evaluation import reward_models

        self.measured[name] = reward_models.HeldOut(
          self.config, self.problem, self.mesh, name, phase.phase
        )

  def _monitor(self) -> health_lib.Monitor:
    """Makes the health monitor, which reads the log of the steps so far."""
    workdir = self.store.directory.parent
    monitor = health_lib.Monitor(
      health_lib.stages_of(self.config, self.problem.reward.correct),
      self.config.health,
      str(workdir / log_lib.SAMPLES),
    )
    if self.position is not None:
      lines = log_lib.read_lines(workdir / log_lib.METRICS)
      monitor.replay(lines, int(self.state.step))
    return monitor

  def program(self, kind: str, index: int, make: Callable[[], Any]) -> Any:
    """Returns a program of phase `index`, made once for phases of its name."""
    key = kind, self.config.phases[index]
    if key not in self.programs:
      self.programs[key] = make()
    return self.programs[key]

  @property
  def stopping(self) -> bool:
    """True if the run ends after this step, as of the last `look`."""
    return self.stop.agreed() or self.health.halted is not None

  @property
  def first(self) -> int:
    """Index of the phase that the run begins or continues with."""
    return self.position["phase"] if self.position else 0


class Prepared(NamedTuple):
  """A run before any of its arrays exists.

  Attributes:
    start: Shapes of the state before the first phase.
    streams: Batches of each phase; empty for a problem without records.
  """

  policy: Policy
  phases: list[checkpointed.OpenPhase]
  start: TrainState
  streams: list[Any]


def prepare(
  settings: config_lib.RunConfig,
  problem: problem_lib.Problem,
  mesh: Mesh,
  workdir: files.Path = _NOWHERE,
) -> Prepared:
  """Makes the parts of a run, and with them checks all of its settings.

  A launcher calls it for devices that are elsewhere, and so refuses a config
  that the trainer would refuse there.

  Args:
    problem: The problem that the run trains on. A problem that is only
      described has no records.
    mesh: Devices of the run; for devices that are elsewhere an `AbstractMesh`
      will do.

  Raises:
    FileNotFoundError, KeyError, TypeError, ValueError: Settings do not go
      together, or with the prompts or the devices; or a file that they name is
      at fault.
  """
  policy = policy_lib.make_policy(settings, problem, mesh)
  phases = checkpointed.make_phases(settings, problem, policy, mesh)
  guards_lib.check(settings, problem)
  # All phases at once: sizes that do not fit are found before any work.
  start = checkpointed.abstract_start(policy, settings.seed)
  checkpointed.abstract_state(phases, start)
  streams = [
    make_stream(settings, problem, mesh, index, workdir)
    for index in range(len(phases) if len(problem.train) else 0)
  ]
  return Prepared(policy, phases, start, streams)


def open_run(
  stack: contextlib.ExitStack,
  settings: config_lib.RunConfig,
  config_json: str,
  workdir: files.Path,
  *,
  store: checkpoints.Checkpoints,
  problem: problem_lib.Problem,
  prepared: Prepared,
  mesh: Mesh,
  watch: hosts.Watch,
  stop: hosts.Stop,
  compiling: compilation.Clock,
  evaluator: evaluation.Evaluator | None = None,
) -> OpenRun:
  """Opens a run at its start, or at its last checkpoint.

  Args:
    stack: Closes the files that are opened here.
    config_json: The config as it was given.
    problem: The problem that the run trains on.
    prepared: Parts of the run.
    evaluator: The evaluator of another run with the same prompts and rewards;
      None: a new one.

  Raises:
    ValueError: The checkpoint is of another config, or a file that the run
      reads has changed since.
  """
  policy, phases, shapes, streams = prepared
  position = None
  read = inputs.digests(settings, problem)
  last_step = store.latest_step()
  if last_step is not None:
    # Without a checkpoint nothing is continued, and all settings may change.
    position = store.extra(last_step)
    if position["phase"] < 0:
      raise ValueError(
        f"{workdir} holds merged policies, and no run; pass another --workdir,"
        f" and --config.start_workdir={workdir}."
      )
    log_lib.check_config(
      workdir, json.loads(config_json), MAY_CHANGE, position["config"]
    )
    inputs.check(workdir, read)
    if problem.reward.service is not None:
      problem.reward.service.calls = position.get("judge_calls", 0)
    with terminal.waiting(f"loading the checkpoint of step {last_step}"):
      state = checkpointed.restore(store, last_step, phases, shapes, mesh)
  else:
    with terminal.waiting("making or loading the policy"):
      state = checkpointed.first_state(settings, problem, policy, mesh)
  if evaluator is None:
    evaluator = evaluation.Evaluator(
      problem,
      policy,
      mesh,
      settings.eval.num_prompts,
      settings.eval.batch_size,
      settings.eval.temperature,
      keeps_ids=settings.log.traces_every > 0,
    )
  log: log_lib.MetricsLog | log_lib.NoLog = log_lib.NoLog()
  if hosts.is_main():
    log = _open_log(settings, config_json, workdir, last_step, position)
    inputs.save(workdir, read)
  stack.enter_context(log)
  return OpenRun(
    config=settings,
    config_hash=config_hash(config_json),
    problem=problem,
    mesh=mesh,
    phases=phases,
    streams=streams,
    evaluator=evaluator,
    store=store,
    log=log,
    profile_dir=workdir / "profile",
    stop=stop,
    watch=watch,
    compiling=compiling,
    state=state,
    position=position,
    before=position["before"] if position else None,
    rewards=position.get("rewards") if position else None,
  )


def _open_log(
  settings: config_lib.RunConfig,
  config_json: str,
  workdir: files.Path,
  last_step: int | None,
  position: dict[str, Any] | None,
) -> log_lib.MetricsLog:
  """Opens the log, cut back to a checkpoint's, and keeps what describes it."""
  log = log_lib.MetricsLog(
    workdir,
    settings.log,
    config=json.loads(config_json),
    resume_step=last_step,
    resume_position=position["log"] if position else None,
    more=(
      *((guards_lib.AUDIT,) if settings.guards.on else ()),
      *settings.kept_files.values(),
    ),
  )
  imports.keep(config_json, workdir)
  log_lib.save_run_info(workdir, config_json)
  return log


def config_hash(config_json: str) -> str:
  """Hash of the settings that may not change when a run continues."""
  return log_lib.config_hash(json.loads(config_json), MAY_CHANGE)


def enter(run: OpenRun, index: int) -> None:
  """Brings the state to the point where phase `index` begins or continues."""
  run.index = index
  if held_out := run.measured.get(run.config.phases[index]):
    held_out.forget()
  if run.position and index == run.first:
    run.streams[index].set_state(run.position["stream"])
    return
  functions, enter_phase, *_ = run.phases[index]
  state = run.state
  phase = run.config.section(run.config.phases[index])
  if phase.reset_policy:
    first = checkpointed.first_state(
      run.config, run.problem, functions.policy, run.mesh
    )
    state = state.with_params(policy=first.params["policy"])
  state = enter_phase(checkpointed.with_outside(state, functions))
  run.state = jax.device_put(state, sharding.of_state(run.mesh, state))


def result(run: OpenRun) -> Result:
  """The end of a run, evaluated if that is missing; writes it to the log."""
  preempted, saved_step = run.stop.agreed(), None
  if preempted:
    run.store.wait()
    saved_step = run.store.latest_step()
  after = None
  evaluates = any(phase.of_kind.evaluates for phase in run.config.stages)
  if evaluates and not preempted:
    # The last step of such a phase has been evaluated, unless it was done by
    # an earlier start of this run.
    after = run.after or evaluate(run)
  if not preempted:
    run.log.write_result(
      int(run.state.step),
      run.before,
      after,
      run.evaluator.num_prompts,
      [alarm.as_json() for alarm in run.health.alarms],
    )
  return Result(
    step=int(run.state.step),
    preempted=preempted,
    before=run.before,
    after=after,
    num_prompts=run.evaluator.num_prompts,
    examples=run.examples,
    has_drawn=any(
      phase.samples and "policy" in phase.trains and phase.steps > 0
      for phase in run.config.stages
    ),
    stopped_by=run.stop.by if preempted else "",
    saved_step=saved_step,
  )


def make_stream(
  config: config_lib.RunConfig,
  problem: problem_lib.Problem,
  mesh: Mesh,
  index: int,
  workdir: files.Path = _NOWHERE,
  is_example: bool = False,
) -> Any:
  """Makes the batches of phase `index`, from the first on.

  Demonstrations that an earlier phase has written for it are in the workdir.
  They need not exist for examples, which have the shapes and other records.
  """
  name = config.phases[index]
  phase = config.section(name)
  seed = int(np.random.SeedSequence((config.seed, index)).generate_state(1)[0])
  hints = policy_lib.hints(config, problem, name)
  streams: dict[int, Callable[..., Any]] = {
    0: functools.partial(problem.prompt_stream, hints=hints),
    1: problem.supervised_stream,
    2: problem.pair_stream,
  }
  make = streams[phase.of_kind.num_given]
  num_prompts = phase.num_prompts * phase.max_rounds
  rows = executors.rows_to_feed(problem, mesh, phase).tolist()
  arguments = seed, num_prompts, phase.max_prompt_len, rows, phase.domains
  if is_example:
    return make(*arguments)
  if phase.schedule.chooses:
    from grpo_jax.training.phases import schedules

    return schedules.stream(config, problem, name, rows)
  if phase.partial_len is not None:
    from grpo_jax.training.phases import partials

    return partials.stream(problem, phase, seed, rows)
  if phase.demonstrations or phase.num_records is not None:
    from grpo_jax.training import rejection

    where = config, problem, workdir, index
    return rejection.Stream(*where, *arguments)
  return make(*arguments)


def record(
  run: OpenRun,
  name: str,
  offset: int,
  done: int,
  metrics: dict[str, float],
  outcome: executors.StepResult,
  is_due: bool,
  is_probed: bool = False,
) -> dict[str, float]:
  """Writes numbers, samples, alarms and verdicts of a step; returns numbers.

  Args:
    run: The run; its state is evaluated, or looked at by canaries, if that is
      due.
    done: Steps of this phase, this one included.
    metrics: Numbers of the step, with its `time/step_s`, seconds.
    outcome: The result of the step, which has its rows.
    is_due: True if the run is evaluated.
    is_probed: True if canaries are looked at.

  Raises:
    FloatingPointError: The loss or the gradient is not finite.
  """
  _check_finite(run, name, done, metrics)
  tokens = metrics.get("tokens/generated", metrics["tokens/trained"])
  metrics["tokens_per_second"] = tokens / metrics["time/step_s"]
  if not run.config.section(name).trains:
    from grpo_jax.training import rejection

    where = run.config, run.problem, run.mesh, run.index
    lines, of_kept = rejection.keep(*where, offset + done, outcome)
    metrics |= of_kept
    for line in lines:
      run.log.append(run.config.kept_files[run.index], line)
  if is_due:
    metrics |= measure(run, name)
  fallen: tuple[str, ...] = ()
  if is_probed:
    with jax.transfer_guard("allow"):
      scores, fallen = run.guards.look(run.state)
    metrics |= scores
  verdict = run.guards.judge(offset + done, name, metrics, fallen)
  if verdict is not None:
    run.log.append(guards_lib.AUDIT, verdict)
    if run.guards.halted:
      run.log.alert(offset + done, "guards", run.guards.halted)
  for alarm in run.health.step(offset + done, metrics):
    metrics[alarm.rule.key] = 1.0
    run.log.alert(offset + done, alarm.rule.name, alarm.text())
  run.log.write(offset + done, name, metrics)
  every = run.config.log.samples_every
  if outcome.rows is not None and writes_samples(every, done):
    assert outcome.batch is not None
    samples = rows.samples(
      *(run.problem, run.mesh, outcome.batch, outcome.rows()),
      run.config.log.num_samples,
    )
    run.log.write_samples(offset + done, samples)
  return metrics


def writes_samples(every: int, done: int) -> bool:
  """Says if rows of a step are written: of the first, and of every n-th."""
  return every > 0 and (done == 1 or done % every == 0)


def due(every: int, done: int, steps: int) -> bool:
  """Says if something happens after `done` steps; it does after the last."""
  return done == steps or (every > 0 and done % every == 0)


def evaluate(run: OpenRun) -> dict[str, float]:
  """Evaluates a run: returns held-out means, and keeps the completions."""
  start, compiled = time.perf_counter(), run.compiling.seconds
  with terminal.waiting("evaluating"), jax.transfer_guard("allow"):
    results = run.evaluator.completions(
      policy_lib.evaluation_params(run.state.models["policy"]),
      jax.random.key(0),
    )
  run.evaluation_s = time.perf_counter() - start
  run.evaluation_s -= run.compiling.seconds - compiled
  run.examples = [group[0] for group in results]
  run.after = evaluation.summarize(
    results, run.evaluator.domains, run.config.rewards.follows
  )
  return run.after


def measure(run: OpenRun, name: str) -> dict[str, float]:
  """Returns the numbers that are due of a phase.

  They are held-out means, those of its reward model, or both.
  """
  kind = run.config.section(name).of_kind
  metrics: dict[str, float] = {}
  if kind.evaluates:
    metrics |= evaluate(run)
  if kind.measures:
    with terminal.waiting("measuring the reward model"):
      metrics |= run.measured[name].measure(run.state)
  return metrics


def save(run: OpenRun, index: int, global_step: int, stream_state: Any) -> None:
  """Saves what the run needs to go on; the log reaches the disk first."""
  run.log.flush()
  extra = {
    "phase": index,
    "stream": stream_state,
    "log": run.log.position(),
    "before": run.before,
    "config": run.config_hash,
  }
  if run.rewards is not None:
    extra["rewards"] = run.rewards
  if run.problem.reward.service is not None:
    extra["judge_calls"] = run.problem.reward.service.calls
  if run.guards.canaries is not None:
    extra["canaries"] = run.guards.canaries.position()
  if run.state.queue:
    extra["queue"] = len(run.state.queue)
  if run.host_reports:
    extra["told"] = judging.gather_reports(run.host_reports)
  run.store.save(global_step, run.state, extra)


def _check_finite(
  run: OpenRun, name: str, done: int, metrics: dict[str, float]
) -> None:
  culprits = {"": name, "value/": "critic", "reward_model/": "reward_model"}
  causes = [
    (f"{model}{number}", culprit)
    for model, culprit in culprits.items()
    for number in ("loss", "gradient_norm")
    if not math.isfinite(metrics.get(f"{model}{number}", 0.0))
  ]
  bad = [number for number, _ in causes]
  if bad:
    run.store.wait()
    last = run.store.latest_step()
    checkpoint = run.config.model.checkpoint
    culprit = causes[0][1]
    doubt = f", or doubt the weights in {checkpoint}" if checkpoint else ""
    advice = (
      "Look at metrics.jsonl for the steps before, and start again in another"
      " --workdir with a lower"
      f" config.{culprit}.optimizer.learning_rate{doubt}."
    )
    path = run.config.objective(name)[0].name
    of_advantages = not math.isfinite(metrics.get("advantages/std", 0.0))
    if ":" in path and culprit == name and (of_advantages or done == 1):
      # Rewards are finite, and at first no step has moved the policy.
      part = "advantages" if of_advantages else "loss of the first step"
      advice = (
        f"The {part} of the algorithm {path!r} came out so: look for a log, a"
        " root or a quotient of 0 in its functions."
        f" grpo-check-algorithm {path} says which check fails."
      )
    raise FloatingPointError(
      f"phase {name}, step {done}:"
      f" {', '.join(f'{k} is {metrics[k]}' for k in bad)}. The last checkpoint"
      f" in {run.store.directory} is"
      f" {'missing' if last is None else f'step {last}'}. {advice}"
    )


@contextlib.contextmanager
def profiled(run: OpenRun, global_step: int) -> Iterator[None]:
  """Traces the steps of `config.profile_steps` for xprof."""
  steps = run.config.profile_steps
  is_inside = steps and steps[0] <= global_step <= steps[1]
  if is_inside and run.tracing is None:
    run.tracing = files.scratch(run.profile_dir)
    jax.profiler.start_trace(str(run.tracing))
  yield
  if run.tracing is not None and global_step == steps[1]:
    jax.block_until_ready(run.state)
    jax.profiler.stop_trace()
    files.publish(run.tracing, run.profile_dir)
    run.tracing = None

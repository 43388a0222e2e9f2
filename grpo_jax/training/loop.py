"""The training loop, read from top to bottom.

Set-up, then for each phase: restore or enter, and step. Metrics of step n are
fetched while step n + 1 runs. The run can be killed at any moment and started
again with the same command: it continues from the last checkpoint, and ends
with the same bytes as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import math
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import ml_collections
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import pipeline
from grpo_jax.training import (
  assembly,
  checkpoints,
  evaluation,
  metrics_log,
  progress,
  sharding,
)
from grpo_jax.training import config as config_lib
from grpo_jax.training import problem as problem_lib
from grpo_jax.training import step as step_lib
from grpo_jax.types import Policy, TrainState

# Settings that a resumed run may change: they do not touch its numbers.
MAY_CHANGE = frozenset(("log", "profile_steps", "required_accuracy"))

# What one dispatched step will have to say: metrics and sampled texts.
Outcome = Callable[[], tuple[dict[str, float], list[dict[str, Any]]]]


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


@dataclasses.dataclass
class Run:
  """What a run keeps open, and the state as it moves on."""

  config: config_lib.RunConfig
  problem: problem_lib.Problem
  mesh: Mesh
  evaluator: evaluation.Evaluator
  saved: checkpoints.Checkpoints
  log: metrics_log.MetricsLog
  profile_dir: pathlib.Path
  stop: threading.Event
  state: TrainState
  before: dict[str, float] | None = None
  examples: list[evaluation.Completion] = dataclasses.field(
    default_factory=list
  )
  clock: float = 0.0  # seconds; when the last step was recorded


def train(
  config: ml_collections.ConfigDict, workdir: str | pathlib.Path
) -> Result:
  """Runs the phases of a config, or what is left of them.

  Args:
    config: See `config.py`; the resolved form is saved in the workdir.
    workdir: Folder of the run; an unfinished run in it is continued.

  Raises:
    KeyError, TypeError, ValueError: The config, data or checkpoint is at
      fault; nothing that was written is lost.
    FloatingPointError: The loss or gradient is not finite.
  """
  settings = config_lib.resolve(config)
  workdir = pathlib.Path(workdir)
  mesh = sharding.make_mesh(settings.mesh_data)
  config_json = config.to_json()
  with contextlib.ExitStack() as stack:
    saved = checkpoints.Checkpoints(
      workdir / "checkpoints", keep=settings.checkpoint.keep
    )
    stack.callback(saved.close)
    problem = problem_lib.make_problem(settings)
    stack.callback(problem.close)
    policy = assembly.make_policy(settings, problem)
    # All phases at once: sizes that do not fit are found before any work.
    phases = _phases(settings, problem, policy, mesh)
    state = assembly.initial_state(policy, settings.seed)
    _abstract_state(phases, state)
    streams = [
      _stream(settings, problem, index) for index in range(len(phases))
    ]

    position, first = None, 0
    last_step = saved.latest_step()
    if last_step is not None:
      # Without a checkpoint nothing is continued, and all may change.
      metrics_log.check_config(workdir, json.loads(config_json), MAY_CHANGE)
      position = saved.extra(last_step)
      first = position["phase"]
      state = _restore(saved, last_step, phases, state, mesh)
      print(f"continuing after step {last_step} ({settings.phases[first]})")
    evaluator = evaluation.Evaluator(
      problem,
      policy,
      settings.eval.num_prompts,
      settings.eval.batch_size,
      settings.eval.temperature,
    )
    metrics_log.save_run_info(workdir, config_json)
    run = Run(
      config=settings,
      problem=problem,
      mesh=mesh,
      evaluator=evaluator,
      saved=saved,
      log=stack.enter_context(
        metrics_log.MetricsLog(
          workdir,
          tensorboard=settings.log.tensorboard,
          wandb_project=settings.log.wandb_project,
          resume_step=last_step,
          resume_position=position["log"] if position else None,
        )
      ),
      profile_dir=workdir / "profile",
      stop=stack.enter_context(_stop_on_sigterm()),
      state=state,
      before=position["before"] if position else None,
    )

    for index in range(first, len(phases)):
      if run.stop.is_set():
        break
      parts, enter = phases[index]
      if position and index == first:
        streams[index].set_state(position["stream"])
      else:
        run.state = jax.device_put(enter(run.state), sharding.replicated(mesh))
      _run_phase(run, parts, index, streams[index])

    saved.wait()
    preempted = run.stop.is_set()
    after = None
    if "rl" in settings.phases and not preempted:
      after = _evaluate(run)
    return Result(
      step=int(run.state.step),
      preempted=preempted,
      before=run.before,
      after=after,
      num_prompts=run.evaluator.num_prompts,
      examples=run.examples,
    )


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A trained policy, with what it was trained on."""

  config: config_lib.RunConfig
  problem: problem_lib.Problem
  policy: Policy
  params: Any
  step: int


@contextlib.contextmanager
def load(
  workdir: str | pathlib.Path, step: int | None = None
) -> Iterator[Loaded]:
  """Opens a run for evaluation; the parameters are the averaged ones, if any.

  Args:
    workdir: Folder of the run.
    step: Checkpoint; None: the last.

  Raises:
    FileNotFoundError: There is no run or no such checkpoint.
  """
  workdir = pathlib.Path(workdir)
  path = workdir / "config.json"
  if not path.exists():
    raise FileNotFoundError(
      f"{workdir} holds no run: {path} is missing. Pass the --workdir of"
      " experiments.train."
    )
  config = config_lib.resolve(
    ml_collections.ConfigDict(json.loads(path.read_text(encoding="utf-8")))
  )
  with contextlib.ExitStack() as stack:
    saved = checkpoints.Checkpoints(
      workdir / "checkpoints", keep=config.checkpoint.keep
    )
    stack.callback(saved.close)
    problem = problem_lib.make_problem(config)
    stack.callback(problem.close)
    mesh = sharding.make_mesh(config.mesh_data)
    policy = assembly.make_policy(config, problem)
    phases = _phases(config, problem, policy, mesh)
    step = saved.latest_step() if step is None else step
    if step is None:
      raise FileNotFoundError(
        f"{workdir} has no checkpoint yet; wait for the first one"
        " (config.checkpoint.every)."
      )
    state = _restore(
      saved,
      step,
      phases,
      assembly.initial_state(policy, config.seed),
      mesh,
    )
    yield Loaded(
      config=config,
      problem=problem,
      policy=policy,
      params=assembly.evaluation_params(state),
      step=step,
    )


def _phases(
  config: config_lib.RunConfig,
  problem: problem_lib.Problem,
  policy: Policy,
  mesh: Mesh,
) -> list[tuple[step_lib.Parts, Callable[[TrainState], TrainState]]]:
  """Parts of each phase, and the function that enters it."""
  phases: list[tuple[step_lib.Parts, Callable[[TrainState], TrainState]]] = []
  for index, name in enumerate(config.phases):
    parts = assembly.make_parts(config, problem, policy, name, mesh)
    enter = functools.partial(
      assembly.enter_phase,
      parts=parts,
      phase=getattr(config, name),
      index=index,
    )
    phases.append((parts, enter))
  return phases


def _restore(
  saved: checkpoints.Checkpoints,
  step: int,
  phases: list,
  initial: TrainState,
  mesh: Mesh,
) -> TrainState:
  """The state of a checkpoint, whatever its phase holds."""
  abstract = _abstract_state(phases[: saved.extra(step)["phase"] + 1], initial)
  state, _, _ = saved.restore(
    sharding.abstract(abstract, sharding.replicated(mesh)), step
  )
  return state


def _abstract_state(phases: list, initial: TrainState) -> TrainState:
  """Shapes after entering these phases; raises if one cannot be entered."""
  abstract = initial
  for _, enter in phases:
    abstract = jax.eval_shape(enter, abstract)
  return abstract


def _stream(
  config: config_lib.RunConfig, problem: problem_lib.Problem, index: int
) -> Any:
  """The batches of phase `index`, from the first on."""
  name = config.phases[index]
  phase: config_lib.PhaseConfig = getattr(config, name)
  seed = int(np.random.SeedSequence((config.seed, index)).generate_state(1)[0])
  make = problem.supervised_stream if name == "sft" else problem.prompt_stream
  return make(seed, phase.num_prompts, phase.max_prompt_len)


def _run_phase(
  run: Run, parts: step_lib.Parts, index: int, stream: Any
) -> None:
  """Steps through one phase, from wherever the state is in it."""
  name = run.config.phases[index]
  phase: config_lib.PhaseConfig = getattr(run.config, name)
  if name == "sft":
    driver = _supervised_driver
  else:
    driver = _split_driver if run.problem.scorer else _fused_driver
  advance = driver(run, parts)
  done = int(run.state.phase_step)
  offset = int(run.state.step) - done
  if name == "rl" and done == 0:
    summary = _evaluate(run)
    run.before = run.before or summary
    run.log.write(offset, name, summary)

  display = progress.Progress(name, phase.steps)

  def record(done: int, outcome: Outcome, evaluate: bool) -> None:
    metrics, samples = outcome()
    now = time.perf_counter()
    seconds, run.clock = now - run.clock, now
    _check_finite(run, name, done, metrics)
    tokens = metrics.get("tokens/generated", metrics["tokens/trained"])
    metrics["tokens_per_second"] = tokens / seconds
    metrics["time/step_s"] = seconds
    if evaluate:
      metrics |= _evaluate(run)
    run.log.write(offset + done, name, metrics)
    every = run.config.log.samples_every
    if samples and every and (done == 1 or done % every == 0):
      run.log.write_samples(offset + done, samples)
    shown = {"loss": metrics["loss"]}
    if name == "rl":
      shown = {
        "reward": metrics["reward/mean"],
        "accuracy": metrics["accuracy"],
      }
    display.update(done, shown, metrics["tokens_per_second"])
    if evaluate:
      run.clock = time.perf_counter()

  pending: Callable[[], None] | None = None
  run.clock = time.perf_counter()
  with jax.transfer_guard("disallow"):
    # Looked at once a step: whatever stops the loop has also been saved.
    stopping = run.stop.is_set()
    while done < phase.steps and not stopping:
      with _profiled(run, offset + done + 1):
        outcome = advance(next(stream))
      if pending is not None:
        pending()
      done += 1
      evaluate = name == "rl" and _due(run.config.eval.every, done, phase.steps)
      pending = functools.partial(record, done, outcome, evaluate)
      stopping = run.stop.is_set()
      if _due(run.config.checkpoint.every, done, phase.steps) or stopping:
        pending()
        pending = None
        with jax.transfer_guard("allow"):
          _save(run, index, offset + done, stream.get_state())
      elif evaluate:
        pending()
        pending = None
  display.done()


def _due(every: int, done: int, steps: int) -> bool:
  """Whether something happens after `done` steps: always after the last."""
  return done == steps or (every > 0 and done % every == 0)


def _supervised_driver(run: Run, parts: step_lib.Parts):
  """Advances the state by a batch of given completions."""
  advance = _jit_step(run, step_lib.supervised_step, parts)
  rows = sharding.by_rows(run.mesh)

  def driver(batch: pipeline.SupervisedBatch) -> Outcome:
    placed = jax.device_put(problem_lib.train_batch(batch), rows)
    run.state, metrics = advance(run.state, placed)
    return lambda: (_numbers(metrics), [])

  return driver


def _fused_driver(run: Run, parts: step_lib.Parts):
  """Advances the state by the one program: sample, score, update."""
  advance = _jit_step(run, step_lib.fused_step, parts)
  rows = sharding.by_rows(run.mesh)

  def driver(batch: pipeline.PromptBatch) -> Outcome:
    prompts = jax.device_put(batch.prompts, rows)
    run.state, metrics, samples = advance(run.state, prompts)
    return lambda: (_numbers(metrics), _sample_texts(run, batch, samples))

  return driver


def _split_driver(run: Run, parts: step_lib.Parts):
  """The same stages with the host's verifiers between them."""
  replicated = sharding.replicated(run.mesh)
  sample = jax.jit(
    functools.partial(step_lib.sample_stage, parts=parts),
    out_shardings=replicated,
  )
  learn = _jit_step(run, step_lib.learn_stage, parts)
  rows = sharding.by_rows(run.mesh)

  def driver(batch: pipeline.PromptBatch) -> Outcome:
    prompts = jax.device_put(batch.prompts, rows)
    rollout = sample(run.state, prompts)
    fetched = jax.device_get(rollout)
    started = time.perf_counter()
    with jax.transfer_guard("allow"):
      scored, failures, errors = run.problem.score_on_host(batch, fetched)
    host_seconds = time.perf_counter() - started
    for message in errors:
      logging.warning("a verifier failed, its row is unscored: %s", message)
    run.state, metrics, samples = learn(
      run.state, prompts, rollout, jax.device_put(scored, rows)
    )
    counts = {f"unscored/{kind}": float(n) for kind, n in failures.items()}
    return lambda: (
      _numbers(metrics) | counts | {"time/verifier_s": host_seconds},
      _sample_texts(run, batch, samples),
    )

  return driver


def _jit_step(run: Run, function: Callable, parts: step_lib.Parts) -> Callable:
  """Compiles a stage that consumes the state and returns the next one."""
  return jax.jit(
    functools.partial(function, parts=parts),
    donate_argnums=0,
    # Stated, or the compiler may choose another layout for the new state
    # than for the old one, and compile the second step anew.
    out_shardings=sharding.replicated(run.mesh),
  )


def _numbers(metrics: dict[str, jax.Array]) -> dict[str, float]:
  return {k: float(v) for k, v in jax.device_get(metrics).items()}


def _sample_texts(
  run: Run, batch: pipeline.PromptBatch, samples: Any
) -> list[dict[str, Any]]:
  """The sampled rows of a step as a person reads them."""
  rows = jax.device_get(samples)
  prompts = run.problem.prompt_texts(batch.records)
  texts = run.problem.texts(rows["tokens"], rows["mask"])
  return [
    {
      "prompt": prompts[rows["prompt_index"][i]],
      "completion": text,
      "reward": float(rows["reward"][i]),
      "valid": bool(rows["valid"][i]),
      "correct": bool(rows["correct"][i]),
      "components": {k: float(v[i]) for k, v in rows["components"].items()},
    }
    for i, text in enumerate(texts)
  ]


def _evaluate(run: Run) -> dict[str, float]:
  """Held-out means; keeps the completions for the summary."""
  with jax.transfer_guard("allow"):
    results = run.evaluator.completions(
      assembly.evaluation_params(run.state), jax.random.key(0)
    )
  run.examples = [group[0] for group in results]
  return evaluation.summarize(results)


def _save(run: Run, index: int, global_step: int, stream_state: Any) -> None:
  """Everything the run needs to go on; the log reaches the disk first."""
  run.log.flush()
  run.saved.save(
    global_step,
    run.state,
    {
      "phase": index,
      "stream": stream_state,
      "log": run.log.position(),
      "before": run.before,
    },
  )


def _check_finite(
  run: Run, name: str, done: int, metrics: dict[str, float]
) -> None:
  bad = [k for k in ("loss", "gradient_norm") if not math.isfinite(metrics[k])]
  if bad:
    run.saved.wait()
    last = run.saved.latest_step()
    raise FloatingPointError(
      f"phase {name}, step {done}:"
      f" {', '.join(f'{k} is {metrics[k]}' for k in bad)}. The last checkpoint"
      f" in {run.saved.directory} is"
      f" {'missing' if last is None else f'step {last}'}. Look at metrics.jsonl"
      " for the steps before, and start again in another --workdir with a"
      f" lower config.{name}.optimizer.learning_rate."
    )


@contextlib.contextmanager
def _profiled(run: Run, global_step: int) -> Iterator[None]:
  """Traces the steps of `config.profile_steps` for xprof."""
  steps = run.config.profile_steps
  if steps and global_step == steps[0]:
    jax.profiler.start_trace(str(run.profile_dir))
  yield
  if steps and global_step == steps[1]:
    jax.block_until_ready(run.state)
    jax.profiler.stop_trace()


@contextlib.contextmanager
def _stop_on_sigterm() -> Iterator[threading.Event]:
  """An event that SIGTERM sets: finish the step, save, and leave."""
  stop = threading.Event()
  if threading.current_thread() is not threading.main_thread():
    yield stop  # Only the main thread may handle signals.
    return
  previous = signal.signal(signal.SIGTERM, lambda *_: stop.set())
  try:
    yield stop
  finally:
    signal.signal(signal.SIGTERM, previous)

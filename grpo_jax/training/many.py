"""Several runs as one compiled program.

Runs that differ only in their seeds and in numbers that are not whole are one
program with different inputs. The program is traced and compiled once; states
and batches have a leading axis of runs, which is split over the devices. A
device takes its runs one after another, or all at once (`side_by_side`).
Everything else is done for each run as `loop.py` does it: each run has its own
stream of prompts, the same files, and its own checkpoints, from which it can
continue in one program with others or alone.

The compiler makes other code of a step in a loop over runs, and of a number
that differs between runs and so is not a constant: the mathematics is the same,
and the rounding is not. In float32 on a CPU, eight seeds of the quickstart (40
and 20 steps) ended with all bits of runs of their own. The eight took 85 s with
everything, and 138 s one after another, of which the first had compiled for the
others. With the algorithm REINFORCE, and with numbers that differ, parameters
are up to 2e-7 off after three steps.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax import ranges
from grpo_jax.data import pipeline
from grpo_jax.settings import config as config_lib
from grpo_jax.step import step as step_lib
from grpo_jax.training import loop, steps
from grpo_jax.training import run as run_lib
from grpo_jax.training.evaluation import evaluation, lint
from grpo_jax.training.phases import build, checkpointed, executors
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import (
  checkpoints,
  compilation,
  files,
  hosts,
  hyperparameters,
  jit,
  lock,
  log,
  sharding,
)
from grpo_jax.types import Policy, PyTree, Rollouts, TrainState

# Settings that may differ, beside those of phases; a group may differ in its
# numbers.
_MAY_DIFFER = (
  *("seed", "algorithm", "critic", "sampling", "reward_model"),
  "rewards.weights",
)
_AXIS = "runs"


def train(
  configs: Sequence[ml_collections.ConfigDict],
  workdirs: Sequence[str | os.PathLike],
  side_by_side: bool | None = None,
) -> list[run_lib.Result | Exception]:
  """Trains several configs that one program can compute, or continues them.

  A run whose loss is no longer finite, that a health rule stops, or whose
  demonstrations are at fault is left behind, and the others go on. Steps are
  timed for all runs together. Runs that are at the same step are one program:
  if the runs were killed while checkpoints were written there may be two
  programs, one after the other.

  Args:
    configs: Configs of the runs; they differ in `seed` and, of the other
      settings that `may_differ`, in numbers that are not whole.
    workdirs: Folder of each run, with the files of a run of its own.
    side_by_side: True if a device computes all of its runs at once, as batched
      operations, instead of one after another; None: on accelerators (not
      measured there). Each loop then lasts as long as the run that needs it
      longest. Eight runs of the quickstart at once take 2.4 s per step on 2 CPU
      cores, and 1.2 s one after another.

  Returns:
    The result of each run; the exception of a run that was left behind.

  Raises:
    KeyError, TypeError, ValueError: A config is at fault, the configs are not
      one program, or another process trains in a workdir; nothing was written.
  """
  _check(configs, workdirs)
  if side_by_side is None:
    side_by_side = jax.default_backend() != "cpu"
  settings = [config_lib.resolve(config) for config in configs]
  folders = [files.parse(workdir) for workdir in workdirs]
  results: dict[int, run_lib.Result | Exception] = {}
  with contextlib.ExitStack() as stack:
    for folder in folders:
      stack.enter_context(lock.held(folder))
    together = collections.defaultdict(list)
    for number, folder in enumerate(folders):
      store = checkpoints.Checkpoints(
        folder / "checkpoints", keep=settings[number].checkpoint.keep
      )
      together[store.latest_step()].append(number)
      store.close()
    stop = stack.enter_context(hosts.Stop(sharding.make_mesh(1)))
    for numbers in together.values():
      batch_results = _train_together(
        [settings[n] for n in numbers],
        [configs[n].to_json() for n in numbers],
        [folders[n] for n in numbers],
        side_by_side,
        stop,
      )
      results |= dict(zip(numbers, batch_results, strict=True))
  return [results[number] for number in range(len(configs))]


def may_differ(config: ml_collections.ConfigDict) -> tuple[str, ...]:
  """Returns settings, or groups of them, that may differ between the runs."""
  return (*_MAY_DIFFER, *config_lib.section_names(config))


def _check(
  configs: Sequence[ml_collections.ConfigDict],
  workdirs: Sequence[str | os.PathLike],
) -> None:
  """Raises ValueError unless the configs can be one program."""
  if not configs or len(configs) != len(set(map(str, workdirs))):
    raise ValueError(
      f"many.train: {len(configs)} configs and {len(set(map(str, workdirs)))}"
      " different workdirs; needs as many, and at least one."
    )
  flat = [log.flatten(json.loads(c.to_json())) for c in configs]
  differing = sorted(
    name
    for name in set().union(*flat)
    if len({settings.get(name) for settings in flat}) > 1
  )
  allowed = may_differ(configs[0])
  bad = [
    f"config.{name} ({', '.join(settings.get(name, '-') for settings in flat)})"
    for name in differing
    if name in hyperparameters.CONSTANT
    or not any(f"{name}.".startswith(f"{group}.") for group in allowed)
  ]
  if bad:
    raise ValueError(
      f"many.train: the runs differ in {'; '.join(bad)}; one program allows"
      f" it in {', '.join(allowed)} only, and not in"
      f" {', '.join(hyperparameters.CONSTANT)}. Train them one by one, or those"
      " that agree in one program."
    )
  first = config_lib.resolve(configs[0])
  trackers = tuple(x for x in first.log.trackers if x != "tensorboard")
  in_program = first.rewards.in_graph or first.data.is_made_of_ids
  for name, value, required, reason in (
    ("rewards.in_graph", in_program, True, "answers are verified in it"),
    ("data.environment", first.data.environment, "", "its tools are outside"),
    ("judge.service.url", first.judge.service.url, "", "it is outside"),
    ("log.trackers", trackers, (), "W&B and Trackio have one run of it"),
    ("profile_steps", tuple(first.profile_steps), (), "a trace shows all runs"),
  ):
    if value != required:
      raise ValueError(
        f"many.train: config.{name}={value!r}; needs {required!r} where"
        f" several runs are one program: {reason}. Change it, or train the runs"
        " one by one."
      )
  if jax.process_count() > 1:
    raise ValueError(
      f"many.train: {jax.process_count()} processes; needs one, which has"
      " all devices. Give each process runs of its own."
    )


def _make_mesh(num_runs: int, sizes: config_lib.MeshConfig) -> Mesh:
  """Makes the largest mesh on which all devices have equally many runs.

  Raises:
    ValueError: A run is to be split over devices.
  """
  if (sizes.fsdp, sizes.tensor, sizes.expert) != (1, 1, 1):
    raise ValueError(
      f"many.train: {sizes} splits a run over devices; needs 1 for fsdp,"
      " tensor and expert, because each run is on one device. Train the runs"
      " one by one."
    )
  devices = jax.devices()[: sizes.data]
  count = max(n for n in range(1, len(devices) + 1) if num_runs % n == 0)
  return jax.make_mesh(
    (count,), (_AXIS,), axis_types=(AxisType.Auto,), devices=devices[:count]
  )


def _train_together(
  settings: list[config_lib.RunConfig],
  config_jsons: list[str],
  workdirs: list[files.Path],
  side_by_side: bool,
  stop: hosts.Stop,
) -> list[run_lib.Result | Exception]:
  """Trains runs that are all at the same step."""
  mesh = _make_mesh(len(settings), settings[0].mesh)
  alone = sharding.make_mesh(1)
  order = "at once" if side_by_side else "one after another"
  print(
    f"{ranges.counted(len(settings), 'run')} as one program on"
    f" {ranges.counted(mesh.size, 'device')}, the"
    f" {len(settings) // mesh.size} of a device {order}"
  )
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(alone))
    compiling = stack.enter_context(compilation.clock())
    problems = [problem_lib.make_problem(config) for config in settings]
    for config, problem in zip(settings, problems, strict=True):
      lint.before_training(config, problem)
    prepared = [
      run_lib.prepare(config, problem, alone, workdir)
      for config, problem, workdir in zip(
        settings, problems, workdirs, strict=True
      )
    ]
    of_phases = _make_programs(
      settings, problems[0], prepared[0], mesh, side_by_side
    )
    evaluators: dict[str, evaluation.Evaluator] = {}
    together = []
    for config, config_json, problem, phase, workdir in zip(
      settings, config_jsons, problems, prepared, workdirs, strict=True
    ):
      store = checkpoints.Checkpoints(
        workdir / "checkpoints", config.checkpoint.keep
      )
      stack.callback(store.close)
      run = run_lib.open_run(
        stack,
        config,
        config_json,
        workdir,
        store=store,
        problem=problem,
        prepared=phase,
        mesh=alone,
        watch=hosts.Watch(
          config.hosts.timeout_s,
          config.hosts.stall_s,
          describe=functools.partial(checkpoints.describe, store.directory),
          wait_for_save=store.wait,
        ),
        stop=stop,
        compiling=compiling,
        evaluator=evaluators.get(repr(config.rewards)),
      )
      evaluators[repr(config.rewards)] = run.evaluator
      run.state = _on_host(run.state)
      together.append(run)

    loop.go_through(
      together, lambda index: Together(together, of_phases[index], mesh)
    )
    results: list[run_lib.Result | Exception] = []
    for run in together:
      if run.failure is not None:
        results.append(run.failure)
        continue
      with _at_hand(run, run.state):
        results.append(run_lib.result(run))
    return results


class Together(steps.Stepper):
  """The stepper of runs that are one program.

  Between steps the states of all runs are one tree on the devices. The state of
  a single run is on the host, since a device may have no room for those of all
  runs.
  """

  def __init__(
    self, together: Sequence[run_lib.OpenRun], of_phase: Programs, mesh: Mesh
  ):
    self._together = list(together)
    self._programs, self._mesh = of_phase, mesh
    self._split = NamedSharding(mesh, P(_AXIS))
    self._states: TrainState | None = None
    self._numbers = jax.device_put(
      np.arange(len(self._together), dtype=np.int32), self._split
    )

  def advance(self, batches: list[list[Any]]) -> list[executors.StepResult]:
    if self._states is None:
      states = [run.state for run in self._together]
      self._states = _stack(states, self._split)
    # For each step the batches of all runs; those of the next steps are there
    # if rollouts are drawn ahead.
    of_steps = list(zip(*batches, strict=True))
    rows = of_steps[0]
    with jax.set_mesh(self._mesh):
      self._states, metrics, step_rows = self._step(self._states, of_steps)
    fetched = functools.cache(lambda: jax.device_get(metrics))

    def outcome(i: int, run: run_lib.OpenRun) -> executors.StepResult:
      return executors.StepResult(
        lambda: executors.numbers({key: x[i] for key, x in fetched().items()}),
        functools.partial(_rows_of, step_rows, i, self._mesh, run.mesh)
        if step_rows is not None
        else None,
        rows[i],
      )

    return [outcome(i, run) for i, run in enumerate(self._together)]

  def _step(
    self, states: TrainState, of_steps: Sequence[Sequence[Any]]
  ) -> tuple[TrainState, PyTree, PyTree]:
    """Returns the states of all runs after a step, with metrics and rows."""

    def place(batches: Sequence[Any]) -> PyTree:
      inputs = jax.tree.map(lambda *x: np.stack(x), *map(_arrays, batches))
      return jax.device_put(inputs, self._split)

    batch, draw = place(of_steps[0]), self._programs.draw
    if draw is None:
      return self._programs.step(self._numbers, states, batch)

    def draw_ahead(
      states: TrainState, batches: Sequence[Any], ahead: int
    ) -> Rollouts:
      of_runs = np.full(len(self._together), ahead, np.int32)
      placed_ahead = jax.device_put(of_runs, self._split)
      return draw(self._numbers, states, place(batches), placed_ahead)

    states, queue = executors.with_queue(states, of_steps, draw_ahead)
    states, *rest = self._programs.step(self._numbers, states, batch, queue[0])
    return dataclasses.replace(states, queue=queue[1:]), *rest

  def places(self, run: run_lib.OpenRun) -> np.ndarray:  # [P] int32
    if self._states is None:
      return run.state.schedule["places"]
    index = next(i for i, x in enumerate(self._together) if x is run)
    return jax.device_get(self._states.schedule["places"])[index]

  @contextlib.contextmanager
  def at_hand(self, run: run_lib.OpenRun) -> Iterator[None]:
    state = run.state
    if self._states is not None:
      index = next(i for i, x in enumerate(self._together) if x is run)
      state = _state_of(self._states, index, self._mesh)
    with _at_hand(run, state):
      yield


class Programs(NamedTuple):
  """The programs of a phase; each array has a leading axis of runs.

  Attributes:
    step: (numbers of the runs, states, batches, rollouts if they were drawn
      ahead) -> states, metrics, rows; states are donated.
    draw: (numbers, states, batches, steps until they are trained) -> rollouts
      of the policies; None if a step draws the rollouts that it trains on.
  """

  step: Callable
  draw: Callable | None


def _make_programs(
  settings: list[config_lib.RunConfig],
  problem: problem_lib.Problem,
  prepared: run_lib.Prepared,
  mesh: Mesh,
  side_by_side: bool,
) -> list[Programs]:
  """Makes the programs of each phase; their trace finds where runs differ."""
  alone = sharding.make_mesh(1)
  first = settings[0]
  programs: list[Programs] = []
  for index, name in enumerate(first.phases):
    before = first.phases[:index]
    # A phase that comes again has the same program.
    of_phase = (
      programs[before.index(name)]
      if name in before
      else _of_phase(settings, prepared.policy, index, mesh, side_by_side)
    )
    state = checkpointed.abstract_state(
      prepared.phases[: index + 1], prepared.start
    )
    examples = run_lib.make_stream(
      first, problem, alone, index, is_example=True
    )
    batch = _arrays(next(examples))
    _check_programs(of_phase, mesh, len(settings), state, batch)
    programs.append(of_phase)
  return programs


def _of_phase(
  settings: list[config_lib.RunConfig],
  policy: Policy,
  index: int,
  mesh: Mesh,
  side_by_side: bool,
) -> Programs:
  """Makes the programs of one phase."""
  seeds = tuple(config.seed for config in settings)
  alike = [
    dataclasses.replace(config_lib.with_paths_of(c, settings[0]), seed=seeds[0])
    for c in settings
  ]
  name = alike[0].phases[index]

  def phase_of(run):
    # The config has the numbers of run `run`; the problem has the verifier.
    config = hyperparameters.merged(alike, "config", run)
    problem = problem_lib.make_problem(config)
    if len(set(seeds)) > 1:
      seed: Any = hyperparameters.TracedNumber("config.seed", seeds, run)
      config = dataclasses.replace(config, seed=seed)
    alone = sharding.make_mesh(1)
    return build.make_phase(config, problem, policy, name, alone)

  def advance(run, state, batch, *queue):
    phase = phase_of(run)
    if phase.sampler is None:
      return *step_lib.supervised_step(state, batch, phase=phase), None
    step = step_lib.stale_step if queue else step_lib.fused_step
    return step(state, batch, *queue, phase=phase)

  def draw(run, state, batch, ahead):
    return step_lib.rollout_stage(state, batch, ahead, phase=phase_of(run))

  make = functools.partial(_of_runs, mesh=mesh, side_by_side=side_by_side)
  is_ahead = alike[0].section(name).num_ahead > 0
  return Programs(make(advance, donate=1), make(draw) if is_ahead else None)


def _of_runs(
  of_run: Callable, *, mesh: Mesh, side_by_side: bool, donate: int | None = None
) -> Any:
  """Makes a program for all runs from a function of one run.

  Its arrays have one more axis, the first, of runs.
  """

  def on_device(*inputs):
    if side_by_side:
      return jax.vmap(of_run)(*inputs)
    return jax.lax.map(lambda x: of_run(*x), inputs)

  program: Callable = on_device
  if mesh.size > 1:
    # Devices exchange nothing, as if each ran alone.
    program = jax.shard_map(
      on_device,
      mesh=mesh,
      in_specs=P(_AXIS),
      out_specs=P(_AXIS),
      check_vma=False,
    )
  return jit.Program(program, NamedSharding(mesh, P()), donate=donate)


def _check_programs(
  of_phase: Programs, mesh: Mesh, num_runs: int, state: PyTree, batch: PyTree
) -> None:
  """Traces programs for shapes of one run; an error shows where runs differ."""
  states, batches = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((num_runs, *x.shape), x.dtype),
    (state, batch),
  )
  numbers: Any = np.arange(num_runs, dtype=np.int32)
  step, draw = (cast(Any, program) for program in of_phase)
  with jax.set_mesh(mesh):
    queue: tuple[Any, ...] = ()
    if draw is not None:
      queue = (draw.eval_shape(numbers, states, batches, numbers),)
    step.eval_shape(numbers, states, batches, *queue)


def _arrays(batch: pipeline.PromptBatch | pipeline.SupervisedBatch) -> PyTree:
  """The arrays of a batch that the program reads."""
  if isinstance(batch, pipeline.PromptBatch):
    return batch.prompts
  num_rows = len(batch.tokens)
  return executors.train_batch(batch, np.arange(num_rows), num_rows)


def _on_host(state: TrainState) -> TrainState:
  """The state in the host's memory, except for its keys."""
  return jax.tree.map(
    lambda x: x if checkpoints.is_key(x) else np.asarray(jax.device_get(x)),
    state,
  )


def _stack(states: list[TrainState], split: NamedSharding) -> TrainState:
  """The states with a leading axis of runs, on the devices."""
  return jax.device_put(
    jax.tree.map(
      lambda *x: jnp.stack(x) if checkpoints.is_key(x[0]) else np.stack(x),
      *states,
    ),
    split,
  )


def _state_of(states: TrainState, i: int, mesh: Mesh) -> TrainState:
  """The state of run `i`, taken from the states of all runs."""
  with jax.transfer_guard("allow"), jax.set_mesh(mesh):
    return jax.tree.map(lambda x: x[i], states)


@contextlib.contextmanager
def _at_hand(run: run_lib.OpenRun, state: TrainState) -> Iterator[None]:
  """Puts the state of a run on its device for as long as it is needed.

  Otherwise the host has it, since a device may have no room for the states of
  all runs.
  """
  with jax.transfer_guard("allow"):
    run.state = jax.device_put(state, sharding.replicated(run.mesh))
    yield
    run.state = _on_host(run.state)


def _rows_of(rows: PyTree, i: int, mesh: Mesh, run_mesh: Mesh) -> PyTree:
  """The rows of run `i`, taken from those of all runs, on its own device."""
  with jax.transfer_guard("allow"):
    with jax.set_mesh(mesh):
      rows_of_run = jax.tree.map(lambda x: x[i], rows)
    return jax.device_put(rows_of_run, sharding.replicated(run_mesh))

"""What is on disk of a run: the state of a checkpoint, a trained policy."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
from jax.sharding import Mesh

from grpo_jax import objects
from grpo_jax.learning import stages
from grpo_jax.training import (
  checkpoints,
  metrics_log,
  models,
  paths,
  phases,
  sharding,
)
from grpo_jax.training import config as config_lib
from grpo_jax.training import problem as problem_lib
from grpo_jax.types import Drawn, Policy, Prompts, PyTree, TrainState

# (Config, what it names) of which a warning has been given.
_warned: set[tuple[str, str]] = set()


class Phase(NamedTuple):
  """A phase before it runs.

  Attributes:
    parts: Its fixed functions.
    enter: The state at its start, from the end of the phase before.
    prompts: Shapes of its batches, without what verifiers need.
  """

  parts: stages.Parts
  enter: Callable[[TrainState], TrainState]
  prompts: Prompts


@dataclasses.dataclass(frozen=True)
class Loaded:
  """Trained models, with what they were trained on.

  Attributes:
    config: Settings of the run.
    problem: What it was to solve.
    policy: The model.
    mesh: On which the parameters are.
    members: Parameters of all models, averaged ones where there are any.
    step: Step of the checkpoint; None of one that no run has trained.
  """

  config: config_lib.RunConfig
  problem: problem_lib.Problem
  policy: Policy
  mesh: Mesh
  members: dict[str, Any]
  step: int | None

  @property
  def params(self) -> Any:
    """Parameters of the policy."""
    return self.members["policy"]


def settings_of(workdir: paths.Path) -> config_lib.RunConfig:
  """The settings of a run, with all that they name at hand.

  A warning says what is imported that this process has not imported yet.

  Args:
    workdir: Folder of the run, local or gs://.

  Raises:
    FileNotFoundError: There is no run, or an object that it names is missing.
    ValueError: Its config is damaged, or what it names cannot be imported.
  """
  path = workdir / metrics_log.CONFIG
  if not path.exists():
    raise FileNotFoundError(
      f"{workdir} holds no run: {path} is missing. Pass the --workdir of"
      " experiments.train."
    )
  values = metrics_log.read_json(path, dict)
  names = [x for x in _foreign(values) if not objects.is_known(x)]
  if new := {(str(path), name) for name in names} - _warned:
    _warned.update(new)
    logging.warning(
      "%s names %s, which will be imported and run: use workdirs of people"
      " whom you trust.",
      path,
      ", ".join(names),
    )
  objects.fetch(json.dumps(values), workdir)
  return config_lib.resolve(ml_collections.ConfigDict(values))


def opened(
  stack: contextlib.ExitStack, workdir: paths.Path, step: int | None = None
) -> Loaded:
  """Opens a run for evaluation; the parameters are the averaged ones, if any.

  What its config names by import path is imported, as in training: a warning
  says what.

  Args:
    stack: Closes what is opened here.
    workdir: Folder of the run, local or gs://.
    step: Checkpoint; None: the last.

  Raises:
    FileNotFoundError: There is no run or no such checkpoint.
    ValueError: Its config is damaged.
  """
  config = settings_of(workdir)
  problem, mesh, policy = _described(stack, config)
  # For shapes: batches of the run need not fit the devices that are here.
  alone = sharding.make_mesh(1, devices=jax.devices()[:1])
  with contextlib.ExitStack() as reading:
    saved = checkpoints.Checkpoints(
      workdir / "checkpoints", keep=config.checkpoint.keep
    )
    reading.callback(saved.close)
    reading.enter_context(jax.set_mesh(mesh))  # As in training.
    run_phases = make_phases(config, problem, policy, alone)
    step = saved.latest_step() if step is None else step
    if step is None:
      raise FileNotFoundError(
        f"{workdir} has no checkpoint yet; wait for the first one"
        " (config.checkpoint.every)."
      )
    shapes = abstract_start(policy, config.seed)
    state = restore(saved, step, run_phases, shapes, mesh)
    members = {
      name: models.evaluation_params(member)
      for name, member in state.members.items()
    }
  return Loaded(config, problem, policy, mesh, members, step)


def opened_checkpoint(
  stack: contextlib.ExitStack, config: config_lib.RunConfig
) -> Loaded:
  """Opens a Hugging Face checkpoint for evaluation, as `opened` does a run.

  Args:
    stack: Closes what is opened here.
    config: As a run from that checkpoint would have it (`model.checkpoint`).

  Raises:
    FileNotFoundError, ValueError: The checkpoint or the config is at fault.
  """
  problem, mesh, policy = _described(stack, config)
  with jax.set_mesh(mesh):  # As in training.
    state = models.first_state(config, problem, policy, mesh)
  members = {"policy": state.params["policy"]}
  return Loaded(config, problem, policy, mesh, members, step=None)


def _described(
  stack: contextlib.ExitStack, config: config_lib.RunConfig
) -> tuple[problem_lib.Problem, Mesh, Policy]:
  """What a config describes, on the devices that are here."""
  problem = problem_lib.make_problem(config)
  stack.callback(problem.close)
  mesh = _mesh_here(config.mesh)
  with jax.set_mesh(mesh):
    return problem, mesh, models.make_policy(config, problem, mesh)


def _foreign(values: Mapping[str, Any]) -> list[str]:
  """What a config names by its import path, but for ours."""

  def found(group: str, key: str) -> Any:
    settings = values.get(group)
    return settings.get(key) if isinstance(settings, Mapping) else None

  functions = found("rewards", "functions")
  names = [
    found("algorithm", "name"),
    found("data", "name"),
    *(functions if isinstance(functions, Sequence) else ()),
    found("rewards", "steps"),
    found("data", "environment"),
  ]
  return [
    name
    for name in names
    if isinstance(name, str)
    and ":" in name
    and not name.startswith("grpo_jax.")
  ]


def _mesh_here(config: config_lib.MeshConfig) -> Mesh:
  """The mesh of a run; where it does not fit, a copy on each device."""
  try:
    return sharding.make_mesh(**dataclasses.asdict(config))
  except ValueError:
    return sharding.make_mesh()


def make_phases(
  config: config_lib.RunConfig,
  problem: problem_lib.Problem,
  policy: Policy,
  mesh: Mesh,
) -> list[Phase]:
  """The phases of a config in order."""
  found: list[Phase] = []
  needed: frozenset[str] = frozenset()  # Members that later phases go on with.
  for index in reversed(range(len(config.phases))):
    name = config.phases[index]
    phase = config.section(name)
    parts = phases.make_parts(config, problem, policy, name, mesh)
    parts = dataclasses.replace(parts, keeps=needed)
    continuing = {k for k, one in parts.members.items() if one.continues}
    needed = (needed - parts.members.keys()) | continuing
    enter = functools.partial(stages.enter_phase, parts=parts, index=index)
    shape = phase.num_prompts, phase.max_prompt_len or problem.max_prompt_len
    prompts = jax.eval_shape(functools.partial(_empty_prompts, shape))
    found.insert(0, Phase(parts, enter, prompts))
  return found


def _empty_prompts(shape: tuple[int, int]) -> Prompts:  # P, S
  return Prompts(
    tokens=jnp.zeros(shape, jnp.int32),
    mask=jnp.zeros(shape, bool),
    ids=jnp.zeros(shape[:1], jnp.int32),
    extras={},
  )


def first_state(
  config: config_lib.RunConfig,
  problem: problem_lib.Problem,
  policy: Policy,
  mesh: Mesh,
) -> TrainState:
  """The state that a run starts with: another run's policy, if it says so.

  Raises:
    FileNotFoundError, ValueError: The checkpoint is at fault.
  """
  if not config.start_workdir:
    return models.first_state(config, problem, policy, mesh)
  shapes = abstract_start(policy, config.seed).params["policy"]
  params = _member_of(
    config.start_workdir, "policy", shapes, mesh, "config.start_workdir"
  )
  return models.state_of(params, policy, config.seed)


def with_others(
  state: TrainState, parts: stages.Parts, mesh: Mesh
) -> TrainState:
  """The state with the members that come from other runs.

  Args:
    state: At the start of a phase.
    parts: Functions of the phase.
    mesh: Of this run.

  Raises:
    FileNotFoundError: There is no such run, or it has no checkpoint.
    ValueError: A model there has other arrays than this run's.
  """
  found = {
    name: _member_of(
      member.workdir, member.source, state.params[name], mesh, member.setting
    )
    for name, member in parts.members.items()
    if member.workdir
  }
  return state.with_params(**found)


def _member_of(
  workdir: str, name: str, like: PyTree, mesh: Mesh, setting: str
) -> PyTree:
  """A model of another run, on the devices; `like` has its shapes."""

  def shapes(params):
    return {
      jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}"
      for path, x in jax.tree_util.tree_leaves_with_path(params)
    }

  with contextlib.ExitStack() as stack:
    other = opened(stack, paths.parse(workdir))
    if name not in other.members:
      raise ValueError(
        f"{setting}={workdir}: its last checkpoint has no {name!r}, but"
        f" {', '.join(sorted(other.members))}; name a run that has trained one."
      )
    params = other.members[name]
    ours, theirs = shapes(like), shapes(params)
    if ours != theirs:
      differ = sorted(
        name
        for name in ours.keys() | theirs.keys()
        if ours.get(name) != theirs.get(name)
      )
      leaf = differ[0]
      raise ValueError(
        f"{setting}={workdir}: {len(differ)} arrays of its {name} differ from"
        f" this run's; {leaf} is {theirs.get(leaf, 'absent')}, needed is"
        f" {ours.get(leaf, 'absent')}. It must have the model and the"
        " vocabulary of the policy."
      )
    return jax.device_put(params, sharding.of_params(mesh, params))


def restore(
  saved: checkpoints.Checkpoints,
  step: int,
  phases: list[Phase],
  initial: TrainState,
  mesh: Mesh,
) -> TrainState:
  """The state of a checkpoint, whatever its phase holds."""
  extra = saved.extra(step)
  entered = phases[: extra["phase"] + 1]
  abstract = abstract_state(entered, initial)
  if count := extra.get("queue", 0):  # Absent where nothing was drawn ahead.
    parts, _, prompts = entered[-1]
    drawn = Drawn(
      *(
        jax.eval_shape(functools.partial(stage, parts=parts), abstract, prompts)
        for stage in (stages.sample_stage, stages.greedy_stage)
      )
    )
    abstract = dataclasses.replace(abstract, queue=(drawn,) * count)
  state, _, _ = saved.restore(
    sharding.abstract(abstract, sharding.of_state(mesh, abstract)), step
  )
  return state


def abstract_start(policy: Policy, seed: int) -> TrainState:
  """Shapes before any phase; no parameter is made."""
  return jax.eval_shape(lambda: models.initial_state(policy, seed))


def abstract_state(phases: list[Phase], initial: TrainState) -> TrainState:
  """Shapes after entering these phases; raises if one cannot be entered."""
  abstract = initial
  for phase in phases:
    abstract = jax.eval_shape(phase.enter, abstract)
  return abstract

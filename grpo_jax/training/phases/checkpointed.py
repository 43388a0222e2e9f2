"""Runs and checkpoints from disk: phases, states and trained policies.

The parameters of a run's models come from its own last checkpoint (`restore`).
Without one, those of the policy come from the first of these that the config
has (`first_state`):

1. `config.start_workdir`, another run or a published checkpoint;
2. `config.model.checkpoint`, quantised if the config says so, with adapters:
   those of `adapter_checkpoint`, or new ones;
3. random numbers, of `config.seed`.

If a phase has `reset_policy`, it begins with this policy again.

Another model begins with its phase. If a setting names a run or a checkpoint,
it is read (`with_outside`). Else `Model.start` makes it of the models before,
for example a reference of the policy. If it continues, it stays as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from grpo_jax.models import quantization
from grpo_jax.settings import config as config_lib
from grpo_jax.step import step as step_lib
from grpo_jax.training.phases import build
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.phases import workdir as workdir_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import checkpoints, files, sharding
from grpo_jax.types import (
  EpisodeSampler,
  Images,
  ModelState,
  Policy,
  Prompts,
  PyTree,
  Rollouts,
  TrainState,
)


class OpenPhase(NamedTuple):
  """A phase before it runs.

  Attributes:
    phase: Its fixed functions.
    enter: (state at the end of the phase before) -> state at its start.
    prompts: Shapes of its batches. If rollouts are drawn ahead, these may be
      part of a checkpoint, and the shapes include arrays for environments and
      verifiers.
    queue_shapes: (shapes of the state) -> shapes of a rollout that waits.
  """

  phase: step_lib.Phase
  enter: Callable[[TrainState], TrainState]
  prompts: Prompts
  queue_shapes: Callable[[TrainState], Rollouts]


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A trained policy, with the settings and data of its run.

  Attributes:
    problem: The problem that it was trained on.
    mesh: Mesh with the parameters.
    params: Parameters of the policy, averaged ones if there are any.
    step: Step of the checkpoint; None if no run has trained it.
  """

  config: config_lib.RunConfig
  problem: problem_lib.Problem
  policy: Policy
  mesh: Mesh
  params: Any
  step: int | None


def opened(
  stack: contextlib.ExitStack, workdir: files.Path, step: int | None = None
) -> Loaded:
  """Opens a run for evaluation, with the averaged parameters if there are any.

  Objects that its config names by import path are imported, as in training; a
  warning names them.

  Args:
    stack: Closes the files and processes that are opened here.
    workdir: Folder of the run, local or gs://.
    step: Step of the checkpoint; None: the last.

  Raises:
    FileNotFoundError: There is no run or no such checkpoint.
    ValueError: Its config or checkpoint is damaged, or they do not fit.
  """
  config = workdir_lib.settings(workdir)
  problem, mesh, policy = _described(stack, config)
  if step is None:
    step = workdir_lib.last_step(workdir, config)
  with jax.set_mesh(mesh):  # As in training.
    shapes = {"policy": workdir_lib.shapes(workdir, config, step)["policy"]}
    _check_policy(workdir, policy, shapes["policy"].params)
    params = workdir_lib.read(workdir, config, step, shapes, mesh)["policy"]
  return Loaded(config, problem, policy, mesh, params, step)


def opened_checkpoint(
  stack: contextlib.ExitStack, config: config_lib.RunConfig
) -> Loaded:
  """Opens a Hugging Face checkpoint for evaluation, as `opened` does a run.

  Args:
    stack: Closes the files and processes that are opened here.
    config: Config of a run that begins with that checkpoint
      (`model.checkpoint`).

  Raises:
    FileNotFoundError, ValueError: The checkpoint or the config is at fault.
  """
  problem, mesh, policy = _described(stack, config)
  with jax.set_mesh(mesh):  # As in training.
    state = first_state(config, problem, policy, mesh)
  params = state.params["policy"]
  return Loaded(config, problem, policy, mesh, params, step=None)


def _described(
  stack: contextlib.ExitStack, config: config_lib.RunConfig
) -> tuple[problem_lib.Problem, Mesh, Policy]:
  """Makes problem, mesh and policy of a config, on the devices here."""
  problem = problem_lib.make_problem(config)
  stack.callback(problem.close)
  mesh = _mesh_here(config.mesh)
  with jax.set_mesh(mesh):
    return problem, mesh, policy_lib.make_policy(config, problem, mesh)


def _mesh_here(config: config_lib.MeshConfig) -> Mesh:
  """Makes the mesh of a run; if it does not fit, a copy on each device."""
  try:
    return sharding.make_mesh(**dataclasses.asdict(config))
  except ValueError:
    return sharding.make_mesh()


def make_phases(
  config: config_lib.RunConfig,
  problem: problem_lib.Problem,
  policy: Policy,
  mesh: Mesh,
) -> list[OpenPhase]:
  """Makes the phases of a config, in order."""
  phases: list[OpenPhase] = []
  keeps: frozenset[str] = frozenset()  # Models that later phases go on with.
  for index in reversed(range(len(config.phases))):
    name = config.phases[index]
    settings = config.section(name)
    phase = build.make_phase(config, problem, policy, name, mesh)
    phase = dataclasses.replace(phase, keeps=keeps)
    continuing = {k for k, model in phase.models.items() if model.continues}
    keeps = (keeps - phase.models.keys()) | continuing
    enter = functools.partial(step_lib.enter_phase, phase=phase, index=index)
    shape = (
      settings.num_prompts,
      settings.max_prompt_len or problem.max_prompt_len,
    )
    prompts = jax.eval_shape(
      functools.partial(_empty_prompts, shape, problem.image_shapes)
    )
    if settings.num_ahead and len(problem.train):
      from grpo_jax.training.phases import kept_groups

      hints = policy_lib.hints(config, problem, name)
      prompts = kept_groups.prompt_shapes(problem, *shape, hints)
    shapes = functools.partial(_rollout_shapes, problem, mesh, phase, prompts)
    phases.insert(0, OpenPhase(phase, enter, prompts, shapes))
  return phases


def _rollout_shapes(
  problem: problem_lib.Problem,
  mesh: Mesh,
  phase: step_lib.Phase,
  prompts: Prompts,
  state: TrainState,
) -> Rollouts:
  """The shapes of the rollouts that a phase draws ahead; nothing is run."""
  if not isinstance(phase.sampler, EpisodeSampler):
    draw = functools.partial(step_lib.rollout_stage, phase=phase)
    return jax.eval_shape(draw, state, prompts)

  def shapes(turns, **options):
    from grpo_jax.training.phases import host_sampler  # Starts processes.

    sampler = host_sampler.host_episodes(problem, mesh, turns, **options)
    return sampler.shapes(state.params["policy"], prompts, state.key)

  rollout, scored = shapes(phase.sampler.turns)
  baseline = None
  if phase.sampler.greedy is not None:
    _, baseline = shapes(phase.sampler.greedy, keeps_contexts=False)
  rollout = jax.eval_shape(step_lib.with_version, state, rollout)
  return Rollouts(rollout, None, scored, baseline)


def _empty_prompts(shape: tuple[int, int], images: Images | None) -> Prompts:
  """Prompts of zeros, P of S tokens, with images shaped like one prompt's."""
  return Prompts(
    tokens=jnp.zeros(shape, jnp.int32),
    mask=jnp.zeros(shape, bool),
    ids=jnp.zeros(shape[:1], jnp.int32),
    extras={},
    images=jax.tree.map(
      lambda x: jnp.zeros((shape[0], *x.shape), x.dtype), images
    ),
  )


def first_state(
  config: config_lib.RunConfig,
  problem: problem_lib.Problem,
  policy: Policy,
  mesh: Mesh,
) -> TrainState:
  """Makes the first state of a run; the module says where its policy is from.

  Raises:
    FileNotFoundError, ValueError: A file of the policy is at fault.
  """
  if config.start_workdir:
    from grpo_jax.training.phases import outside  # Reads published models too.

    source = outside.find_outside(
      config.start_workdir,
      setting="config.start_workdir",
      config=config,
      problem=problem,
      mesh=mesh,
    )
    setting = f"config.start_workdir={config.start_workdir}"
    _check_policy(setting, policy, source.shapes)
    return policy_lib.state_of(source.read(), policy, config.seed)
  if not config.model.checkpoint:
    return policy_lib.initial_state(policy, config.seed)
  from grpo_jax.models.hf import families, peft, weights
  from grpo_jax.models.policies import lora  # They read published families.

  model = config.model.transformer(problem.tokenizer.vocab_size)
  if config.model.adapter_checkpoint:
    peft.check(model)
  _, params = weights.load(
    config.model.directory(weights=True),
    model,
    param_dtype=config.model.param_dtype,
    shardings=functools.partial(sharding.of_params, mesh),
    convert=functools.partial(
      quantization.quantize_leaf, kind=config.model.quantization
    ),
  )
  adapters = config.model.adapters()
  if adapters is not None:
    init_key, _ = jax.random.split(jax.random.key(config.seed))
    params = lora.wrap(params, adapters, init_key)
    if config.model.adapter_checkpoint:
      _, family = families.from_config_json(config.model.directory())
      params = peft.load(
        *(config.model.adapter_checkpoint, params, adapters),
        nested=bool(family.nested),
      )
  return policy_lib.state_of(params, policy, config.seed)


def _check_policy(origin: Any, policy: Policy, shapes: PyTree) -> None:
  """Raises ValueError unless shapes are those of a policy.

  Args:
    origin: Origin of the shapes, for messages.
  """
  own = abstract_start(policy, 0).params["policy"]
  expected, actual = map(checkpoints.descriptions, (own, shapes))
  if expected != actual:
    differ = sorted(
      name
      for name in expected.keys() | actual.keys()
      if expected.get(name) != actual.get(name)
    )
    leaf = differ[0]
    raise ValueError(
      f"{origin}: {len(differ)} arrays of its policy differ from those of the"
      f" config; {leaf} is {actual.get(leaf, 'absent')}, needs"
      f" {expected.get(leaf, 'absent')}. Both must have one architecture, dtype"
      " and vocabulary."
    )


def with_outside(state: TrainState, phase: step_lib.Phase) -> TrainState:
  """Reads the models from outside of the run into the state.

  A model that continues from phase to phase is read only if it is not there.

  Args:
    state: State before the phase begins.

  Raises:
    FileNotFoundError, ValueError: A model is gone, or damaged.
  """
  return state.with_models(
    **{
      name: ModelState(model.read())
      for name, model in phase.models.items()
      if model.read is not None
      and not (model.continues and name in state.models)
    }
  )


def restore(
  store: checkpoints.Checkpoints,
  step: int,
  phases: list[OpenPhase],
  initial: TrainState,
  mesh: Mesh,
) -> TrainState:
  """Restores the state of a checkpoint, in whichever phase it was saved."""
  extra = store.extra(step)
  entered = phases[: extra["phase"] + 1]
  abstract = abstract_state(entered, initial)
  if count := extra.get("queue", 0):  # Absent if nothing was drawn ahead.
    rollouts = entered[-1].queue_shapes(abstract)
    abstract = dataclasses.replace(abstract, queue=(rollouts,) * count)
  state, _, _ = store.restore(
    sharding.abstract(abstract, sharding.of_state(mesh, abstract)), step
  )
  return state


def abstract_start(policy: Policy, seed: int) -> TrainState:
  """The shapes of the state before any phase; no parameter is made."""
  return jax.eval_shape(lambda: policy_lib.initial_state(policy, seed))


def abstract_state(phases: list[OpenPhase], initial: TrainState) -> TrainState:
  """The shapes after entering these phases; raises if one cannot be entered."""
  abstract = initial
  for phase in phases:
    abstract = jax.eval_shape(phase.enter, abstract)
  return abstract

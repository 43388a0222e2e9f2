"""From a config to the parts of a phase and the state that enters it."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from grpo_jax import algorithms
from grpo_jax.algorithms import objective
from grpo_jax.models import transformer
from grpo_jax.rollout import sampling
from grpo_jax.training import config as config_lib
from grpo_jax.training import optimizers, sharding
from grpo_jax.training.problem import Problem
from grpo_jax.training.step import Parts, UpdatePlan, trained_params
from grpo_jax.types import Policy, PyTree, TrainState


def make_policy(config: config_lib.RunConfig, problem: Problem) -> Policy:
  """The model for the problem's vocabulary."""
  return transformer.transformer_policy(
    config.model.transformer(problem.tokenizer.vocab_size)
  )


def make_parts(
  config: config_lib.RunConfig,
  problem: Problem,
  policy: Policy,
  phase_name: str,
  mesh: Mesh,
) -> Parts:
  """The fixed functions of the phase called `phase_name`.

  Raises:
    ValueError: The phase's prompts do not split over the mesh.
  """
  phase: config_lib.PhaseConfig = getattr(config, phase_name)
  if phase.num_prompts % mesh.size:
    raise ValueError(
      f"config.{phase_name}.num_prompts={phase.num_prompts} does not split"
      f" over {mesh.size} devices; needed: num_prompts = devices × (a whole"
      " number). Change it or config.mesh_data."
    )
  supervised = phase_name == "sft"
  if supervised:
    algorithm = algorithms.get_algorithm("sft")
    objective_config = algorithm.config_class()
  else:
    name, objective_config = config.algorithm
    algorithm = algorithms.get_algorithm(name)
  if phase.group_size < algorithm.min_group_size:
    raise ValueError(
      f"config.{phase_name}.group_size={phase.group_size}: algorithm"
      f" {algorithm.name!r} compares the completions of a prompt and needs at"
      f" least {algorithm.min_group_size}; every advantage would be 0."
    )
  plan = UpdatePlan(
    num_epochs=phase.num_epochs,
    num_minibatches=phase.num_minibatches,
    micro_batch_size=config_lib.micro_batch_size(
      phase,
      problem.max_prompt_len + problem.max_new_tokens,
      jax.default_backend(),
    ),
    temperature=1.0 if supervised else config.sampling.temperature,
    ema_decay=phase.ema_decay,
  )
  unit = algorithm.rows_per_unit
  if plan.micro_batch_size % unit:
    raise ValueError(
      f"algorithm {algorithm.name!r} couples {unit} rows, which a micro-batch"
      f" of {plan.micro_batch_size} rows would separate; set"
      f" config.{phase_name}.micro_batch_size to a multiple of {unit}."
    )
  num_updates = phase.steps * plan.num_updates
  parts = Parts(
    policy=policy,
    algorithm=algorithm,
    config=objective_config,
    optimizer=optimizers.make_optimizer(phase.optimizer, num_updates),
    schedule=optimizers.schedule(phase.optimizer, num_updates),
    plan=plan,
    constrain_rows=sharding.row_constraint(mesh),
    num_samples=config.log.num_samples,
  )
  if supervised:
    return parts
  return dataclasses.replace(
    parts,
    sample=functools.partial(
      sampling.sample,
      policy,
      config=config.sampling.sampler(
        problem.max_new_tokens,
        problem.tokenizer.end_ids,
        problem.tokenizer.pad_id,
      ),
      group_size=phase.group_size,
    ),
    score=problem.score,
  )


def initial_state(policy: Policy, seed: int) -> TrainState:
  """A state before any phase: parameters and keys only."""
  key = jax.random.key(seed)
  init_key, run_key = jax.random.split(key)
  return TrainState(
    step=jnp.int32(0),
    phase=jnp.int32(0),
    phase_step=jnp.int32(0),
    key=run_key,
    params={"policy": jax.jit(policy.init)(init_key), "algorithm": {}},
    opt_state=None,
    algorithm_state={},
  )


def enter_phase(
  state: TrainState,
  parts: Parts,
  phase: config_lib.PhaseConfig,
  index: int,
) -> TrainState:
  """The state at the start of phase `index`, from the end of the one before.

  A pure function, so that `jax.eval_shape` of it describes a checkpoint.
  """
  trainable, algorithm_state = parts.algorithm.init(parts.config)
  params = {"policy": state.params["policy"], "algorithm": trainable}
  opt_state = parts.optimizer.init(trained_params(params))
  if not phase.reset_optimizer and state.opt_state is not None:
    opt_state = _carry_moments(opt_state, state.opt_state)
  ref_params = None
  if "ref_logp" in objective.needs(parts.algorithm, parts.config):
    ref_params = state.ref_params
    if phase.set_reference:
      # A copy: the step donates the state, and the parameters move on.
      ref_params = jax.tree.map(jnp.copy, params["policy"])
    if ref_params is None:
      raise ValueError(
        f"phase {index}: algorithm {parts.algorithm.name!r} needs a reference"
        " policy and there is none yet; set set_reference=True in the phase,"
        " or kl_coef=0."
      )
  ema_params = None
  if phase.ema_decay is not None:
    ema_params = jax.tree.map(jnp.copy, params["policy"]["trained"])
  return dataclasses.replace(
    state,
    phase=jnp.int32(index),
    phase_step=jnp.int32(0),
    params=params,
    opt_state=opt_state,
    algorithm_state=algorithm_state,
    ref_params=ref_params,
    ema_params=ema_params,
  )


def _carry_moments(fresh: PyTree, old: PyTree) -> PyTree:
  """The old policy's Adam moments in a fresh state; schedules start anew."""

  def is_adam(node):
    return isinstance(node, optax.ScaleByAdamState)

  policy = jax.tree.map(
    lambda new, past: past if is_adam(new) else new,
    fresh.inner_states["policy"],
    old.inner_states["policy"],
    is_leaf=is_adam,
  )
  return fresh._replace(inner_states={**fresh.inner_states, "policy": policy})


def evaluation_params(state: TrainState) -> PyTree:
  """Policy parameters to evaluate: the average where one is kept."""
  if state.ema_params is None:
    return state.params["policy"]
  return {**state.params["policy"], "trained": state.ema_params}

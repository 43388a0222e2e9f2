"""From a config to the parts of a phase and the state that enters it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh

from grpo_jax import algorithms
from grpo_jax.algorithms import objective, options
from grpo_jax.models import critic as critic_lib
from grpo_jax.models import (
  lora,
  meshes,
  quantization,
  transformer,
  weights,
)
from grpo_jax.ops import masked
from grpo_jax.rollout import compaction, host_turns, sampling
from grpo_jax.training import config as config_lib
from grpo_jax.training import optimizers, sharding
from grpo_jax.training.micro_batches import UpdatePlan
from grpo_jax.training.problem import Problem
from grpo_jax.training.step import CriticParts, Parts, trained_params
from grpo_jax.types import (
  ROW_AXES,
  Algorithm,
  Policy,
  PyTree,
  Rollout,
  TrainState,
)


def make_policy(
  config: config_lib.RunConfig, problem: Problem, mesh: Mesh
) -> Policy:
  """The model for the problem's vocabulary, split over the mesh.

  Raises:
    ValueError: A size of the model does not split.
  """
  model = config.model.transformer(problem.tokenizer.vocab_size)
  check_model(model, mesh)
  return sharding.on_mesh(policy_of(model, config.model.adapters()), mesh)


def check_model(model: transformer.TransformerConfig, mesh: Mesh) -> None:
  """Raises ValueError if a size of the model does not split over the mesh."""
  sizes = {
    ("tensor",): {
      "num_kv_heads": model.num_kv_heads,
      "vocab_size": model.vocab_size,
      **(
        {"expert_width": model.expert_width}
        if model.num_experts
        else {"mlp_width": model.mlp_width}
      ),
    },
    ("expert",): {"num_experts": model.num_experts},
    ("fsdp", "expert"): {"width": model.width},
  }
  for axes, fields in sizes.items():
    parts = math.prod(mesh.shape[axis] for axis in axes)
    shown = " × ".join(f"{axis} {mesh.shape[axis]}" for axis in axes)
    named = " or ".join(f"config.mesh.{axis}" for axis in axes)
    for name, size in fields.items():
      if size % parts or (size == 0 and parts > 1):
        raise ValueError(
          f"config.mesh: the model's {name} {size} does not split over {shown}:"
          f" {size} / {parts} is not a whole number"
          f"{' of at least 1' if not size else ''}. Change {named}."
        )


def policy_of(
  model: transformer.TransformerConfig, adapters: lora.LoRAConfig | None
) -> Policy:
  """A transformer, with adapters if there are any."""
  policy = transformer.transformer_policy(model)
  return policy if adapters is None else lora.lora_policy(policy, adapters)


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
  num_shards = sharding.num_row_shards(mesh)
  if phase.num_prompts % num_shards:
    shown = " × ".join(f"{axis} {mesh.shape[axis]}" for axis in ROW_AXES)
    raise ValueError(
      f"config.{phase_name}.num_prompts={phase.num_prompts} does not split over"
      f" the {num_shards} devices of {shown}; needed: num_prompts = devices ×"
      " (a whole number), so that each has whole groups. Change it or"
      " config.mesh."
    )
  supervised = phase_name == "sft"
  # Processes that hold the same rows split them, to score each once.
  on_hosts = (
    (problem.scorer or problem.sessions)
    and not supervised
    and jax.process_count() > 1
  )
  if (
    on_hosts
    and sharding.by_rows_once(mesh) != sharding.by_rows(mesh)
    and phase.num_prompts % mesh.size
  ):
    raise ValueError(
      f"config.{phase_name}.num_prompts={phase.num_prompts} does not split over"
      f" all {mesh.size} devices, and config.mesh.tensor reaches over several"
      " hosts, which share the scoring of rows; needed: num_prompts = devices ×"
      " (a whole number), or a tensor axis within each host."
    )
  lanes = config.sampling.lanes
  if lanes is not None and lanes % num_shards:
    raise ValueError(
      f"config.sampling.lanes={lanes} do not split over {num_shards} devices;"
      " needed: lanes = devices × (a whole number)."
    )
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
  most = algorithm.max_group_size
  if most is not None and phase.group_size > most:
    raise ValueError(
      f"config.{phase_name}.group_size={phase.group_size}: algorithm"
      f" {algorithm.name!r} is defined for at most {most} completions per"
      f" prompt; set config.{phase_name}.group_size={most}."
    )
  if not supervised and phase.group_size == 1:
    for name, off in (("dynamic_sampling", False), ("advantage_scale", "none")):
      value = getattr(objective_config, name)
      if value not in (off, "batch"):
        raise ValueError(
          f"config.algorithm.{name}={value!r} compares the completions of a"
          f" prompt, and config.{phase_name}.group_size=1: nothing would be"
          f" trained. Set it to {off!r}, or group_size to 2 or more."
        )
  if phase.max_rounds > 1:
    _check_rounds(phase_name, phase.max_rounds, objective_config)
  required = options.needs(algorithm, objective_config)
  _check_inputs(config, problem, required, algorithm.name)
  if problem.host_environment is not None and not supervised:
    _check_host_environment(config, phase_name, phase)
  if phase.staleness:
    _check_staleness(phase_name, phase, problem, required, algorithm.name)
  if "domain" in required:
    _check_domains(problem, objective_config.kl_domain_weights)
  plan = update_plan(
    phase,
    problem.max_prompt_len,
    problem.max_new_tokens,
    mesh,
    temperature=1.0 if supervised else config.sampling.temperature,
    couples_group=algorithm.couples_group,
    shares_prompts=problem.compaction is None,
  )
  if problem.compaction is not None:
    _check_compaction(phase_name, phase, algorithm, objective_config)
  unit = phase.group_size if algorithm.couples_group else 1
  if plan.micro_batch_size % unit:
    raise ValueError(
      f"algorithm {algorithm.name!r} couples the {unit} completions of a"
      f" prompt, which a micro-batch of {plan.micro_batch_size} rows would"
      f" separate; set config.{phase_name}.micro_batch_size to a multiple of"
      f" {unit}."
    )
  num_updates = phase.steps * plan.num_updates
  critic_parts = None
  if algorithm.critic_loss is not None:
    critic_parts = make_critic_parts(config, policy, num_updates)
  if phase_name == "value":
    if critic_parts is None:
      raise ValueError(
        f"config.phases={config.phases}: the phase 'value' trains a critic, and"
        f" algorithm {algorithm.name!r} has none; leave the phase out, or"
        " choose an algorithm with one, such as 'ppo'."
      )
    if config.critic.num_updates == 0:
      raise ValueError(
        "config.critic.num_updates=0: the phase 'value' would train nothing;"
        " set it to 1 or more, or leave the phase out of config.phases."
      )
    objective_config = objective_config.for_pretraining()
  elif algorithm.policy_loss is None:
    raise ValueError(
      f"config.phases={config.phases}: algorithm {algorithm.name!r} trains no"
      " policy, but a critic; set config.phases to (..., 'value')."
    )
  parts = Parts(
    policy=policy,
    algorithm=algorithm,
    config=objective_config,
    optimizer=optimizers.make_optimizer(
      phase.optimizer, num_updates, config.seed
    ),
    schedule=optimizers.schedule(phase.optimizer, num_updates),
    plan=plan,
    critic=critic_parts,
    trains_policy=phase_name != "value",
    constrain_rows=sharding.row_constraint(mesh),
    constrain_trained=sharding.trained_constraint(mesh),
    num_samples=config.log.num_samples,
  )
  if supervised:
    return parts
  sampler = config.sampling.sampler(
    problem.max_new_tokens,
    problem.tokenizer.end_ids,
    problem.tokenizer.pad_id,
    record_kept="kept_ids" in required,
    record_routing="routing" in required,
  )
  greedy = dataclasses.replace(
    sampler, temperature=0.0, record_kept=False, record_routing=False
  )
  is_played = problem.environment or problem.host_environment
  if is_played is not None and lanes is not None:
    raise ValueError(
      f"config.sampling.lanes={lanes}: the rows of an environment are all"
      " decoded at once; set it to None."
    )
  if problem.host_environment is not None:
    return dataclasses.replace(
      parts,
      turns=make_turns(policy, problem, sampler, phase.group_size),
      greedy_turns=make_turns(policy, problem, greedy, 1)
      if "greedy_rewards" in required
      else None,
      score=problem.score,
    )
  sample = make_sample(policy, problem)
  return dataclasses.replace(
    parts,
    sample=functools.partial(
      sample, config=sampler, group_size=phase.group_size
    ),
    greedy=functools.partial(sample, config=greedy, group_size=1)
    if "greedy_rewards" in required
    else None,
    score=problem.score,
    max_rounds=phase.max_rounds,
    staleness=phase.staleness,
  )


def make_sample(policy: Policy, problem: Problem) -> Callable[..., Rollout]:
  """(params, prompts, key, config=…, group_size=…) -> a rollout."""
  if problem.compaction is None:
    return functools.partial(
      sampling.sample, policy, environment=problem.environment
    )
  assert problem.environment is not None
  return functools.partial(
    compaction.sample,
    policy,
    environment=problem.environment,
    compaction=problem.compaction,
  )


def make_turns(
  policy: Policy,
  problem: Problem,
  config: sampling.SamplingConfig,
  group_size: int,
) -> host_turns.HostTurns:
  """As `make_sample`, where the environment is on the host."""
  assert problem.host_environment is not None
  return host_turns.HostTurns(
    policy, config, group_size, problem.host_environment
  )


def make_critic_parts(
  config: config_lib.RunConfig, policy: Policy, num_updates: int
) -> CriticParts:
  """What trains the critic of a policy.

  Args:
    config: Of the run.
    policy: What the critic judges.
    num_updates: Gradient steps of the policy in the phase.
  """
  critic = config.critic
  num_updates *= critic.num_updates
  return CriticParts(
    model=critic_lib.make_critic(policy, critic.trunk, critic.freeze),
    optimizer=optimizers.of_model(
      critic.optimizer, num_updates, config.seed, "critic"
    ),
    schedule=optimizers.schedule(critic.optimizer, num_updates),
    num_updates=critic.num_updates,
  )


def update_plan(
  phase: config_lib.PhaseConfig,
  max_prompt_len: int,
  max_new_tokens: int,
  mesh: Mesh | AbstractMesh,
  *,
  temperature: float = 1.0,
  couples_group: bool = False,
  shares_prompts: bool = True,
) -> UpdatePlan:
  """How a batch of the phase becomes gradient steps on a mesh."""
  num_shards = sharding.num_row_shards(mesh)
  micro = config_lib.micro_batch_size(
    phase, max_prompt_len, max_new_tokens, meshes.platform(mesh)
  )
  minibatch = phase.num_rows // phase.num_minibatches
  group_size = phase.group_size
  if minibatch % phase.group_size or not shares_prompts:
    group_size = 1
  unit = group_size if couples_group else 1
  divides = (
    micro % (num_shards * unit) == minibatch % (num_shards * group_size) == 0
  )
  return UpdatePlan(
    num_epochs=phase.num_epochs,
    num_minibatches=phase.num_minibatches,
    micro_batch_size=micro,
    temperature=temperature,
    chunk_bytes=chunk_bytes(phase, mesh),
    ema_decay=phase.ema_decay,
    group_size=group_size,
    num_shards=num_shards if divides else 1,
    lengths=config_lib.lengths(phase, max_new_tokens),
  )


def chunk_bytes(
  phase: config_lib.PhaseConfig, mesh: Mesh | AbstractMesh
) -> int:
  """Bytes of the logits of a chunk, over all devices."""
  mebibytes = phase.logits_chunk_mib
  if mebibytes is None:
    # Each chunk reads and writes the gradient of the head once; on an
    # accelerator that would take longer than the products of 64 MiB.
    mebibytes = 64 if meshes.platform(mesh) == "cpu" else 1024
  return mebibytes * mesh.size * 2**20


def _check_inputs(
  config: config_lib.RunConfig,
  problem: Problem,
  required: frozenset[str],
  name: str,
) -> None:
  """Raises ValueError if nothing provides what the algorithm reads."""
  for need in ("step_rewards", "turns", "state_id", "domain"):
    if need in required and need not in problem.provides:
      raise ValueError(
        f"algorithm {name!r} needs {need!r}: {options.NEEDS[need]}."
      )
  filters = config.sampling
  filtered = any(
    value is not None for value in (filters.top_k, filters.top_p, filters.min_p)
  )
  if "kept_ids" in required and filters.top_k is None:
    raise ValueError(
      "config.algorithm.keep_sampling_mask records the kept tokens and needs"
      " config.sampling.top_k, which bounds their number; set it."
    )
  if "behavior_logp" in required and filtered and "kept_ids" not in required:
    raise ValueError(
      "config.sampling filters tokens (top_k, top_p or min_p), so the recorded"
      f" log-probs are not of the policy that algorithm {name!r} compares them"
      " with; set config.algorithm.keep_sampling_mask=True, or leave the"
      " filters out."
    )


def _check_rounds(
  phase_name: str, max_rounds: int, objective_config: options.CommonConfig
) -> None:
  """Raises ValueError if the algorithm does not ask for live groups."""
  if not objective_config.dynamic_sampling:
    raise ValueError(
      f"config.{phase_name}.max_rounds={max_rounds} draws until enough groups"
      " have rewards that differ, which dynamic sampling alone asks for; set"
      " config.algorithm.dynamic_sampling=True, or max_rounds=1."
    )
  if objective_config.max_live_groups:
    raise ValueError(
      f"config.{phase_name}.max_rounds={max_rounds} and"
      f" config.algorithm.max_live_groups={objective_config.max_live_groups}"
      " are two ways to a batch of live groups. To draw on until there are"
      f" enough, set config.{phase_name}.num_prompts to their number and"
      " max_live_groups=0; to choose them from one large"
      " batch, max_rounds=1."
    )


def _check_compaction(
  phase_name: str,
  phase: config_lib.PhaseConfig,
  algorithm: Algorithm,
  objective_config: options.CommonConfig,
) -> None:
  """Raises ValueError if rows that are contexts cannot be trained so."""
  if phase.max_rounds > 1:
    raise ValueError(
      f"config.{phase_name}.max_rounds={phase.max_rounds}: a rollout whose"
      " context is compacted is several rows, which rounds do not sort; set it"
      " to 1."
    )
  if algorithm.couples_group:
    raise ValueError(
      f"algorithm {algorithm.name!r} couples the completions of a prompt, and a"
      " rollout whose context is compacted is several of them; choose another"
      " algorithm, or a task without compaction."
    )
  if algorithm.whole_completions:
    raise ValueError(
      f"algorithm {algorithm.name!r} makes advantages of the tokens of a whole"
      " completion, and a rollout whose context is compacted has them in"
      " several rows; choose another algorithm, such as 'grpo' or"
      " 'compaction_rl', or a task without compaction."
    )
  if objective_config.overlong_cache:
    raise ValueError(
      f"config.algorithm.overlong_cache={objective_config.overlong_cache} is a"
      " share of the budget of a completion, and a rollout whose context is"
      " compacted has one for each context; set it to 0."
    )


def _check_host_environment(
  config: config_lib.RunConfig, phase_name: str, phase: config_lib.PhaseConfig
) -> None:
  """Raises ValueError if rollouts with the host between the turns cannot."""
  path = config.data.environment
  if phase.staleness:
    raise ValueError(
      f"config.{phase_name}.staleness={phase.staleness}: the rollouts of the"
      f" environment {path!r} on the host are drawn turn after turn with the"
      " host between them, and none can be on its way while another one is; set"
      " it to 0."
    )
  if phase.max_rounds > 1:
    raise ValueError(
      f"config.{phase_name}.max_rounds={phase.max_rounds}: episodes of the"
      f" environment {path!r} on the host are drawn in one round; set it to 1,"
      " which leaves groups without different rewards out of the loss."
    )


def _check_staleness(
  phase_name: str,
  phase: config_lib.PhaseConfig,
  problem: Problem,
  required: frozenset[str],
  name: str,
) -> None:
  """Raises ValueError if there is nothing to overlap, or no correction."""
  if problem.scorer is None:
    raise ValueError(
      f"config.{phase_name}.staleness={phase.staleness} lets the device go on"
      " while the host verifies, and these answers are verified on the device,"
      " in the program of the step; needed is 0, or data with verifiers on the"
      " host (config.data.source='jsonl' or 'tfds')."
    )
  if phase.max_rounds > 1:
    raise ValueError(
      f"config.{phase_name}.staleness={phase.staleness} draws the next batches"
      f" before this one is verified, and max_rounds={phase.max_rounds} draws"
      " more of this one after that; set staleness=0 or max_rounds=1."
    )
  if "behavior_logp" not in required:
    raise ValueError(
      f"config.{phase_name}.staleness={phase.staleness} trains on completions"
      f" of earlier parameters, and algorithm {name!r} takes them for the"
      " current ones'; set config.algorithm.importance_mode='truncate'"
      " or 'mask', or config.algorithm.rejection; or set staleness to 0."
    )


def _check_domains(problem: Problem, weights: tuple[float, ...]) -> None:
  """Raises ValueError if a domain has no weight; indexing would clamp it."""
  train = problem.train
  largest = max(int(train[i]["extras"]["domain"]) for i in range(len(train)))
  if largest >= len(weights):
    raise ValueError(
      f"config.algorithm.kl_domain_weights={weights} has {len(weights)} weights"
      f" and a record has domain {largest}; give {largest + 1} weights."
    )


def first_state(
  config: config_lib.RunConfig,
  problem: Problem,
  policy: Policy,
  mesh: Mesh,
) -> TrainState:
  """The state that a run starts with: fresh, or from a checkpoint's weights.

  And from saved adapters, if the config names them.

  Raises:
    FileNotFoundError, ValueError: The checkpoint's files are at fault.
  """
  if not config.model.checkpoint:
    return initial_state(policy, config.seed)
  _, params = weights.load(
    config.model.directory(),
    config.model.transformer(problem.tokenizer.vocab_size),
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
      params = lora.load_peft(config.model.adapter_checkpoint, params, adapters)
  return state_of(params, policy, config.seed)


def state_of(params: PyTree, policy: Policy, seed: int) -> TrainState:
  """A state before any phase, with these parameters of the policy."""
  # The keys alone are made: a random model of that size would be in the way.
  empty = dataclasses.replace(policy, init=lambda key: {})
  state = initial_state(empty, seed)
  return dataclasses.replace(state, params={"policy": params, "algorithm": {}})


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
  trainable, algorithm_state = objective.init(parts.algorithm, parts.config)
  params = {"policy": state.params["policy"], "algorithm": trainable}
  opt_state = critic_opt_state = None
  if parts.trains_policy:
    opt_state = parts.optimizer.init(trained_params(params))
    if not phase.reset_optimizer and state.opt_state is not None:
      opt_state = _with_moments(opt_state, state.opt_state)
  if parts.critic is not None:
    params["critic"] = state.params.get("critic")
    if params["critic"] is None:
      params["critic"] = parts.critic.model.init(params["policy"])
    critic_opt_state = parts.critic.optimizer.init(params["critic"]["trained"])
    if not phase.reset_optimizer and state.critic_opt_state is not None:
      critic_opt_state = _carried(critic_opt_state, state.critic_opt_state)
  ref_params = None
  if "ref_logp" in options.needs(parts.algorithm, parts.config):
    ref_params = state.ref_params
    if phase.set_reference:
      # A copy: the step donates the state, and the parameters move on. The
      # base of adapters does not, and a teacher may have another one.
      ref_params = jax.tree.map(
        jnp.copy, _moving(params["policy"], bool(phase.reference_workdir))
      )
    if ref_params is None:
      raise ValueError(
        f"phase {index}: algorithm {parts.algorithm.name!r} needs a reference"
        " policy and there is none yet; set set_reference=True in the phase,"
        " or kl_coef=0."
      )
  ema_params = None
  if phase.ema_decay is not None:
    # A copy too. float32: at a decay of 0.999 bfloat16 would not move.
    ema_params = jax.tree.map(
      jnp.copy, masked.wide(params["policy"]["trained"])
    )
  return dataclasses.replace(
    state,
    phase=jnp.int32(index),
    phase_step=jnp.int32(0),
    params=params,
    opt_state=opt_state,
    algorithm_state=algorithm_state,
    ref_params=ref_params,
    ema_params=ema_params,
    critic_opt_state=critic_opt_state,
  )


def _moving(policy_params: PyTree, with_base: bool) -> PyTree:
  """What differs between two policies: all but the base of adapters."""
  frozen = {
    name: value
    for name, value in policy_params["frozen"].items()
    if with_base or name != "base"
  }
  return {**policy_params, "frozen": frozen}


def _with_moments(fresh: PyTree, old: PyTree) -> PyTree:
  """A fresh state with the old policy's moments."""
  policy = _carried(fresh.inner_states["policy"], old.inner_states["policy"])
  return fresh._replace(inner_states={**fresh.inner_states, "policy": policy})


def _carried(new: PyTree, past: PyTree) -> PyTree:
  """The moments of a model before, as they are; schedules start anew.

  Raises:
    ValueError: The phases have different optimizers.
  """

  def is_schedule(node):
    return isinstance(node, optax.ScaleByScheduleState)

  structures: list[Any] = [jax.tree.structure(tree) for tree in (new, past)]
  if structures[0] != structures[1]:
    raise ValueError(
      "reset_optimizer=False: the phase before has another optimizer, whose"
      " moments mean nothing here; give both the same optimizer.name and"
      " stochastic_rounding, or set reset_optimizer=True."
    )
  return jax.tree.map(
    lambda new, past: new if is_schedule(new) else past,
    new,
    past,
    is_leaf=is_schedule,
  )


def evaluation_params(state: TrainState) -> PyTree:
  """Policy parameters to evaluate: the average where one is kept."""
  if state.ema_params is None:
    return state.params["policy"]
  trained = jax.tree.map(
    lambda average, leaf: average.astype(leaf.dtype),
    state.ema_params,
    state.params["policy"]["trained"],
  )
  return {**state.params["policy"], "trained": trained}

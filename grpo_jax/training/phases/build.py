"""Makes the fixed functions of a phase: models, losses, sampler, reward.

`make_phase` also checks that settings, data and devices go together.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from grpo_jax import imports
from grpo_jax.algorithms import objective, options
from grpo_jax.data import domains
from grpo_jax.models import mesh as mesh_lib
from grpo_jax.rewards import derived
from grpo_jax.settings import compatibility
from grpo_jax.settings import config as config_lib
from grpo_jax.settings.rewards import JUDGE, REWARD_MODEL
from grpo_jax.step import features, models, transforms, update
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.step.models import Model
from grpo_jax.step.step import Phase
from grpo_jax.training.phases import models as models_lib
from grpo_jax.training.phases import optimizers
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.phases import sampler as sampler_lib
from grpo_jax.training.phases.models import Outside
from grpo_jax.training.problem.problem import Problem
from grpo_jax.training.problem.rewards import RewardSum
from grpo_jax.training.runtime import jit, sharding
from grpo_jax.types import (
  ROW_AXES,
  Algorithm,
  Critic,
  Policy,
  TrainBatch,
  needs_of,
)

# Feature of a phase -> its factory, imported when a phase has the feature.
FEATURES: imports.LazyTable[Callable[..., Any]] = imports.LazyTable(
  "grpo_jax.training.phases",
  {
    "corrections": "corrections:make",
    "old_groups": "reservoirs:make",
    "waiting_groups": "kept_groups:make",
    "partial": "partials:make",
    "prefix_values": "forced:make",
    "schedule": "schedules:make",
  },
)

# Inputs that compare the policy with another one, by a ratio or a divergence.
_COMPARED = frozenset(("old_logp", "behavior_logp", "ref_logp"))
# Inputs that completions of the data do not have. Without records of filters
# and of experts there is nothing to keep.
_DRAWN = {
  need
  for field, need in needs_of(TrainBatch).items()
  if field.startswith(("sampler.", "scores.", "turns.", "answers.", "domain"))
} - {"token_rewards", "kept_ids", "routing"}


def devices(
  config: config_lib.RunConfig, problem: Problem, name: str, mesh: Mesh
) -> None:
  """Raises ValueError if rows, lanes or positions do not split over devices."""
  phase = config.section(name)
  num_shards = sharding.num_row_shards(mesh)
  rows(config, name, mesh)
  # Processes that hold the same rows split them, to score each once.
  is_judged_on_hosts = (
    phase.samples
    and (problem.reward.asks_host or problem.sessions)
    and jax.process_count() > 1
  )
  if (
    is_judged_on_hosts
    and sharding.by_rows_once(mesh) != sharding.by_rows(mesh)
    and phase.num_prompts % mesh.size
  ):
    raise ValueError(
      f"config.{name}.num_prompts={phase.num_prompts} does not split over"
      f" all {mesh.size} devices, and config.mesh.tensor reaches over several"
      " hosts, which share the scoring of rows; needed: num_prompts = devices ×"
      " (a whole number), or a tensor axis within each host."
    )
  tensor, num_slots = mesh.shape["tensor"], problem.max_new_tokens
  if config.model.split_positions and num_slots % tensor:
    raise ValueError(
      f"config.model.split_positions=True: {num_slots} tokens of a completion"
      f" do not split over config.mesh.tensor={tensor}; needed: tokens = tensor"
      " × (a whole number). Change config.sampling.max_new_tokens, or set"
      " config.model.split_positions=False."
    )
  lanes = config.sampling.lanes
  if lanes is not None and lanes % num_shards:
    raise ValueError(
      f"config.sampling.lanes={lanes} do not split over {num_shards} devices;"
      " needed: lanes = devices × (a whole number)."
    )


def rows(
  config: config_lib.RunConfig, name: str, mesh: Mesh | AbstractMesh
) -> None:
  """Raises ValueError if devices would have unequal parts of a minibatch."""
  phase = config.section(name)
  algorithm, _ = config.objective(name)
  num_shards = sharding.num_row_shards(mesh)
  axes = " × ".join(f"{axis} {mesh.shape[axis]}" for axis in ROW_AXES)
  if phase.num_prompts % num_shards:
    raise ValueError(
      f"config.{name}.num_prompts={phase.num_prompts} does not split over"
      f" the {num_shards} devices of {axes}; needed: num_prompts = devices ×"
      " (a whole number), so that each has whole groups. Change it or"
      " config.mesh."
    )
  parts, together, factor = phase.num_rows, "", " × group_size"
  if algorithm.couples_group:
    parts, factor = phase.num_prompts, ""
    together = (
      f" in whole groups of {phase.group_size} rows, which algorithm"
      f" {algorithm.name!r} couples"
    )
  if parts % (phase.num_minibatches * num_shards):
    raise ValueError(
      f"config.{name}.num_minibatches={phase.num_minibatches}: minibatches of"
      f" {phase.num_rows // phase.num_minibatches} rows ({phase.num_prompts}"
      f" prompts × {phase.group_size} completions) do not split over the"
      f" {num_shards} device(s) of {axes}{together}; needed:"
      f" num_prompts{factor} = num_minibatches × devices × (a whole number)."
      f" Change config.{name}.num_minibatches, num_prompts or config.mesh."
    )


def groups(
  name: str, phase: config_lib.PhaseConfig, algorithm: Algorithm
) -> None:
  """Raises ValueError if an algorithm is not for groups of this size."""
  if phase.group_size < algorithm.min_group_size:
    raise ValueError(
      f"config.{name}.group_size={phase.group_size}: algorithm"
      f" {algorithm.name!r} compares the completions of a prompt and needs at"
      f" least {algorithm.min_group_size}; every advantage would be 0."
    )
  limit = algorithm.max_group_size
  if limit is not None and phase.group_size > limit:
    count = "one completion" if limit == 1 else f"at most {limit} completions"
    raise ValueError(
      f"config.{name}.group_size={phase.group_size}: algorithm"
      f" {algorithm.name!r} is defined for {count} per prompt; set"
      f" config.{name}.group_size={limit}."
    )


def inputs(fields: frozenset[str], required: frozenset[str], name: str) -> None:
  """Raises ValueError if an input that the algorithm reads is not provided."""
  for need in (
    *("step_rewards", "turns", "state_id", "domain", "expected"),
    "prefix_utility",
  ):
    if need in required and need not in fields:
      raise ValueError(
        f"algorithm {name!r} needs {need!r}: {options.NEEDS[need]}."
      )


def check_domains(problem: Problem, count: int, setting: str) -> None:
  """Raises ValueError if a setting has too few values for the domains.

  Indexing by domain would clamp without an error.

  Args:
    problem: Problem whose records have domains.
    setting: Name of the setting, and its value.
  """
  if len(problem.domains) > count:
    raise ValueError(
      f"{setting} is about {count} domains, and the data have"
      f" {len(problem.domains)}: {', '.join(problem.domains)}."
    )


def gradient_steps(
  name: str, phase: config_lib.PhaseConfig, algorithm: Algorithm
) -> None:
  """Warns of gradient steps that no ratio corrects.

  The first gradient step on a batch is on-policy. A policy gradient without a
  ratio is biased in the steps after it.
  """
  defaults = algorithm.config_class()
  num_off_policy = phase.num_epochs * phase.num_minibatches - 1
  if (
    phase.samples
    and algorithm.policy_loss is not None
    and num_off_policy
    and defaults.reads_rewards
    and not _COMPARED & {*algorithm.needs}
  ):
    logging.warning(
      "config.%s: algorithm %r has no ratio, so nothing corrects the last %d of"
      " the %d gradient steps on each batch (num_epochs=%d,"
      " num_minibatches=%d), which are off-policy; set both to 1, or choose an"
      " algorithm with a ratio, such as 'grpo'.",
      *(name, algorithm.name, num_off_policy, num_off_policy + 1),
      *(phase.num_epochs, phase.num_minibatches),
    )


def check(
  config: config_lib.RunConfig, problem: Problem, name: str, mesh: Mesh
) -> None:
  """Raises ValueError if settings, data and devices do not go together."""
  phase = config.section(name)
  algorithm, objective_config = config.objective(name)
  devices(config, problem, name, mesh)
  groups(name, phase, algorithm)
  gradient_steps(name, phase, algorithm)
  options.check(algorithm, objective_config)
  required = options.needs(algorithm, objective_config)
  if phase.reference_workdirs and "ref_logp" not in required:
    raise ValueError(
      f"config.{name}.reference_workdirs={phase.reference_workdirs}: algorithm"
      f" {algorithm.name!r}, as it is set in this phase, reads no reference and"
      " no teacher; leave it empty, or set config.algorithm.kl_coef or opd_coef"
      " above 0."
    )
  if phase.samples:
    fields = problem.provides
    if config.reward_model.step_ends and REWARD_MODEL in _models(config, phase):
      fields |= {"step_rewards"}
    if phase.schedule.tracks:
      fields |= {"expected"}
    inputs(fields, required, algorithm.name)
  elif absent := sorted(required & _DRAWN):
    raise ValueError(
      f"config.{name}.kind={phase.kind!r}: algorithm {algorithm.name!r} with"
      f" {options.in_force(objective_config)} reads {', '.join(absent)}, which"
      " completions of the data do not have; leave these options of"
      " config.algorithm out, or draw completions in a phase of the kind 'rl'."
    )
  compatibility.check(
    compatibility.Setup(
      config=config,
      name=name,
      phase=phase,
      problem=problem,
      algorithm=algorithm,
      # A phase that trains a critic alone does not leave rows out.
      objective=config.algorithm[1]
      if algorithm.name == config.algorithm[0]
      else objective_config,
      required=required,
    )
  )
  domains.numbers(problem.domains, phase.domains, f"config.{name}.domains")
  for field in ("kl_domain_weights", "opd_domain_weights"):
    weights = getattr(objective_config, field)
    if weights and "domain" in required:
      check_domains(
        problem, len(weights), f"config.algorithm.{field}={weights}"
      )
  if phase.has_teachers_of_domains:
    check_domains(
      problem,
      len(phase.reference_workdirs),
      f"config.{name}.reference_workdirs={phase.reference_workdirs}",
    )


def make_phase(
  config: config_lib.RunConfig,
  problem: Problem,
  policy: Policy,
  name: str,
  mesh: Mesh,
) -> Phase:
  """Makes the fixed functions of the phase `name`.

  Raises:
    ValueError: The phase's prompts do not split over the mesh, or two features
      do not go together.
  """
  config = jit.with_inputs(config, name)
  phase = config.section(name)
  if phase.temperature is not None:
    draws = dataclasses.replace(config.sampling, temperature=phase.temperature)
    config = dataclasses.replace(config, sampling=draws)
  algorithm, objective_config = config.objective(name)
  check(config, problem, name, mesh)
  required = options.needs(algorithm, objective_config)
  plan = update_plan(
    phase,
    problem.prompt_slots,
    problem.max_new_tokens,
    mesh,
    temperature=config.sampling.temperature if phase.samples else 1.0,
    couples_group=algorithm.couples_group,
    shares_prompts=problem.compaction is None,
    by_domain=phase.has_teachers_of_domains and "ref_kl" in required,
  )
  maker = Models(
    *(config, phase, policy, algorithm, objective_config, plan),
    outside=_outside(config, name, problem, mesh),
  )
  base = Phase(
    policy=policy,
    algorithm=algorithm,
    config=objective_config,
    plan=plan,
    models=maker.models(),
    losses=maker.losses(),
    constrain_rows=sharding.row_constraint(mesh),
    constrain_trained=sharding.trained_constraint(mesh),
  )
  num_updates = [loss.num_updates for loss in base.losses]
  if phase.trains and not any(num_updates):
    raise ValueError(
      f"config.{name}: a phase of the kind {phase.kind!r} would train nothing;"
      " set num_updates of config.critic, or of config.reward_model, to 1 or"
      " more, or leave the phase out of config.phases."
    )
  if not phase.samples:
    return base
  return _with_completions(base, maker, problem, name, mesh)


def _with_completions(
  base: Phase, maker: Models, problem: Problem, name: str, mesh: Mesh
) -> Phase:
  """Adds sampler, reward and features to a phase that draws completions."""
  config, phase = maker.config, maker.phase
  reward = problem.reward
  if phase.reward_weights:
    names = config.rewards.names
    reward = reward.weighted(
      dict(zip(names, phase.reward_weights, strict=True))
    )
  # A reward model learns from pairs that are ranked without models.
  proxy = None
  if _models(config, phase):
    steps = models_lib.steps(config.reward_model, problem.tokenizer)
    reward = reward.bound(maker.views(), maker.plan, steps)
    if maker.is_scored:
      proxy = REWARD_MODEL, reward.correct, steps is None
  else:
    reward = reward.without_models()
  if "ranker" in maker.outside:
    reward = reward.ranked_by("ranker").bound(maker.views(), maker.plan)
  sampler = policy_lib.sampling_policy(
    maker.policy, config.sampling.weights_dtype, mesh
  )
  return dataclasses.replace(
    base,
    sampler=sampler_lib.make_sampler(
      sampler,
      problem,
      config.sampling,
      phase.group_size,
      maker.required,
      models_lib.table(phase, maker.policy, base.models, maker.outside),
      FEATURES["corrections"](config, problem, name)
      if phase.correction.corrects
      else None,
    ),
    reward=reward,
    max_rounds=phase.max_rounds,
    when_short=phase.when_short,
    staleness=phase.staleness,
    guards=config.guards.of_phase(phase) or features.StepGuards(),
    domains=problem.domains,
    **_features(
      *(config, problem, name, maker.required, maker.objective),
      *(sampler, reward, sharding.num_row_shards(mesh)),
    ),
    proxy=proxy,
    consistent=config.rewards.follows,
    transforms=_transforms(phase, f"config.{name}"),
  )


def _transforms(phase: Any, where: str) -> tuple[transforms.Transform, ...]:
  """The transforms of a phase, with their options."""
  names = [path.partition(":")[2] for path in phase.transforms]
  if unknown := phase.transform_options.keys() - {*names}:
    raise ValueError(
      f"{where}.transform_options has {sorted(unknown)}; needs names of"
      f" {where}.transforms, which are {names}."
    )
  bound = []
  for name, path in zip(names, phase.transforms, strict=True):
    function = imports.load(
      *(path, f"{where}.transforms", "function"),
      form=" (batch) -> (batch, metrics), or (memory, batch) -> …",
    )
    arguments = dict(phase.transform_options.get(name, {}))
    try:
      bound.append(transforms.bind(function, arguments))
    except TypeError as error:
      raise ValueError(
        f"{where}.transform_options: {name!r} got {arguments}: {error}; its"
        f" arguments are {inspect.signature(function)}."
      ) from error
  return tuple(bound)


def _features(
  config: config_lib.RunConfig,
  problem: Problem,
  name: str,
  required: frozenset[str],
  objective_config: Any,
  sampler: Policy,
  reward: RewardSum,
  num_shards: int,
) -> dict[str, Any]:
  """Makes the features that a phase switches on, by their fields of `Phase`."""
  phase = config.section(name)
  args: dict[str, tuple[Any, ...]] = {}
  if phase.partial_len is not None:
    args["partial"] = config, problem, sampler, name, required
  if config.reward_model.history_share:
    slots = problem.max_prompt_len, problem.max_new_tokens
    args["old_groups"] = config, name, *slots, num_shards
  if phase.recycle_surplus or phase.replay_size:
    of_groups = objective_config, reward, num_shards
    args["waiting_groups"] = config, problem, name, *of_groups
  if "prefix_utility" in required:
    args["prefix_values"] = objective_config, problem
  if phase.schedule.chooses:
    args["schedule"] = config, problem, name
  return {field: FEATURES[field](*inputs) for field, inputs in args.items()}


@dataclasses.dataclass(frozen=True)
class Models:
  """The models of a phase, and the losses that train them.

  Attributes:
    outside: Models from outside of the run, by name.
  """

  config: config_lib.RunConfig
  phase: config_lib.PhaseConfig
  policy: Policy
  algorithm: Algorithm
  objective: Any
  plan: UpdatePlan
  outside: Mapping[str, models_lib.Outside] = dataclasses.field(
    default_factory=dict
  )

  @property
  def required(self) -> frozenset[str]:
    """Optional inputs that the objective reads."""
    return options.needs(self.algorithm, self.objective)

  @property
  def num_updates(self) -> int:
    """Gradient steps of the phase on minibatches."""
    return self.phase.steps * self.plan.num_updates

  @property
  def is_scored(self) -> bool:
    """True if a reward model scores completions of this phase."""
    return REWARD_MODEL in _models(self.config, self.phase)

  @property
  def references(self) -> models_lib.References:
    """The references that the KL divergence of the policy is measured to."""
    return models_lib.References(
      self.algorithm.name, self.phase, self.policy, self.outside
    )

  def critic(self) -> Critic | None:
    """The critic, for objectives that have one."""
    if self.algorithm.critic_loss is None or "critic" not in self.phase.trains:
      return None
    from grpo_jax.models.policies import critic as critic_lib

    settings = self.config.critic
    return critic_lib.make_critic(self.policy, settings.trunk, settings.freeze)

  def reward_model(self) -> Critic | None:
    """The reward model, if it scores completions or learns to."""
    if not (self.is_scored or "reward" in self.phase.trains):
      return None
    from grpo_jax.models.policies import critic as critic_lib

    model = self.outside.get("reward")
    return critic_lib.make_reward_model(
      self.policy if model is None else model.policy,
      self.config.reward_model.freeze,
      is_alone=model is not None,
    )

  def models(self) -> dict[str, Model]:
    """The models of the phase by name, in the order of their passes."""
    by_name = {}
    if "ref_logp" in self.required:
      topk = getattr(self.objective, "topk", 0)
      by_name = self.references.make(self.plan, self.required, topk)
    by_name |= models_lib.opponents(self.phase, self.policy, self.outside)
    by_name["policy"] = self._policy()
    by_name["algorithm"] = self._scalars()
    if (critic := self.critic()) is not None:
      by_name["critic"] = self._critic(critic)
    if (critic := self.reward_model()) is not None:
      by_name["reward"] = self._reward(critic)
    if (model := self.outside.get(JUDGE)) is not None:
      by_name[JUDGE] = Model(start=model.start(JUDGE), read=model.read)
    if (model := self.outside.get("ranker")) is not None:
      by_name["ranker"] = self._ranker(model)
    return by_name

  def views(self) -> dict[str, Any]:
    """The views of models that score completions, by name."""
    views: dict[str, Any] = {
      "policy": functools.partial(models.policy_view, self.policy)
    }
    critics = {"reward": self.reward_model()}
    if (model := self.outside.get("ranker")) is not None:
      from grpo_jax.models.policies import critic as critic_lib

      critics["ranker"] = critic_lib.make_reward_model(
        model.policy, is_alone=True
      )
    for name, critic in critics.items():
      if critic is not None:
        views[name] = functools.partial(models.critic_view, critic, name)
    if (model := self.outside.get(JUDGE)) is not None:
      views[JUDGE] = functools.partial(models.outside_view, model.policy, JUDGE)
    return views

  def losses(self) -> tuple[update.Loss, ...]:
    """The losses, in the order in which they are taken for each minibatch."""
    losses: list[update.Loss] = []
    objective = self.algorithm, self.objective
    if "policy" in self.phase.trains:
      reference = None
      if "ref_kl" in self.required:
        reference = self.references.head()
      losses.append(
        update.PolicyLoss(
          *(self.policy, *objective, self.plan, reference),
          is_rounded=self.config.sampling.weights_dtype != "model",
        )
      )
    if (critic := self.critic()) is not None:
      count = self.config.critic.num_updates
      losses.append(update.CriticLoss(critic, *objective, num_updates=count))
    if "reward" in self.phase.trains:
      critic = self.reward_model()
      assert critic is not None
      count = self.config.reward_model.num_updates
      names = "reward", "reward_model/"
      losses.append(
        update.CriticLoss(critic, *objective, *names, num_updates=count)
      )
    return tuple(losses)

  def _policy(self) -> Model:
    required = self.required
    is_trained = "policy" in self.phase.trains
    has_fields = "anchor" in required or (
      "old_logp" in required and self.plan.num_updates > 1
    )
    settings = self.phase.optimizer
    return Model(
      start=lambda before: before["policy"].params,
      view=functools.partial(models.policy_view, self.policy),
      fields=functools.partial(models.anchor_fields, self.plan, required)
      if has_fields
      else None,
      scope="anchor",
      optimizer=optimizers.of_model(
        settings, self.num_updates, self.config.seed
      )
      if is_trained
      else None,
      schedule=optimizers.schedule(settings, self.num_updates)
      if is_trained
      else None,
      keeps_moments=not self.phase.reset_optimizer,
      ema_decay=self.phase.ema_decay if is_trained else None,
      continues=True,
    )

  def _scalars(self) -> Model:
    """The scalars that the algorithm trains, initialized in each phase."""

    def start(before):
      del before
      scalars, _ = objective.init(self.algorithm, self.objective)
      return {"trained": {"scalars": scalars}, "frozen": {}}

    is_trained = "policy" in self.phase.trains
    return Model(
      start=start,
      optimizer=optimizers.of_scalars(self.phase.optimizer, self.num_updates)
      if is_trained
      else None,
    )

  def _critic(self, critic: Critic) -> Model:
    # Only the critic gives values of states: a reward model gives rewards.
    to_the_end = "final_value" in self.required
    fields = models.values_to_the_end if to_the_end else models.value_fields
    return dataclasses.replace(
      self._of_critic("critic", critic, self.config.critic),
      fields=fields if "values" in self.required else None,
      to_the_end=to_the_end,
    )

  def _of_critic(self, name: str, critic: Critic, settings: Any) -> Model:
    def start(before):
      if name in before:
        return before[name].params
      return critic.init(before["policy"].params)

    num_updates = self.num_updates * settings.num_updates
    return Model(
      start=start,
      view=functools.partial(models.critic_view, critic, name),
      scope="values",
      optimizer=optimizers.of_model(
        settings.optimizer, num_updates, self.config.seed, name
      ),
      schedule=optimizers.schedule(settings.optimizer, num_updates),
      keeps_moments=not self.phase.reset_optimizer,
      continues=True,
    )

  def _reward(self, critic: Critic) -> Model:
    member = self._of_critic("reward", critic, self.config.reward_model)
    model = self.outside.get("reward")
    if model is not None:
      member = dataclasses.replace(
        member, start=model.start("reward"), read=model.read
      )
    if "reward" in self.phase.trains:
      return member

    def start(before):
      if model is None and "reward" not in before:
        raise ValueError(
          f"config.rewards.functions={self.config.rewards.functions}: there is"
          " no reward model yet; set config.reward_model.source to one, or name"
          " a phase of the kind 'preference' first."
        )
      return member.start(before)

    return dataclasses.replace(
      member, start=start, optimizer=None, schedule=None
    )

  def _ranker(self, model: Outside) -> Model:
    return Model(
      start=model.start("ranker"), view=self.views()["ranker"], read=model.read
    )


def _outside(
  config: config_lib.RunConfig, name: str, problem: Problem, mesh: Mesh
) -> dict[str, models_lib.Outside]:
  """Finds the models of a phase from outside of the run, by name."""
  phase, scoring = config.section(name), config.reward_model
  paths = phase.reference_workdirs, phase.opponents, config.judge.model
  if not any((*paths, scoring.source, scoring.ranked_by)):
    return {}
  # Published models and other runs take a dozen modules.
  from grpo_jax.training.phases import outside

  return outside.of_phase(config, name, problem, mesh, _models(config, phase))


def _models(
  config: config_lib.RunConfig, phase: config_lib.PhaseConfig
) -> set[str]:
  """The rewards by models that completions of a phase get."""
  names = {REWARD_MODEL, JUDGE} & {*config.rewards.functions}
  # Completions that are kept for imitation are scored by a model only if the
  # phase sets a bound on its component, or on one that is made of it.
  bounds = {*phase.keep.bounds}
  for name in reversed(config.rewards.names):  # Sources come first.
    if name in bounds and name in derived.DERIVED:
      bounds.update(derived.sources(config.rewards.arguments(name)))
  reads_scores = phase.trains or names & bounds
  is_scored = phase.samples and "reward" not in phase.trains and reads_scores
  return names if is_scored else set()


def update_plan(
  phase: config_lib.PhaseConfig,
  max_prompt_len: int,
  max_new_tokens: int,
  mesh: Mesh | AbstractMesh,
  *,
  temperature: float = 1.0,
  couples_group: bool = False,
  shares_prompts: bool = True,
  by_domain: bool = False,
) -> UpdatePlan:
  """Plans the gradient steps on a batch of the phase.

  Each device has equally many rows of a micro-batch, and whole groups if these
  are coupled: the size that the config asks for is rounded up to the next one
  that divides. `rows` has checked that there is one.
  """
  num_shards = sharding.num_row_shards(mesh)
  micro = config_lib.micro_batch_size(
    phase, max_prompt_len, max_new_tokens, mesh_lib.platform(mesh)
  )
  minibatch = phase.num_rows // phase.num_minibatches
  group_size = phase.group_size
  if minibatch % phase.group_size or not shares_prompts:
    group_size = 1
  device_rows = minibatch // num_shards
  unit = group_size if couples_group else 1
  shard_size = next(
    rows
    for rows in range(unit, device_rows + 1, unit)
    if device_rows % rows == 0 and rows * num_shards >= micro
  )
  return UpdatePlan(
    num_epochs=phase.num_epochs,
    num_minibatches=phase.num_minibatches,
    micro_batch_size=shard_size * num_shards,
    temperature=temperature,
    chunk_bytes=chunk_bytes(phase, mesh),
    group_size=group_size,
    num_shards=num_shards,
    group_parts=group_size // math.gcd(group_size, device_rows),
    lengths=config_lib.lengths(phase, max_new_tokens),
    by_domain=by_domain,
  )


def update_path(
  name: str, phase: config_lib.PhaseConfig, plan: UpdatePlan
) -> str:
  """Describes how devices share the gradient steps of the phase, in words."""
  minibatch = phase.num_rows // phase.num_minibatches
  text = (
    f"update of {name}: {minibatch // plan.micro_batch_size} micro-batches of"
    f" {plan.micro_batch_size} rows in a gradient step, rows on each of"
    f" {plan.num_shards} devices: {plan.shard_size}."
  )
  micro = phase.micro_batch_size
  if micro is not None and micro != plan.micro_batch_size:
    text += (
      f" config.{name}.micro_batch_size={micro} is rounded up: devices take"
      " equal parts, and groups that are coupled stay whole."
    )
  if plan.group_parts > 1:
    text += (
      f" The {plan.group_size} rows of a prompt lie on {plan.group_parts}"
      " devices, and each of these runs the prompt."
    )
  return text


def chunk_bytes(
  phase: config_lib.PhaseConfig, mesh: Mesh | AbstractMesh
) -> int:
  """Bytes of the logits of a chunk, over all devices."""
  mebibytes = phase.logits_chunk_mib
  if mebibytes is None:
    # Each chunk reads and writes the gradient of the head once; on an
    # accelerator that would take longer than the products of 64 MiB.
    mebibytes = 64 if mesh_lib.platform(mesh) == "cpu" else 1024
  return mebibytes * mesh.size * 2**20

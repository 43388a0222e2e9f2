"""From a config to the parts of a phase: members, losses, player, judge."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from grpo_jax.algorithms import objective, options
from grpo_jax.data import domains
from grpo_jax.models import critic as critic_lib
from grpo_jax.models import meshes
from grpo_jax.settings import compatibility, features
from grpo_jax.settings import config as config_lib
from grpo_jax.settings.judge_settings import JUDGE
from grpo_jax.settings.reward_settings import REWARD_MODEL
from grpo_jax.step import members, update
from grpo_jax.step.members import Member
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.step.stages import Parts
from grpo_jax.training.phases import (
  corrections,
  forced,
  kept_groups,
  models,
  opponents,
  optimizers,
  outside,
  partials,
  phase_checks,
  players,
  references,
  reservoirs,
  reward_models,
  schedules,
)
from grpo_jax.training.phases.outside import Outside
from grpo_jax.training.problem import readers
from grpo_jax.training.problem.problem import Problem
from grpo_jax.training.runtime import programs, sharding
from grpo_jax.types import (
  Algorithm,
  Critic,
  Policy,
)


def make_parts(
  config: config_lib.RunConfig,
  problem: Problem,
  policy: Policy,
  name: str,
  mesh: Mesh,
) -> Parts:
  """The fixed functions of the phase called `name`.

  Raises:
    ValueError: The phase's prompts do not split over the mesh, or two features
      do not go together.
  """
  config = programs.with_inputs(config, name)
  phase = config.section(name)
  if phase.temperature is not None:
    drawn = dataclasses.replace(config.sampling, temperature=phase.temperature)
    config = dataclasses.replace(config, sampling=drawn)
  algorithm, objective_config = config.objective(name)
  phase_checks.devices(config, problem, name, mesh)
  phase_checks.groups(name, phase, algorithm)
  phase_checks.gradient_steps(name, phase, algorithm)
  options.check(algorithm, objective_config)
  required = options.needs(algorithm, objective_config)
  if phase.reference_workdirs and "ref_logp" not in required:
    raise ValueError(
      f"config.{name}.reference_workdirs={phase.reference_workdirs}: algorithm"
      f" {algorithm.name!r}, as it is set in this phase, reads no reference and"
      " no teacher; leave it empty, or set config.algorithm.kl_coef or opd_coef"
      " above 0."
    )
  if phase.plays:
    given = problem.provides
    if config.reward_model.step_ends and REWARD_MODEL in _models(config, phase):
      given |= {"step_rewards"}
    if phase.schedule.tracks:
      given |= {"expected"}
    phase_checks.inputs(given, required, algorithm.name)
  compatibility.check(
    features.Setup(
      config=config,
      name=name,
      phase=phase,
      problem=problem,
      algorithm=algorithm,
      # A critic that is trained alone leaves no rows out.
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
      phase_checks.domains(
        problem, len(weights), f"config.algorithm.{field}={weights}"
      )
  if phase.has_teachers_of_domains:
    phase_checks.domains(
      problem,
      len(phase.reference_workdirs),
      f"config.{name}.reference_workdirs={phase.reference_workdirs}",
    )
  plan = update_plan(
    phase,
    problem.prompt_slots,
    problem.max_new_tokens,
    mesh,
    temperature=config.sampling.temperature if phase.plays else 1.0,
    couples_group=algorithm.couples_group,
    shares_prompts=problem.compaction is None,
    by_domain=phase.has_teachers_of_domains and "ref_kl" in required,
  )
  made = Models(
    *(config, phase, policy, algorithm, objective_config, plan),
    outside=_found_outside(config, name, problem, mesh),
  )
  parts = Parts(
    policy=policy,
    algorithm=algorithm,
    config=objective_config,
    plan=plan,
    members=made.members(),
    losses=made.losses(),
    constrain_rows=sharding.row_constraint(mesh),
    constrain_trained=sharding.trained_constraint(mesh),
  )
  trained = [loss.num_updates for loss in parts.losses]
  if phase.trains and not any(trained):
    raise ValueError(
      f"config.{name}: a phase of the kind {phase.kind!r} would train nothing;"
      " set num_updates of config.critic, or of config.reward_model, to 1 or"
      " more, or leave the phase out of config.phases."
    )
  if not phase.plays:
    return parts
  judge = problem.judge
  if phase.reward_weights:
    names = config.rewards.names
    judge = judge.weighted(dict(zip(names, phase.reward_weights, strict=True)))
  # Only what is true ranks the pairs that a reward model learns from.
  proxy = None
  if _models(config, phase):
    steps = reward_models.steps(config.reward_model, problem.tokenizer)
    judge = judge.bound(made.views(), plan, steps)
    if made.is_scored:
      proxy = REWARD_MODEL, judge.correct, steps is None
  else:
    judge = judge.without_models()
  if "ranker" in made.outside:
    judge = judge.ranked_by("ranker").bound(made.views(), plan)
  sampler = models.sampling_policy(policy, config.sampling.weights_dtype, mesh)
  return dataclasses.replace(
    parts,
    player=players.make_player(
      sampler,
      problem,
      config.sampling,
      phase.group_size,
      required,
      opponents.table(phase, policy, parts.members, made.outside),
      corrections.make(config, problem, name),
    ),
    judge=judge,
    max_rounds=phase.max_rounds,
    when_short=phase.when_short,
    staleness=phase.staleness,
    partial=partials.make(config, problem, sampler, name, required),
    guards=config.guards.of_phase(phase),
    domains=problem.domains,
    history=reservoirs.make(
      config,
      name,
      problem.max_prompt_len,
      problem.max_new_tokens,
      sharding.num_row_shards(mesh),
    ),
    kept=kept_groups.make(
      config,
      problem,
      name,
      objective_config,
      judge,
      sharding.num_row_shards(mesh),
    ),
    forced=forced.make(objective_config, problem)
    if "prefix_utility" in required
    else None,
    schedule=schedules.make(config, problem, name),
    proxy=proxy,
    consistent=config.rewards.follows,
  )


@dataclasses.dataclass(frozen=True)
class Models:
  """The members of a phase, and what trains them.

  Attributes:
    config: Settings of the run.
    phase: Its section.
    policy: The model.
    algorithm, objective: The objective of the phase and its config.
    plan: How rows become micro-batches.
    outside: Models that are not this run's, by the name of the member.
  """

  config: config_lib.RunConfig
  phase: config_lib.PhaseConfig
  policy: Policy
  algorithm: Algorithm
  objective: Any
  plan: UpdatePlan
  outside: Mapping[str, outside.Outside] = dataclasses.field(
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
    """Whether a reward model scores completions of this phase."""
    return REWARD_MODEL in _models(self.config, self.phase)

  @property
  def references(self) -> references.References:
    """What the policy is held to."""
    return references.References(
      self.algorithm.name, self.phase, self.policy, self.outside
    )

  def critic(self) -> Critic | None:
    """The model with values, of objectives that have one."""
    if self.algorithm.critic_loss is None or "critic" not in self.phase.trains:
      return None
    settings = self.config.critic
    return critic_lib.make_critic(self.policy, settings.trunk, settings.freeze)

  def reward_model(self) -> Critic | None:
    """The model that scores completions, or learns to."""
    if not (self.is_scored or "reward" in self.phase.trains):
      return None
    model = self.outside.get("reward")
    return critic_lib.make_reward_model(
      self.policy if model is None else model.policy,
      self.config.reward_model.freeze,
      is_alone=model is not None,
    )

  def members(self) -> dict[str, Member]:
    """By name; what they say of a batch is asked in this order."""
    found = {}
    if "ref_logp" in self.required:
      topk = getattr(self.objective, "topk", 0)
      found = self.references.made(self.plan, self.required, topk)
    found |= opponents.made(self.phase, self.policy, self.outside)
    found["policy"] = self._policy()
    found["algorithm"] = self._scalars()
    if (critic := self.critic()) is not None:
      found["critic"] = self._critic(critic)
    if (critic := self.reward_model()) is not None:
      found["reward"] = self._reward(critic)
    if (model := self.outside.get(readers.MEMBER)) is not None:
      found[readers.MEMBER] = Member(
        start=model.start(readers.MEMBER), read=model.read
      )
    if (model := self.outside.get("ranker")) is not None:
      found["ranker"] = self._ranker(model)
    return found

  def views(self) -> dict[str, Any]:
    """How members that judge are run."""
    found: dict[str, Any] = {
      "policy": functools.partial(members.policy_view, self.policy)
    }
    critics = {"reward": self.reward_model()}
    if (model := self.outside.get("ranker")) is not None:
      critics["ranker"] = critic_lib.make_reward_model(
        model.policy, is_alone=True
      )
    for name, critic in critics.items():
      if critic is not None:
        found[name] = functools.partial(members.critic_view, critic, name)
    if (model := self.outside.get(readers.MEMBER)) is not None:
      found[readers.MEMBER] = functools.partial(
        members.outside_view, model.policy, readers.MEMBER
      )
    return found

  def losses(self) -> tuple[update.Loss, ...]:
    """In the order in which they are taken for each minibatch."""
    found: list[update.Loss] = []
    if "policy" in self.phase.trains:
      reference = None
      if "ref_kl" in self.required:
        reference = self.references.head()
      found.append(
        update.PolicyLoss(
          *(self.policy, self.algorithm, self.objective, self.plan, reference),
          is_rounded=self.config.sampling.weights_dtype != "model",
        )
      )
    if (critic := self.critic()) is not None:
      found.append(
        update.CriticLoss(
          critic,
          self.algorithm,
          self.objective,
          num_updates=self.config.critic.num_updates,
        )
      )
    if "reward" in self.phase.trains:
      critic = self.reward_model()
      assert critic is not None
      found.append(
        update.CriticLoss(
          critic,
          self.algorithm,
          self.objective,
          member="reward",
          prefix="reward_model/",
          num_updates=self.config.reward_model.num_updates,
        )
      )
    return tuple(found)

  def _policy(self) -> Member:
    required = self.required
    is_trained = "policy" in self.phase.trains
    says = "anchor" in required or (
      "old_logp" in required and self.plan.num_updates > 1
    )
    settings = self.phase.optimizer
    return Member(
      start=lambda before: before["policy"].params,
      view=functools.partial(members.policy_view, self.policy),
      fields=functools.partial(members.anchor_fields, self.plan, required)
      if says
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

  def _scalars(self) -> Member:
    """What the algorithm trains beside the policy, anew in each phase."""

    def start(before):
      del before
      scalars, _ = objective.init(self.algorithm, self.objective)
      return {"trained": {"scalars": scalars}, "frozen": {}}

    is_trained = "policy" in self.phase.trains
    return Member(
      start=start,
      optimizer=optimizers.of_scalars(self.phase.optimizer, self.num_updates)
      if is_trained
      else None,
    )

  def _critic(self, critic: Critic) -> Member:
    # It alone says values of states: numbers of a reward model are rewards.
    to_the_end = "final_value" in self.required
    fields = members.values_to_the_end if to_the_end else members.value_fields
    return dataclasses.replace(
      self._of_critic("critic", critic, self.config.critic),
      fields=fields if "values" in self.required else None,
      to_the_end=to_the_end,
    )

  def _of_critic(self, name: str, critic: Critic, settings: Any) -> Member:
    def start(before):
      if name in before:
        return before[name].params
      return critic.init(before["policy"].params)

    num_updates = self.num_updates * settings.num_updates
    return Member(
      start=start,
      view=functools.partial(members.critic_view, critic, name),
      scope="values",
      optimizer=optimizers.of_model(
        settings.optimizer, num_updates, self.config.seed, name
      ),
      schedule=optimizers.schedule(settings.optimizer, num_updates),
      keeps_moments=not self.phase.reset_optimizer,
      continues=True,
    )

  def _reward(self, critic: Critic) -> Member:
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

  def _ranker(self, model: Outside) -> Member:
    return Member(
      start=model.start("ranker"),
      view=self.views()["ranker"],
      read=model.read,
    )


def _found_outside(
  config: config_lib.RunConfig, name: str, problem: Problem, mesh: Mesh
) -> dict[str, outside.Outside]:
  """The models that a phase has from outside of the run, by member."""
  phase = config.section(name)
  find = functools.partial(
    outside.find, config=config, problem=problem, mesh=mesh
  )
  found = {}
  for member, path in references.paths(phase).items():
    found[member] = find(
      path,
      setting=f"config.{name}.reference_workdirs",
      storage=phase.reference_storage,
    )
  for member, path in opponents.from_outside(phase).items():
    try:
      found[member] = find(path, setting=f"config.{name}.opponents")
    except FileNotFoundError as error:
      raise FileNotFoundError(
        f"{error} Opponents that are no run are {opponents.START!r} and"
        f" {opponents.SELF!r}."
      ) from error
  judged_by = _models(config, phase)
  judge = config.judge
  if judge.model and not judge.service.url and JUDGE in judged_by:
    found[readers.MEMBER] = find(judge.model, setting="config.judge.model")
  return found | reward_models.outside_of(
    config, name, problem, mesh, is_judged=REWARD_MODEL in judged_by
  )


def _models(
  config: config_lib.RunConfig, phase: config_lib.PhaseConfig
) -> set[str]:
  """The rewards by models that completions of a phase get."""
  found = {REWARD_MODEL, JUDGE} & {*config.rewards.functions}
  # What is kept to be imitated is judged by models where that is asked for.
  asked = phase.trains or found & {*phase.keep.bounds}
  is_judged = phase.plays and "reward" not in phase.trains and asked
  return found if is_judged else set()


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
  """How a batch of the phase becomes gradient steps on a mesh.

  Each device has as many rows of a micro-batch as the others, and whole groups
  where these are coupled: the size that is asked for is rounded up to the next
  one that divides. `phase_checks.rows` has seen to it that there is one.
  """
  num_shards = sharding.num_row_shards(mesh)
  micro = config_lib.micro_batch_size(
    phase, max_prompt_len, max_new_tokens, meshes.platform(mesh)
  )
  minibatch = phase.num_rows // phase.num_minibatches
  group_size = phase.group_size
  if minibatch % phase.group_size or not shares_prompts:
    group_size = 1
  own = minibatch // num_shards
  unit = group_size if couples_group else 1
  each = next(
    rows
    for rows in range(unit, own + 1, unit)
    if own % rows == 0 and rows * num_shards >= micro
  )
  return UpdatePlan(
    num_epochs=phase.num_epochs,
    num_minibatches=phase.num_minibatches,
    micro_batch_size=each * num_shards,
    temperature=temperature,
    chunk_bytes=chunk_bytes(phase, mesh),
    group_size=group_size,
    num_shards=num_shards,
    group_parts=group_size // math.gcd(group_size, own),
    lengths=config_lib.lengths(phase, max_new_tokens),
    by_domain=by_domain,
  )


def update_path(
  name: str, phase: config_lib.PhaseConfig, plan: UpdatePlan
) -> str:
  """Says how devices share the gradient steps of the phase."""
  minibatch = phase.num_rows // phase.num_minibatches
  text = (
    f"update of {name}: {minibatch // plan.micro_batch_size} micro-batches of"
    f" {plan.micro_batch_size} rows in a gradient step, rows on each of"
    f" {plan.num_shards} devices: {plan.shard_size}."
  )
  asked = phase.micro_batch_size
  if asked is not None and asked != plan.micro_batch_size:
    text += (
      f" config.{name}.micro_batch_size={asked} is rounded up: devices take"
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
    mebibytes = 64 if meshes.platform(mesh) == "cpu" else 1024
  return mebibytes * mesh.size * 2**20

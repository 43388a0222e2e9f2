"""From a config to the parts of a phase: members, losses, player, judge."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from grpo_jax.algorithms import objective, options
from grpo_jax.data import sources
from grpo_jax.learning import members, update
from grpo_jax.learning.members import Member
from grpo_jax.learning.micro_batches import UpdatePlan
from grpo_jax.learning.stages import Parts
from grpo_jax.models import critic as critic_lib
from grpo_jax.models import meshes
from grpo_jax.training import (
  compatibility,
  optimizers,
  players,
  programs,
  sharding,
)
from grpo_jax.training import config as config_lib
from grpo_jax.training.problem import Problem
from grpo_jax.training.reward_settings import REWARD_MODEL
from grpo_jax.types import (
  ROW_AXES,
  Algorithm,
  Critic,
  MemberState,
  Policy,
  PyTree,
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
  algorithm, objective_config = phase.objective(config.algorithm)
  _check_devices(config, problem, name, mesh)
  _check_groups(name, phase, algorithm)
  required = options.needs(algorithm, objective_config)
  if phase.plays:
    _check_inputs(problem, required, algorithm.name)
    compatibility.check(
      compatibility.Setup(
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
  if problem.judge.domains and "domain" not in problem.provides:
    raise ValueError(
      f"config.rewards.domains={dict(config.rewards.domains)}: the records have"
      " no domain in their extras, so nothing says which rewards are for which;"
      " leave it empty, or give each record one."
    )
  if "domain" in required:
    weights = objective_config.kl_domain_weights
    _check_domains(
      problem, len(weights), f"config.algorithm.kl_domain_weights={weights}"
    )
  if len(phase.reference_workdirs) > 1:
    _check_domains(
      problem,
      len(phase.reference_workdirs),
      f"config.{name}.reference_workdirs={phase.reference_workdirs}",
    )
  plan = update_plan(
    phase,
    problem.max_prompt_len,
    problem.max_new_tokens,
    mesh,
    temperature=config.sampling.temperature if phase.plays else 1.0,
    couples_group=algorithm.couples_group,
    shares_prompts=problem.compaction is None,
  )
  unit = phase.group_size if algorithm.couples_group else 1
  if plan.micro_batch_size % unit:
    raise ValueError(
      f"algorithm {algorithm.name!r} couples the {unit} completions of a"
      f" prompt, which a micro-batch of {plan.micro_batch_size} rows would"
      f" separate; set config.{name}.micro_batch_size to a multiple of {unit}."
    )
  models = Models(config, phase, policy, algorithm, objective_config, plan)
  parts = Parts(
    policy=policy,
    algorithm=algorithm,
    config=objective_config,
    plan=plan,
    members=models.members(),
    losses=models.losses(),
    constrain_rows=sharding.row_constraint(mesh),
    constrain_trained=sharding.trained_constraint(mesh),
  )
  if not any(loss.num_updates for loss in parts.losses):
    raise ValueError(
      f"config.{name}: a phase of the kind {phase.kind!r} would train nothing;"
      " set num_updates of config.critic, or of config.reward_model, to 1 or"
      " more, or leave the phase out of config.phases."
    )
  if not phase.plays:
    return parts
  # Only what is true ranks the pairs that a reward model learns from.
  judge = problem.judge.without_members()
  if models.is_judged_by_members:
    judge = problem.judge.bound(models.views(), plan)
  return dataclasses.replace(
    parts,
    player=players.make_player(
      policy, problem, config.sampling, phase.group_size, required
    ),
    judge=judge,
    max_rounds=phase.max_rounds,
    staleness=phase.staleness,
    guards=config.guards.of_phase(phase),
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
  """

  config: config_lib.RunConfig
  phase: config_lib.PhaseConfig
  policy: Policy
  algorithm: Algorithm
  objective: Any
  plan: UpdatePlan

  @property
  def required(self) -> frozenset[str]:
    """Optional inputs that the objective reads."""
    return options.needs(self.algorithm, self.objective)

  @property
  def num_updates(self) -> int:
    """Gradient steps of the phase on minibatches."""
    return self.phase.steps * self.plan.num_updates

  @property
  def is_judged_by_members(self) -> bool:
    """Whether a reward model scores completions of this phase."""
    return (
      REWARD_MODEL in self.config.rewards.functions
      and self.phase.plays
      and "reward" not in self.phase.trains
    )

  def critic(self) -> Critic | None:
    """The model with values, of objectives that have one."""
    if self.algorithm.critic_loss is None or "critic" not in self.phase.trains:
      return None
    settings = self.config.critic
    return critic_lib.make_critic(self.policy, settings.trunk, settings.freeze)

  def reward_model(self) -> Critic | None:
    """The model that scores completions, or learns to."""
    if self.is_judged_by_members or "reward" in self.phase.trains:
      freeze = self.config.reward_model.freeze
      return critic_lib.make_critic(self.policy, "own", freeze)
    return None

  def members(self) -> dict[str, Member]:
    """By name; what they say of a batch is asked in this order."""
    found = self._references()
    found["policy"] = self._policy()
    found["algorithm"] = self._scalars()
    if (critic := self.critic()) is not None:
      found["critic"] = self._of_critic("critic", critic, self.config.critic)
    if (critic := self.reward_model()) is not None:
      found["reward"] = self._reward(critic)
    return found

  def views(self) -> dict[str, Any]:
    """How members that judge are run."""
    critic = self.reward_model()
    if critic is None:
      return {}
    return {"reward": functools.partial(members.critic_view, critic, "reward")}

  def losses(self) -> tuple[update.Loss, ...]:
    """In the order in which they are taken for each minibatch."""
    found: list[update.Loss] = []
    if "policy" in self.phase.trains:
      reference = None
      if "ref_kl" in self.required:
        reference = functools.partial(
          members.frozen_view, self.policy, "reference"
        )
      found.append(
        update.PolicyLoss(
          self.policy, self.algorithm, self.objective, self.plan, reference
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

  def _references(self) -> dict[str, Member]:
    """The frozen reference; or teachers, one for each domain of prompts."""
    if "ref_logp" not in self.required:
      return {}
    workdirs = self.phase.reference_workdirs or ("",)
    found = {}
    for domain, workdir in enumerate(workdirs):
      name = "reference" if len(workdirs) == 1 else f"reference{domain}"
      fields = functools.partial(
        members.reference_fields,
        self.plan,
        self.required,
        getattr(self.objective, "topk", 0),
      )
      if len(workdirs) > 1:
        fields = functools.partial(members.fields_of_domain, fields, domain)
      found[name] = Member(
        start=functools.partial(self._start_reference, name, workdir),
        view=functools.partial(members.frozen_view, self.policy, name),
        fields=fields,
        scope="reference",
        continues=not self.phase.set_reference,
        workdir=workdir,
        setting="reference_workdirs",
      )
    return found

  def _start_reference(
    self, name: str, workdir: str, before: Mapping[str, MemberState]
  ) -> PyTree:
    if self.phase.set_reference:
      return members.moving(before["policy"].params, bool(workdir))
    if name in before:
      return before[name].params
    raise ValueError(
      f"algorithm {self.algorithm.name!r} needs a reference policy and there is"
      " none yet; set set_reference=True in the phase, or kl_coef=0."
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
      fields=members.value_fields if "values" in self.required else None,
      scope="values",
      optimizer=optimizers.of_model(
        settings.optimizer, num_updates, self.config.seed, name
      ),
      schedule=optimizers.schedule(settings.optimizer, num_updates),
      keeps_moments=not self.phase.reset_optimizer,
      continues=True,
    )

  def _reward(self, critic: Critic) -> Member:
    settings = self.config.reward_model
    member = self._of_critic("reward", critic, settings)
    if "reward" in self.phase.trains:
      return member

    def start(before):
      if "reward" not in before and not settings.workdir:
        raise ValueError(
          f"config.rewards.functions={self.config.rewards.functions}: there is"
          " no reward model yet; set config.reward_model.workdir to a run that"
          " has trained one, or name a phase of the kind 'preference' first."
        )
      return member.start(before)

    return dataclasses.replace(
      member,
      start=start,
      optimizer=None,
      schedule=None,
      workdir=settings.workdir,
      setting="reward_model.workdir",
      source="reward",
    )


def _check_devices(
  config: config_lib.RunConfig, problem: Problem, name: str, mesh: Mesh
) -> None:
  """Raises ValueError if rows or lanes do not split over the devices."""
  phase = config.section(name)
  num_shards = sharding.num_row_shards(mesh)
  if phase.num_prompts % num_shards:
    shown = " × ".join(f"{axis} {mesh.shape[axis]}" for axis in ROW_AXES)
    raise ValueError(
      f"config.{name}.num_prompts={phase.num_prompts} does not split over"
      f" the {num_shards} devices of {shown}; needed: num_prompts = devices ×"
      " (a whole number), so that each has whole groups. Change it or"
      " config.mesh."
    )
  # Processes that hold the same rows split them, to score each once.
  is_judged_on_hosts = (
    phase.plays
    and (problem.judge.on_host or problem.sessions)
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
  lanes = config.sampling.lanes
  if lanes is not None and lanes % num_shards:
    raise ValueError(
      f"config.sampling.lanes={lanes} do not split over {num_shards} devices;"
      " needed: lanes = devices × (a whole number)."
    )


def _check_groups(
  name: str, phase: config_lib.PhaseConfig, algorithm: Algorithm
) -> None:
  """Raises ValueError if an algorithm is not for groups of this size."""
  if phase.group_size < algorithm.min_group_size:
    raise ValueError(
      f"config.{name}.group_size={phase.group_size}: algorithm"
      f" {algorithm.name!r} compares the completions of a prompt and needs at"
      f" least {algorithm.min_group_size}; every advantage would be 0."
    )
  most = algorithm.max_group_size
  if most is not None and phase.group_size > most:
    raise ValueError(
      f"config.{name}.group_size={phase.group_size}: algorithm"
      f" {algorithm.name!r} is defined for at most {most} completions per"
      f" prompt; set config.{name}.group_size={most}."
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
  problem: Problem, required: frozenset[str], name: str
) -> None:
  """Raises ValueError if nothing provides what the algorithm reads."""
  for need in ("step_rewards", "turns", "state_id", "domain"):
    if need in required and need not in problem.provides:
      raise ValueError(
        f"algorithm {name!r} needs {need!r}: {options.NEEDS[need]}."
      )


def _check_domains(problem: Problem, count: int, setting: str) -> None:
  """Raises ValueError if there is nothing for a domain; indexing would clamp.

  Args:
    problem: Records with domains.
    count: How many domains the setting is about.
    setting: With its value.
  """
  largest = sources.largest_domain(problem.train)
  if largest >= count:
    raise ValueError(
      f"{setting} is about {count} domains and a record has domain {largest};"
      f" needed are {largest + 1}."
    )

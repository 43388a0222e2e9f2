"""What has to fit together before a phase is made."""

from __future__ import annotations

import logging

import jax
from jax.sharding import AbstractMesh, Mesh

from grpo_jax.algorithms import options
from grpo_jax.settings import config as config_lib
from grpo_jax.training.problem.problem import Problem
from grpo_jax.training.runtime import sharding
from grpo_jax.types import ROW_AXES, Algorithm

# Who compares the policy with another one: by a ratio, or by a distance.
_COMPARED = frozenset(("old_logp", "behavior_logp", "ref_logp"))


def devices(
  config: config_lib.RunConfig, problem: Problem, name: str, mesh: Mesh
) -> None:
  """Raises ValueError if rows, lanes or positions do not split over devices."""
  phase = config.section(name)
  num_shards = sharding.num_row_shards(mesh)
  rows(config, name, mesh)
  # Processes that hold the same rows split them, to score each once.
  is_judged_on_hosts = (
    phase.plays
    and (problem.judge.asks_host or problem.sessions)
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
  shown = " × ".join(f"{axis} {mesh.shape[axis]}" for axis in ROW_AXES)
  if phase.num_prompts % num_shards:
    raise ValueError(
      f"config.{name}.num_prompts={phase.num_prompts} does not split over"
      f" the {num_shards} devices of {shown}; needed: num_prompts = devices ×"
      " (a whole number), so that each has whole groups. Change it or"
      " config.mesh."
    )
  parts, together, needed = phase.num_rows, "", " × group_size"
  if algorithm.couples_group:
    parts, needed = phase.num_prompts, ""
    together = (
      f" in whole groups of {phase.group_size} rows, which algorithm"
      f" {algorithm.name!r} couples"
    )
  if parts % (phase.num_minibatches * num_shards):
    raise ValueError(
      f"config.{name}.num_minibatches={phase.num_minibatches}: minibatches of"
      f" {phase.num_rows // phase.num_minibatches} rows ({phase.num_prompts}"
      f" prompts × {phase.group_size} completions) do not split over the"
      f" {num_shards} device(s) of {shown}{together}; needed:"
      f" num_prompts{needed} = num_minibatches × devices × (a whole number)."
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
  most = algorithm.max_group_size
  if most is not None and phase.group_size > most:
    count = "one completion" if most == 1 else f"at most {most} completions"
    raise ValueError(
      f"config.{name}.group_size={phase.group_size}: algorithm"
      f" {algorithm.name!r} is defined for {count} per prompt; set"
      f" config.{name}.group_size={most}."
    )


def inputs(given: frozenset[str], required: frozenset[str], name: str) -> None:
  """Raises ValueError if nothing provides what the algorithm reads."""
  for need in (
    "step_rewards",
    "turns",
    "state_id",
    "domain",
    "expected",
    "prefix_utility",
  ):
    if need in required and need not in given:
      raise ValueError(
        f"algorithm {name!r} needs {need!r}: {options.NEEDS[need]}."
      )


def domains(problem: Problem, count: int, setting: str) -> None:
  """Raises ValueError if there is nothing for a domain; indexing would clamp.

  Args:
    problem: Records with domains.
    count: How many domains the setting is about.
    setting: The name of the setting, and its value.
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

  The first one of a batch is on-policy. A policy gradient without a ratio is
  biased in those that follow.
  """
  own = algorithm.config_class()
  follow = phase.num_epochs * phase.num_minibatches - 1
  if (
    phase.plays
    and algorithm.policy_loss is not None
    and follow
    and own.reads_rewards
    and not _COMPARED & {*algorithm.needs}
  ):
    logging.warning(
      "config.%s: algorithm %r has no ratio, so nothing corrects the last %d of"
      " the %d gradient steps on each batch (num_epochs=%d,"
      " num_minibatches=%d), which are off-policy; set both to 1, or choose an"
      " algorithm with a ratio, such as 'grpo'.",
      *(name, algorithm.name, follow, follow + 1),
      *(phase.num_epochs, phase.num_minibatches),
    )

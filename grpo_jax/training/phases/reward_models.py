"""Reward models of a run: what they score, and those from outside of it."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import tokenizer
from grpo_jax.models import architecture
from grpo_jax.models import critic as critic_lib
from grpo_jax.models.hf import classifiers, hub, weights
from grpo_jax.settings import config as config_lib
from grpo_jax.settings.sections import RewardModelConfig
from grpo_jax.step import reward_models
from grpo_jax.training.phases import models, outside, workdirs
from grpo_jax.training.phases.outside import Outside
from grpo_jax.training.problem import vocabularies
from grpo_jax.training.problem.problem import Problem
from grpo_jax.training.runtime import paths, sharding
from grpo_jax.types import PyTree


def steps(
  settings: RewardModelConfig, tokenizer: Any
) -> reward_models.Steps | None:
  """Which tokens end a step of a process reward model; None: it is none.

  Args:
    settings: `config.reward_model`.
    tokenizer: Of the run.

  Raises:
    ValueError: No token has such an end, or the tokenizer does not say.
  """
  if not settings.step_ends:
    return None
  ends = tuple(text.encode() for text in settings.step_ends)
  found = np.array([x.endswith(ends) for x in tokenizer.token_bytes()])
  if not found.any():
    raise ValueError(
      f"config.reward_model.step_ends={settings.step_ends}: no token of the"
      " tokenizer ends so, and no step would end; name the last characters of a"
      " token, such as ';'."
    )
  return reward_models.Steps(found, settings.of_steps)


def outside_of(
  config: config_lib.RunConfig,
  name: str,
  problem: Problem,
  mesh: Mesh,
  is_judged: bool,
) -> dict[str, Outside]:
  """The reward models that a phase has from outside of the run, by member.

  Args:
    config: Settings of this run.
    name: Of the phase.
    problem: Of this run.
    mesh: Of this run.
    is_judged: Whether a reward model judges its completions.
  """
  settings, phase = config.reward_model, config.section(name)
  named = {}
  if settings.source and (is_judged or "reward" in phase.trains):
    named["reward"] = "source", bool(settings.step_ends)
  if settings.ranks(phase):
    named["ranker"] = "ranked_by", False
  return {
    member: find(
      getattr(settings, field),
      setting=f"config.reward_model.{field}",
      scores_steps=scores_steps,
      config=config,
      problem=problem,
      mesh=mesh,
    )
    for member, (field, scores_steps) in named.items()
  }


def find(
  path: str,
  *,
  setting: str,
  scores_steps: bool,
  config: config_lib.RunConfig,
  problem: Problem,
  mesh: Mesh,
) -> Outside:
  """A reward model that is not this run's, before its parameters are read.

  Args:
    path: Workdir of a run that has trained one, or folder or hub name of a
      checkpoint with a scalar head.
    setting: Which setting names it, for messages.
    scores_steps: Whether it is to score steps, or whole completions.
    config: Settings of this run.
    problem: Of this run, with its tokenizer.
    mesh: Of this run.

  Raises:
    FileNotFoundError, ValueError: As from `outside.find`; or it scores
      something else than is asked for.
  """
  shown = f"{setting}={path!r}"
  freeze = config.reward_model.freeze
  if outside.is_checkpoint(path):
    try:
      return _of_checkpoint(path, shown, scores_steps, config, problem, mesh)
    except (FileNotFoundError, ValueError) as error:
      if str(error).startswith(shown):
        raise
      raise type(error)(f"{shown}: {error}") from error
  found = outside.find(
    path,
    setting=setting,
    config=config,
    problem=problem,
    mesh=mesh,
    member="reward",
  )
  theirs = workdirs.settings(paths.parse(path))
  _check_kind(shown, bool(theirs.reward_model.step_ends), scores_steps)
  sized = found
  if theirs.reward_model.source:  # It has the size that it was read with.
    sized = find(
      theirs.reward_model.source,
      setting=f"{shown}, whose config.reward_model.source",
      scores_steps=scores_steps,
      config=config,
      problem=problem,
      mesh=mesh,
    )

  def parted(params: PyTree) -> PyTree:
    return critic_lib.parted_anew(params, freeze)

  return Outside(
    sized.policy,
    jax.eval_shape(parted, found.shapes),
    lambda: parted(found.read()),
    sized.width,
  )


def _check_kind(shown: str, is_of_steps: bool, scores_steps: bool) -> None:
  """Raises ValueError if a model scores something else than is asked for."""
  kinds = {True: "steps", False: "whole completions"}
  if is_of_steps != scores_steps:
    asked = "names the ends of steps" if scores_steps else "is empty"
    raise ValueError(
      f"{shown}: it was trained to score {kinds[is_of_steps]}, and"
      f" {kinds[scores_steps]} are to be scored, because"
      f" config.reward_model.step_ends {asked}; change that, or name another"
      " model."
    )


def _of_checkpoint(
  name: str,
  shown: str,
  scores_steps: bool,
  config: config_lib.RunConfig,
  problem: Problem,
  mesh: Mesh,
) -> Outside:
  """A reward model of a checkpoint."""
  directory = pathlib.Path(hub.local_directory(name))
  described = classifiers.described(directory)
  _check_kind(shown, described.scores_steps, scores_steps)
  if problem.tokenizer.pieces():
    theirs = tokenizer.Tokenizer(directory)
    vocabularies.check_same(problem.tokenizer, theirs, shown)
  own = {n: getattr(config.model, n) for n in architecture.FIELDS_OF_A_RUN}
  model = architecture.TransformerConfig(**{**described.fields, **own})
  models.check_model(model, mesh)
  policy = sharding.on_mesh(models.policy_of(model, None), mesh)
  head = classifiers.head(directory, described)
  freeze = config.reward_model.freeze

  def whole(params: PyTree) -> PyTree:
    number = jax.tree.map(jnp.asarray, head)
    return critic_lib.reward_params(
      params["trained"], params["frozen"], number, freeze
    )

  def read() -> PyTree:
    _, params = weights.load(
      directory,
      model,
      shardings=functools.partial(sharding.of_params, mesh),
      family=described.family,
    )
    made = whole(params)
    return jax.device_put(
      made,
      {group: sharding.of_params(mesh, tree) for group, tree in made.items()},
    )

  shapes = jax.eval_shape(
    lambda key: whole(policy.init(key)), jax.random.key(0)
  )
  return Outside(policy, shapes, read, model.width)

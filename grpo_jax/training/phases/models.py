"""Models of a phase beside the policy: references, opponents, reward models.

A model may come from outside of the run. One string names it: the workdir of a
run, whose last checkpoint is read and whose architecture is that of its config;
or the folder or hub name of a Hugging Face checkpoint. The architecture may
differ from the policy's, in size and in family. The tokenizer must be the same,
piece by piece. `find_outside` reads configs, tokenizers and shapes, and reports
errors in them. `Outside.read` reads the parameters, when a phase begins that
needs them.

A reference, or one or several teachers, is what a KL divergence of the policy
is measured to (`References`).

Opponents play with the policy in environments that have seats for others:

    config.rl.opponents = ("start", "runs/another")

Each opponent is a frozen model of the phase, "opponent1", "opponent2", …;
"self" is the policy as it is, which needs no further model.

Reward models may score whole completions or steps (`find_reward_model`).
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import tokenizer
from grpo_jax.models import architecture, quantization
from grpo_jax.models import critic as critic_lib
from grpo_jax.models.hf import classifiers, families, hub, weights
from grpo_jax.rollout import seats
from grpo_jax.settings import config as config_lib
from grpo_jax.settings.phase import RewardModelConfig
from grpo_jax.step import models as models_lib
from grpo_jax.step import reward_models
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.step.models import Model
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.phases import sampler
from grpo_jax.training.phases import workdir as workdir_lib
from grpo_jax.training.problem import tokens
from grpo_jax.training.problem.problem import Problem
from grpo_jax.training.runtime import files, log, sharding
from grpo_jax.types import MemberState, Policy, PyTree


@dataclasses.dataclass(frozen=True)
class Outside:
  """A model that is not of this run.

  Attributes:
    policy: The model, of its own architecture, with as many logits as the
      policy of the run. Rows of its table that no token has are left out, and
      ids for which it has no row get the lowest of its logits.
    shapes: Shapes of its parameters, which share nothing with those of the run.
    read: () -> its parameters, on the mesh of the run.
    width: Width of its hidden states.
  """

  policy: Policy
  shapes: PyTree
  read: Callable[[], PyTree]
  width: int

  def start(self, name: str) -> Callable[[Any], PyTree]:
    """Makes `Model.start` of a model that is read before its phase begins."""

    def start(before):
      if name in before:
        return before[name].params
      return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.shapes)

    return start


def find_outside(
  path: str,
  *,
  setting: str,
  config: config_lib.RunConfig,
  problem: Problem,
  mesh: Mesh,
  member: str = "policy",
  storage: str = "own",
) -> Outside:
  """Finds the model that a setting names; its parameters are not read yet.

  Args:
    path: Workdir of a run, or folder or hub name of a checkpoint.
    setting: Name of the setting, for messages, as "config.rl.reference".
    config: Settings of this run. A checkpoint gets the fields of a run (dtype,
      attention, …) from its `model`.
    problem: Problem of this run, with its tokenizer.
    mesh: Mesh of this run.
    member: Name of the model among those of the other run.
    storage: One of `settings.STORAGE`; others than "own" are for policies.

  Raises:
    FileNotFoundError: There is no such run or checkpoint.
    ValueError: It is damaged or not supported, lacks the model, or has another
      tokenizer; or a size does not split over the mesh.
  """
  shown = f"{setting}={path!r}"
  try:
    folder = files.parse(path)
    if is_checkpoint(path):
      if member != "policy":
        raise ValueError(
          f"it is a checkpoint of a language model, and no run with a"
          f" {member!r}."
        )
      found, theirs = _outside_of_checkpoint(path, config, mesh, storage)
    else:
      found, theirs = _of_run(folder, mesh, member, storage)
  except (FileNotFoundError, ValueError) as error:
    if is_checkpoint(path) and not files.parse(path).exists():
      # A name on the hub looks like the path of a run.
      shown += ": there is no such folder of a run, and as a checkpoint"
    raise type(error)(f"{shown}: {error}") from error
  if problem.tokenizer.pieces():
    tokens.check_same(problem.tokenizer, theirs(), shown)
  ours = config.model.transformer(problem.tokenizer.vocab_size).vocab_size
  policy = _with_ids(found.policy, ours)
  policy = policy_lib.only_known(policy, problem.tokenizer, ours)
  return dataclasses.replace(found, policy=policy)


def is_checkpoint(path: str) -> bool:
  """Says if a string means a Hugging Face checkpoint instead of a run."""
  folder = files.parse(path)
  file = folder / log.CONFIG
  if file.exists():
    return "model_type" in log.read_json(file, dict)
  return not folder.exists() and bool(re.fullmatch(r"[\w.-]+/[\w.-]+", path))


def _of_run(
  workdir: files.Path, mesh: Mesh, member: str, storage: str
) -> tuple[Outside, Callable[[], Any]]:
  """Returns a model of another run, and () -> its tokenizer."""
  config = workdir_lib.settings(workdir)
  step = workdir_lib.last_step(workdir, config)
  saved = workdir_lib.shapes(workdir, config, step)
  if member not in saved:
    raise ValueError(
      f"its last checkpoint has no {member!r}, but {', '.join(sorted(saved))};"
      " name a run that has trained one."
    )
  wanted = {member: saved[member]}
  # Parameters that it shares with the policy there, as the base of adapters.
  shared = {}
  if member != "policy":
    own = saved[member].params["frozen"]
    shared = {
      name: value
      for name, value in saved["policy"].params["frozen"].items()
      if name not in own and name not in own.get("inherited", {})
    }
    if shared:
      wanted["policy"] = MemberState({"frozen": shared})

  def complete(params, shared):
    frozen = params["frozen"]
    if "inherited" in frozen:
      whole = {**frozen, "inherited": {**shared, **frozen["inherited"]}}
    else:
      whole = {**shared, **frozen}
    return _stored({**params, "frozen": whole}, storage)

  def read():
    params = workdir_lib.read(workdir, config, step, wanted, mesh)
    frozen = params["policy"]["frozen"] if shared else {}
    return _placed(complete(params[member], frozen), mesh)

  text = tokens.make_tokenizer(config)
  model = config.model.transformer(text.vocab_size)
  policy_lib.check_model(model, mesh)
  adapters = config.model.adapters()
  if adapters is not None and storage == "int8":
    adapters = dataclasses.replace(adapters, quantization="int8")
  policy = sharding.on_mesh(policy_lib.policy_of(model, adapters), mesh)
  if adapters is None and storage == "int8":
    policy = quantization.unpacking(policy)
  shapes = jax.eval_shape(complete, saved[member].params, shared)
  return Outside(policy, shapes, read, model.width), lambda: text


def _outside_of_checkpoint(
  name: str, config: config_lib.RunConfig, mesh: Mesh, storage: str
) -> tuple[Outside, Callable[[], Any]]:
  """Returns the model of a checkpoint, and () -> its tokenizer."""
  directory = hub.local_directory(name)
  fields, _ = families.from_config_json(directory)
  own = {n: getattr(config.model, n) for n in architecture.FIELDS_OF_A_RUN}
  if storage != "own":
    own["param_dtype"] = "bfloat16"
  model = architecture.TransformerConfig(**{**fields, **own})
  policy_lib.check_model(model, mesh)
  policy = sharding.on_mesh(policy_lib.policy_of(model, None), mesh)
  shapes = jax.eval_shape(
    lambda: _stored(policy.init(jax.random.key(0)), storage)
  )

  def read():
    _, params = weights.load(
      directory,
      model,
      param_dtype=model.param_dtype,
      shardings=functools.partial(sharding.of_params, mesh),
      convert=functools.partial(
        quantization.quantize_leaf,
        kind="int8" if storage == "int8" else "none",
      ),
    )
    return _placed(params, mesh)

  if storage == "int8":
    policy = quantization.unpacking(policy)
  return Outside(
    policy, shapes, read, model.width
  ), lambda: tokenizer.Tokenizer(directory)


def _stored(params: PyTree, storage: str) -> PyTree:
  """Converts parameters to the form in which a frozen model is kept."""
  if storage == "own":
    return params
  if storage == "int8":
    # Quantized before they are rounded to bfloat16.
    if "base" in params["frozen"]:
      base = quantization.quantize(params["frozen"]["base"], "int8")
      params = {**params, "frozen": {**params["frozen"], "base": base}}
    else:
      trained = quantization.quantize(params["trained"], "int8")
      params = {**params, "trained": trained}

  def halved(x):
    if quantization.is_quantized(x) or not jnp.issubdtype(
      x.dtype, jnp.floating
    ):
      return x
    return x.astype(jnp.bfloat16)

  return jax.tree.map(halved, params, is_leaf=quantization.is_quantized)


def _placed(params: PyTree, mesh: Mesh) -> PyTree:
  return jax.device_put(
    params,
    {group: sharding.of_params(mesh, tree) for group, tree in params.items()},
  )


def _with_ids(policy: Policy, count: int) -> Policy:
  """The policy with `count` logits.

  Surplus logits are cut off, and missing ones are the lowest of the row; no
  token has these ids. Checkpoints of a family round their tables up to
  different sizes.
  """

  def head(params, h):
    logits = policy.head(params, h)
    missing = count - logits.shape[-1]
    if missing <= 0:
      return logits[..., :count] if missing else logits
    lowest = logits.min(axis=-1, keepdims=True)
    others = jnp.broadcast_to(lowest, (*logits.shape[:-1], missing))
    return jnp.concatenate([logits, others], axis=-1)

  return dataclasses.replace(policy, head=head)


MEMBER = "reference"


def paths(phase: config_lib.PhaseConfig) -> dict[str, str]:
  """The workdir or checkpoint of each reference from outside, by name."""
  found = phase.reference_workdirs
  if len(found) == 1:
    return {MEMBER: found[0]}
  return {f"{MEMBER}{number}": path for number, path in enumerate(found)}


@dataclasses.dataclass(frozen=True)
class References:
  """The reference of a phase, or its teachers.

  Attributes:
    algorithm: Name of the algorithm of the phase, for messages.
    phase: Settings of the phase.
    policy: The policy.
    outside: Models from outside of the run, by name, with those of `paths`
      among them.
  """

  algorithm: str
  phase: config_lib.PhaseConfig
  policy: Policy
  outside: Mapping[str, Outside]

  def made(
    self, plan: UpdatePlan, required: frozenset[str], topk: int
  ) -> dict[str, Model]:
    """Makes the models, by name.

    Args:
      plan: Division of rows into micro-batches.
      required: Optional inputs that the objective reads.
      topk: Number of likeliest tokens of a teacher that it reads.
    """
    fields = functools.partial(
      models_lib.reference_fields, plan, required, topk
    )
    models = [*paths(self.phase)]
    if not models:
      return {
        MEMBER: Model(
          start=self._start,
          view=self._view(),
          fields=fields,
          scope="reference",
          continues=not self.phase.set_reference,
        )
      }
    found = {}
    for number, name in enumerate(models):
      model = self.outside[name]
      found[name] = Model(start=model.start(name), read=model.read)
      if self.phase.reference_mixture and number > 0:
        continue  # The view of the first one is that of the mixture.
      found[name] = dataclasses.replace(
        found[name],
        view=self._view(name),
        fields=fields,
        domain=number if self.phase.has_teachers_of_domains else None,
        scope="reference",
      )
    return found

  def head(self) -> Callable[..., models_lib.Head]:
    """Returns (parameters of all models, rows) -> the head for `ref_h`."""
    if self.phase.has_teachers_of_domains:
      return functools.partial(models_lib.head_of_domains, self._teachers())
    view = self._view()
    return lambda params, batch: view(params).head

  def _view(self, name: str = MEMBER) -> Callable[..., models_lib.ModelView]:
    """The view of a reference, or that of the mixture of all."""
    if self.phase.reference_mixture:
      return functools.partial(
        models_lib.mixture_view, self._teachers(), self.phase.reference_mixture
      )
    if (model := self.outside.get(name)) is not None:
      return functools.partial(models_lib.outside_view, model.policy, name)
    return functools.partial(models_lib.frozen_view, self.policy, name)

  def _teachers(self) -> tuple[models_lib.Teacher, ...]:
    found = {name: self.outside[name] for name in paths(self.phase)}
    return tuple(
      models_lib.Teacher(model.policy, name, model.width)
      for name, model in found.items()
    )

  def _start(self, before: Mapping[str, MemberState]) -> PyTree:
    if self.phase.set_reference:
      return models_lib.moving(before["policy"].params)
    if MEMBER in before:
      return before[MEMBER].params
    raise ValueError(
      f"algorithm {self.algorithm!r} needs a reference policy, and there is"
      " none yet; set set_reference=True in the phase, or kl_coef=0."
    )


SELF = "self"
START = "start"


def _models(phase: config_lib.PhaseConfig) -> dict[str, str]:
  """The opponents of a phase that are not the policy, each once, by name."""
  others = dict.fromkeys(name for name in phase.opponents if name != SELF)
  return {f"opponent{i}": name for i, name in enumerate(others, 1)}


def from_outside(phase: config_lib.PhaseConfig) -> dict[str, str]:
  """The workdir or checkpoint of each opponent from outside, by name."""
  return {k: where for k, where in _models(phase).items() if where != START}


def made(
  phase: config_lib.PhaseConfig,
  policy: Policy,
  outside: Mapping[str, Outside],
) -> dict[str, Model]:
  """Makes the models of the opponents of a phase, by name.

  Args:
    phase: Settings of the phase.
    policy: The policy.
    outside: Models of `from_outside`, by name.
  """

  def start(before: Mapping[str, MemberState]) -> PyTree:
    return models_lib.moving(before["policy"].params)

  found = {}
  for name in _models(phase):
    if (model := outside.get(name)) is not None:
      found[name] = Model(
        start=model.start(name),
        view=functools.partial(models_lib.outside_view, model.policy, name),
        read=model.read,
      )
    else:
      view = functools.partial(models_lib.frozen_view, policy, name)
      found[name] = Model(start=start, view=view)
  return found


def table(
  phase: config_lib.PhaseConfig,
  policy: Policy,
  all_members: Mapping[str, Model],
  outside: Mapping[str, Outside],
) -> sampler.Table | None:
  """Assigns the seats of a phase; None if the policy has all seats.

  Args:
    phase: Settings of the phase.
    policy: The policy.
    all_members: Models of the phase, with those of `made` among them.
    outside: As in `made`.
  """
  if not phase.opponents:
    return None
  others = _models(phase)
  policies = [outside[k].policy if k in outside else policy for k in others]
  views = [all_members[name].view for name in others]
  number = {SELF: 0, **{name: i for i, name in enumerate(others.values(), 1)}}
  return sampler.Table(
    seats.Opponents(
      tuple(policies), tuple(number[name] for name in phase.opponents)
    ),
    tuple(view for view in views if view is not None),
  )


def steps(
  settings: RewardModelConfig, tokenizer: Any
) -> reward_models.Steps | None:
  """Finds the tokens that end a step; None without a process reward model.

  Args:
    settings: `config.reward_model`.
    tokenizer: Tokenizer of the run.

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
  """Finds the reward models that a phase has from outside of the run, by name.

  Args:
    config: Settings of this run.
    name: Name of the phase.
    problem: Problem of this run.
    mesh: Mesh of this run.
    is_judged: True if a reward model scores completions of the phase.
  """
  settings, phase = config.reward_model, config.section(name)
  named = {}
  if settings.source and (is_judged or "reward" in phase.trains):
    named["reward"] = "source", bool(settings.step_ends)
  if settings.ranks(phase):
    named["ranker"] = "ranked_by", False
  return {
    member: find_reward_model(
      getattr(settings, field),
      setting=f"config.reward_model.{field}",
      scores_steps=scores_steps,
      config=config,
      problem=problem,
      mesh=mesh,
    )
    for member, (field, scores_steps) in named.items()
  }


def find_reward_model(
  path: str,
  *,
  setting: str,
  scores_steps: bool,
  config: config_lib.RunConfig,
  problem: Problem,
  mesh: Mesh,
) -> Outside:
  """Finds a reward model from outside; its parameters are not read yet.

  Args:
    path: Workdir of a run that has trained a reward model, or folder or hub
      name of a checkpoint with a scalar head.
    setting: Name of the setting, for messages.
    scores_steps: True if the model has to score steps, False for whole
      completions.
    config: Settings of this run.
    problem: Problem of this run, with its tokenizer.
    mesh: Mesh of this run.

  Raises:
    FileNotFoundError, ValueError: As from `find_outside`; or the model scores
      something else than is asked for.
  """
  shown = f"{setting}={path!r}"
  freeze = config.reward_model.freeze
  if is_checkpoint(path):
    try:
      return _of_checkpoint(path, shown, scores_steps, config, problem, mesh)
    except (FileNotFoundError, ValueError) as error:
      if str(error).startswith(shown):
        raise
      raise type(error)(f"{shown}: {error}") from error
  found = find_outside(
    path,
    setting=setting,
    config=config,
    problem=problem,
    mesh=mesh,
    member="reward",
  )
  theirs = workdir_lib.settings(files.parse(path))
  _check_kind(shown, bool(theirs.reward_model.step_ends), scores_steps)
  sized = found
  if theirs.reward_model.source:  # Then it has that model's size.
    sized = find_reward_model(
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
  """The reward model of a checkpoint."""
  directory = pathlib.Path(hub.local_directory(name))
  described = classifiers.described(directory)
  _check_kind(shown, described.scores_steps, scores_steps)
  if problem.tokenizer.pieces():
    theirs = tokenizer.Tokenizer(directory)
    tokens.check_same(problem.tokenizer, theirs, shown)
  own = {n: getattr(config.model, n) for n in architecture.FIELDS_OF_A_RUN}
  model = architecture.TransformerConfig(**{**described.fields, **own})
  policy_lib.check_model(model, mesh)
  policy = sharding.on_mesh(policy_lib.policy_of(model, None), mesh)
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

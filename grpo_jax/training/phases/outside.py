"""Models from outside of a run: its policies, opponents and reward models.

One string names such a model: the workdir of a run, whose last checkpoint is
read and whose architecture is that of its config; or the folder or hub name of
a Hugging Face checkpoint. The architecture may differ from the policy's, in
size and in family. The tokenizer must be the same, piece by piece.
`find_outside` reads configs, tokenizers and shapes, and reports errors in them.
`Outside.read` reads the parameters, when a phase begins that needs them. Reward
models may score whole completions or steps (`find_reward_model`).
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from grpo_jax.data import tokenizer
from grpo_jax.models import architecture, quantization
from grpo_jax.models.hf import classifiers, families, hub, weights
from grpo_jax.models.policies import critic as critic_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.settings.rewards import JUDGE, REWARD_MODEL
from grpo_jax.training.phases import models
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.phases import workdir as workdir_lib
from grpo_jax.training.phases.models import Outside
from grpo_jax.training.problem import tokens
from grpo_jax.training.problem.problem import Problem
from grpo_jax.training.runtime import files, log, sharding
from grpo_jax.types import ModelState, Policy, PyTree


def find_outside(
  path: str,
  *,
  setting: str,
  config: config_lib.RunConfig,
  problem: Problem,
  mesh: Mesh,
  model_name: str = "policy",
  storage: str = "own",
) -> Outside:
  """Finds the model that a setting names; its parameters are not read yet.

  Args:
    path: Workdir of a run, or folder or hub name of a checkpoint.
    setting: Name of the setting, for messages, as "config.rl.reference".
    config: Settings of this run. A checkpoint gets the fields of a run (dtype,
      attention, …) from its `model`.
    model_name: Name of the model among those of the other run.
    storage: One of `settings.STORAGE`; others than "own" are for policies.

  Raises:
    FileNotFoundError: There is no such run or checkpoint.
    ValueError: It is damaged or not supported, lacks the model, or has another
      tokenizer; or a size does not split over the mesh.
  """
  label = f"{setting}={path!r}"
  try:
    folder = files.parse(path)
    if is_checkpoint(path):
      if model_name != "policy":
        raise ValueError(
          f"it is a checkpoint of a language model, and no run with a"
          f" {model_name!r}."
        )
      model, tokenizer_of = _outside_of_checkpoint(path, config, mesh, storage)
    else:
      model, tokenizer_of = _of_run(folder, mesh, model_name, storage)
  except (FileNotFoundError, ValueError) as error:
    if is_checkpoint(path) and not files.parse(path).exists():
      # A name on the hub looks like the path of a run.
      label += ": there is no such folder of a run, and as a checkpoint"
    raise type(error)(f"{label}: {error}") from error
  if problem.tokenizer.pieces():
    tokens.check_same(problem.tokenizer, tokenizer_of(), label)
  num_ids = config.model.transformer(problem.tokenizer.vocab_size).vocab_size
  policy = _with_ids(model.policy, num_ids)
  policy = policy_lib.only_known(policy, problem.tokenizer, num_ids)
  return dataclasses.replace(model, policy=policy)


def is_checkpoint(path: str) -> bool:
  """Says if a string means a Hugging Face checkpoint instead of a run."""
  folder = files.parse(path)
  file = folder / log.CONFIG
  if file.exists():
    return "model_type" in log.read_json(file, dict)
  return not folder.exists() and bool(re.fullmatch(r"[\w.-]+/[\w.-]+", path))


def _of_run(
  workdir: files.Path, mesh: Mesh, model_name: str, storage: str
) -> tuple[Outside, Callable[[], Any]]:
  """Returns a model of another run, and () -> its tokenizer."""
  config = workdir_lib.settings(workdir)
  step = workdir_lib.last_step(workdir, config)
  saved = workdir_lib.shapes(workdir, config, step)
  if model_name not in saved:
    raise ValueError(
      f"its last checkpoint has no {model_name!r}, but"
      f" {', '.join(sorted(saved))}; name a run that has trained one."
    )
  to_read = {model_name: saved[model_name]}
  # Parameters that it shares with the policy there, as the base of adapters.
  shared = {}
  if model_name != "policy":
    own = saved[model_name].params["frozen"]
    shared = {
      name: value
      for name, value in saved["policy"].params["frozen"].items()
      if name not in own and name not in own.get("inherited", {})
    }
    if shared:
      to_read["policy"] = ModelState({"frozen": shared})

  def complete(params, shared):
    frozen = params["frozen"]
    if "inherited" in frozen:
      all_frozen = {**frozen, "inherited": {**shared, **frozen["inherited"]}}
    else:
      all_frozen = {**shared, **frozen}
    return _convert({**params, "frozen": all_frozen}, storage)

  def read():
    params = workdir_lib.read(workdir, config, step, to_read, mesh)
    frozen = params["policy"]["frozen"] if shared else {}
    return _place(complete(params[model_name], frozen), mesh)

  text = tokens.make_tokenizer(config)
  model = config.model.transformer(text.vocab_size)
  policy_lib.check_model(model, mesh)
  adapters = config.model.adapters()
  if adapters is not None and storage == "int8":
    adapters = dataclasses.replace(adapters, quantization="int8")
  policy = sharding.on_mesh(policy_lib.policy_of(model, adapters), mesh)
  if adapters is None and storage == "int8":
    policy = quantization.unpacking(policy)
  shapes = jax.eval_shape(complete, saved[model_name].params, shared)
  return Outside(policy, shapes, read, model.width), lambda: text


def _outside_of_checkpoint(
  name: str, config: config_lib.RunConfig, mesh: Mesh, storage: str
) -> tuple[Outside, Callable[[], Any]]:
  """Returns the model of a checkpoint, and () -> its tokenizer."""
  directory = hub.local_directory(name)
  fields, _ = families.from_config_json(directory)
  extra = {n: getattr(config.model, n) for n in architecture.FIELDS_OF_A_RUN}
  if storage != "own":
    extra["param_dtype"] = "bfloat16"
  model = architecture.TransformerConfig(**{**fields, **extra})
  policy_lib.check_model(model, mesh)
  policy = sharding.on_mesh(policy_lib.policy_of(model, None), mesh)
  shapes = jax.eval_shape(
    lambda: _convert(policy.init(jax.random.key(0)), storage)
  )

  def read():
    _, params = weights.load(
      directory,
      model,
      param_dtype=model.param_dtype,
      shardings=functools.partial(sharding.of_params, mesh),
      convert=functools.partial(
        quantization.quantize_leaf, kind="int8" if storage == "int8" else "none"
      ),
    )
    return _place(params, mesh)

  if storage == "int8":
    policy = quantization.unpacking(policy)
  return Outside(
    policy, shapes, read, model.width
  ), lambda: tokenizer.Tokenizer(directory)


def _convert(params: PyTree, storage: str) -> PyTree:
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

  def to_bfloat16(x):
    if quantization.is_quantized(x) or not jnp.issubdtype(
      x.dtype, jnp.floating
    ):
      return x
    return x.astype(jnp.bfloat16)

  return jax.tree.map(to_bfloat16, params, is_leaf=quantization.is_quantized)


def _place(params: PyTree, mesh: Mesh) -> PyTree:
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
    fill = jnp.broadcast_to(lowest, (*logits.shape[:-1], missing))
    return jnp.concatenate([logits, fill], axis=-1)

  return dataclasses.replace(policy, head=head)


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

  Raises:
    FileNotFoundError, ValueError: As from `find_outside`; or the model scores
      something else than is asked for.
  """
  label = f"{setting}={path!r}"
  freeze = config.reward_model.freeze
  if is_checkpoint(path):
    try:
      return _of_checkpoint(path, label, scores_steps, config, problem, mesh)
    except (FileNotFoundError, ValueError) as error:
      if str(error).startswith(label):
        raise
      raise type(error)(f"{label}: {error}") from error
  model = find_outside(
    path,
    setting=setting,
    config=config,
    problem=problem,
    mesh=mesh,
    model_name="reward",
  )
  run_config = workdir_lib.settings(files.parse(path))
  _check_kind(label, bool(run_config.reward_model.step_ends), scores_steps)
  base = model
  if run_config.reward_model.source:  # Then it has that model's size.
    base = find_reward_model(
      run_config.reward_model.source,
      setting=f"{label}, whose config.reward_model.source",
      scores_steps=scores_steps,
      config=config,
      problem=problem,
      mesh=mesh,
    )

  def split(params: PyTree) -> PyTree:
    return critic_lib.parted_anew(params, freeze)

  return Outside(
    base.policy,
    jax.eval_shape(split, model.shapes),
    lambda: split(model.read()),
    base.width,
  )


def _check_kind(label: str, is_of_steps: bool, scores_steps: bool) -> None:
  """Raises ValueError unless a model scores what the config expects of it."""
  kinds = {True: "steps", False: "whole completions"}
  if is_of_steps != scores_steps:
    reason = "names the ends of steps" if scores_steps else "is empty"
    raise ValueError(
      f"{label}: it was trained to score {kinds[is_of_steps]}, and"
      f" {kinds[scores_steps]} are to be scored, because"
      f" config.reward_model.step_ends {reason}; change that, or name another"
      " model."
    )


def _of_checkpoint(
  name: str,
  label: str,
  scores_steps: bool,
  config: config_lib.RunConfig,
  problem: Problem,
  mesh: Mesh,
) -> Outside:
  """The reward model of a checkpoint."""
  directory = pathlib.Path(hub.local_directory(name))
  described = classifiers.described(directory)
  _check_kind(label, described.scores_steps, scores_steps)
  if problem.tokenizer.pieces():
    its_tokenizer = tokenizer.Tokenizer(directory)
    tokens.check_same(problem.tokenizer, its_tokenizer, label)
  extra = {n: getattr(config.model, n) for n in architecture.FIELDS_OF_A_RUN}
  model = architecture.TransformerConfig(**{**described.fields, **extra})
  policy_lib.check_model(model, mesh)
  policy = sharding.on_mesh(policy_lib.policy_of(model, None), mesh)
  head = classifiers.head(directory, described)
  freeze = config.reward_model.freeze

  def reward_params(params: PyTree) -> PyTree:
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
    return _place(reward_params(params), mesh)

  shapes = jax.eval_shape(
    lambda key: reward_params(policy.init(key)), jax.random.key(0)
  )
  return Outside(policy, shapes, read, model.width)


def of_phase(
  config: config_lib.RunConfig,
  name: str,
  problem: Problem,
  mesh: Mesh,
  judged_by: Collection[str],
) -> dict[str, Outside]:
  """Finds the models of a phase from outside of the run, by name.

  Args:
    judged_by: The rewards by models that completions of the phase get.
  """
  phase = config.section(name)
  find = functools.partial(
    find_outside, config=config, problem=problem, mesh=mesh
  )
  outside = {}
  for model_name, path in models.paths(phase).items():
    outside[model_name] = find(
      path,
      setting=f"config.{name}.reference_workdirs",
      storage=phase.reference_storage,
    )
  for model_name, path in models.from_outside(phase).items():
    try:
      outside[model_name] = find(path, setting=f"config.{name}.opponents")
    except FileNotFoundError as error:
      raise FileNotFoundError(
        f"{error} Opponents that are no run are {models.START!r} and"
        f" {models.SELF!r}."
      ) from error
  judge = config.judge
  if judge.model and not judge.service.url and JUDGE in judged_by:
    outside[JUDGE] = find(judge.model, setting="config.judge.model")
  scoring = config.reward_model
  sources = {}
  if scoring.source and (REWARD_MODEL in judged_by or "reward" in phase.trains):
    sources["reward"] = "source", bool(scoring.step_ends)
  if scoring.ranks(phase):
    sources["ranker"] = "ranked_by", False
  for model_name, (field, scores_steps) in sources.items():
    outside[model_name] = find_reward_model(
      getattr(scoring, field),
      setting=f"config.reward_model.{field}",
      scores_steps=scores_steps,
      config=config,
      problem=problem,
      mesh=mesh,
    )
  return outside

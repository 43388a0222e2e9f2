"""Models from outside of a run: of other runs, or Hugging Face checkpoints.

One string names either: the workdir of a run, whose last checkpoint is read
and whose architecture is that of its config; or the folder or hub name of a
checkpoint. The architecture may be another than the policy's, in size and in
family. The tokenizer must be the same, piece by piece.

What is at fault is found by `find`, which reads configs, tokenizers and shapes.
Parameters are read by `Outside.read`, where a phase begins that needs them.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from grpo_jax.data import tokenizer
from grpo_jax.models import architecture, quantization
from grpo_jax.models.hf import families, hub, weights
from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import models, workdirs
from grpo_jax.training.problem import vocabularies
from grpo_jax.training.problem.problem import Problem
from grpo_jax.training.runtime import metrics_log, paths, sharding
from grpo_jax.types import MemberState, Policy, PyTree


@dataclasses.dataclass(frozen=True)
class Outside:
  """A model that is not this run's.

  Attributes:
    policy: Of its own architecture, with as many logits as the policy of the
      run has: rows of its table that no token has are left out, and ids that it
      has no row for get the lowest of its logits.
    shapes: Of its parameters, which share nothing with those of the run.
    read: () -> its parameters, on the mesh of the run.
    width: Of its hidden states.
  """

  policy: Policy
  shapes: PyTree
  read: Callable[[], PyTree]
  width: int

  def start(self, name: str) -> Callable[[Any], PyTree]:
    """`Member.start` of a member that is read before the phase is entered."""

    def start(before):
      if name in before:
        return before[name].params
      return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.shapes)

    return start


def find(
  path: str,
  *,
  setting: str,
  config: config_lib.RunConfig,
  problem: Problem,
  mesh: Mesh,
  member: str = "policy",
  storage: str = "own",
) -> Outside:
  """The model that a setting names, before its parameters are read.

  Args:
    path: Workdir of a run, or folder or hub name of a checkpoint.
    setting: Which setting names it, for messages, as "config.rl.reference".
    config: Settings of this run. Of a checkpoint, the fields of a run (dtype,
      attention, …) are those of its `model`.
    problem: Of this run, with its tokenizer.
    mesh: Of this run.
    member: Name of the model among those of the other run.
    storage: One of `settings.STORAGE`; others than "own" are for policies.

  Raises:
    FileNotFoundError: There is no such run or checkpoint.
    ValueError: It is damaged or not supported, has no such member, or another
      tokenizer; or a size does not split over the mesh.
  """
  shown = f"{setting}={path!r}"
  try:
    folder = paths.parse(path)
    if is_checkpoint(path):
      if member != "policy":
        raise ValueError(
          f"it is a checkpoint of a language model, and no run with a"
          f" {member!r}."
        )
      found, theirs = _of_checkpoint(path, config, mesh, storage)
    else:
      found, theirs = _of_run(folder, mesh, member, storage)
  except (FileNotFoundError, ValueError) as error:
    if is_checkpoint(path) and not paths.parse(path).exists():
      # A name on the hub looks like the path of a run.
      shown += ": there is no such folder of a run, and as a checkpoint"
    raise type(error)(f"{shown}: {error}") from error
  if problem.tokenizer.pieces():
    vocabularies.check_same(problem.tokenizer, theirs(), shown)
  ours = config.model.transformer(problem.tokenizer.vocab_size).vocab_size
  policy = _with_ids(found.policy, ours)
  policy = models.only_known(policy, problem.tokenizer, ours)
  return dataclasses.replace(found, policy=policy)


def is_checkpoint(path: str) -> bool:
  """Whether a string means a Hugging Face checkpoint, and not a run."""
  folder = paths.parse(path)
  file = folder / metrics_log.CONFIG
  if file.exists():
    return "model_type" in metrics_log.read_json(file, dict)
  return not folder.exists() and bool(re.fullmatch(r"[\w.-]+/[\w.-]+", path))


def _of_run(
  workdir: paths.Path, mesh: Mesh, member: str, storage: str
) -> tuple[Outside, Callable[[], Any]]:
  """A model of another run, and what makes its tokenizer."""
  config = workdirs.settings(workdir)
  step = workdirs.last_step(workdir, config)
  saved = workdirs.shapes(workdir, config, step)
  if member not in saved:
    raise ValueError(
      f"its last checkpoint has no {member!r}, but {', '.join(sorted(saved))};"
      " name a run that has trained one."
    )
  wanted = {member: saved[member]}
  # What it shares with the policy there, as the base of adapters.
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
    params = workdirs.read(workdir, config, step, wanted, mesh)
    frozen = params["policy"]["frozen"] if shared else {}
    return _placed(complete(params[member], frozen), mesh)

  text = vocabularies.make_tokenizer(config)
  model = config.model.transformer(text.vocab_size)
  models.check_model(model, mesh)
  adapters = config.model.adapters()
  if adapters is not None and storage == "int8":
    adapters = dataclasses.replace(adapters, quantization="int8")
  policy = sharding.on_mesh(models.policy_of(model, adapters), mesh)
  if adapters is None and storage == "int8":
    policy = quantization.unpacking(policy)
  shapes = jax.eval_shape(complete, saved[member].params, shared)
  return Outside(policy, shapes, read, model.width), lambda: text


def _of_checkpoint(
  name: str, config: config_lib.RunConfig, mesh: Mesh, storage: str
) -> tuple[Outside, Callable[[], Any]]:
  """The model of a checkpoint, and what makes its tokenizer."""
  directory = hub.local_directory(name)
  fields, _ = families.from_config_json(directory)
  own = {n: getattr(config.model, n) for n in architecture.FIELDS_OF_A_RUN}
  if storage != "own":
    own["param_dtype"] = "bfloat16"
  model = architecture.TransformerConfig(**{**fields, **own})
  models.check_model(model, mesh)
  policy = sharding.on_mesh(models.policy_of(model, None), mesh)
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
  """The parameters in the form in which a frozen model is kept."""
  if storage == "own":
    return params
  if storage == "int8":
    # Before they are rounded.
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
  """The policy with so many logits, of which no token has those that differ.

  Checkpoints of a family round their tables up to different sizes.
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

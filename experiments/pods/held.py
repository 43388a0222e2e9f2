"""Counts the bytes of a device that a run holds, from shapes alone.

Nothing is downloaded for the models of configs/recipes/models.py, and no
weights are made. Three counts are exact:

- parameters, the optimizer's state and copies;
- the cache of the rollout, which holds the prompts of a batch and, at full
  length, all completions or those of `config.sampling.lanes`;
- the layers that decoding reads, of `config.sampling.weights_dtype`.

The memory that the backward pass keeps is an estimate:

    A(all layers, as configured) + A(one layer, nothing recomputed)

If layers are of two kinds, the larger one is counted.
A is the bytes that `jax.vjp` of the forward pass hands to its backward pass,
without parameters. The forward pass is that of a micro-batch, and of prompts
that its rows share. The second term is there with `remat`. A critic is run
after the policy, and is assumed to need at most the memory of the policy. The
compiler may keep more or less.

Everything is per device of `config.mesh`, whose devices need not exist (`data`
is by default the number that the other axes leave of this machine's devices).
The estimate for the backward pass counts the devices of `tensor` as one, and is
an upper bound with more of them. With `split_positions` they share this memory,
if the positions divide. Attention has the form that "auto" takes on the devices
of the mesh. If the mesh does not name devices, those of this machine are
assumed; on a CPU that form keeps a score for each pair of tokens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import types
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice, AbstractMesh

from experiments.pods import meshes
from grpo_jax.configs.recipes import models as published
from grpo_jax.models import attention, quantization
from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.models.policies import lora
from grpo_jax.ops import logprobs, masked
from grpo_jax.settings import config as config_lib
from grpo_jax.step import step
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.training.phases import (
  build,
  checkpointed,
  models,
  outside,
  reservoirs,
)
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import sharding
from grpo_jax.types import ModelState, Policy, PyTree

# Held for the whole run, while completions are sampled, while they are learnt.
_ALWAYS, _SAMPLING, _LEARNING = "always", "sampling", "learning"


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Settings that determine shapes: the model, prompt and completion slots."""

  model: TransformerConfig
  adapters: lora.LoRAConfig | None
  max_prompt_len: int
  max_new_tokens: int

  def policy(self) -> Policy:
    """Policy that is sampled from and trained."""
    return policy_lib.policy_of(self.model, self.adapters)


def sizes(config: config_lib.RunConfig) -> Sizes:
  """Sizes of a run, read without its data if possible."""
  with published.described(config) as described:
    return _sizes(described)


def _sizes(config: config_lib.RunConfig) -> Sizes:
  data = config.data
  if not data.is_made_of_ids and config.model.checkpoint:
    # The tokenizer is the checkpoint's.
    architecture = config.model.transformer(vocab_size=1)
    assert config.sampling.max_new_tokens is not None
    return Sizes(
      architecture,
      config.model.adapters(),
      _prompt_slots(config),
      config.sampling.max_new_tokens,
    )
  with contextlib.closing(problem_lib.make_problem(config)) as problem:
    return Sizes(
      config.model.transformer(problem.tokenizer.vocab_size),
      config.model.adapters(),
      problem.prompt_slots,
      problem.max_new_tokens,
    )


def _prompt_slots(config: config_lib.RunConfig) -> int:
  """Prompt slots of rows; an upper bound if the config leaves them open."""
  own = config.data.max_prompt_len
  assert own is not None  # `RunConfig` has seen to it.
  compaction = config.environment.compaction
  if compaction.context_len is None:
    return own
  return compaction.max_prompt_len or compaction.context_len


def mesh_of(
  config: config_lib.RunConfig,
  num_devices: int | None = None,
  num_slices: int = 1,
) -> AbstractMesh:
  """The mesh of a config, of devices that need not exist.

  Args:
    config: Config with the mesh.
    num_devices: Number of TPUs of all slices; None: as many devices of this
      machine's kind as the mesh takes.
    num_slices: Number of slices, which only `data` connects.

  Raises:
    ValueError: The mesh has another number of devices.
  """
  mesh, device = config.mesh, None
  if num_devices is None:
    of_copy = mesh.fsdp * mesh.expert * mesh.tensor
    data = mesh.data or max(jax.device_count() // of_copy, 1)
    num_devices = data * of_copy
  else:
    device = AbstractDevice("TPU", None, "tpu")
  sizes = meshes.whole(mesh, num_devices, num_slices)
  return AbstractMesh(
    tuple(sizes[axis] for axis in sharding.AXES),
    sharding.AXES,
    abstract_device=device,
  )


def update_plan(
  config: config_lib.RunConfig, size: Sizes, mesh: AbstractMesh
) -> UpdatePlan:
  """Plan of the last phase's update.

  Raises:
    ValueError: The rows do not split over the devices.
  """
  name = config.phases[-1]
  algorithm, _ = config.objective(name)
  build.rows(config, name, mesh)
  return build.update_plan(
    config.section(name),
    size.max_prompt_len,
    size.max_new_tokens,
    mesh,
    couples_group=algorithm.couples_group,
  )


def table(
  config: config_lib.RunConfig, mesh: AbstractMesh
) -> dict[str, tuple[str, int]]:
  """Kind of array -> (phase in which it is held, bytes per device), last phase.

  Raises:
    ValueError: The rows do not split over the devices.
  """
  size = sizes(config)
  if mesh.abstract_device is not None:  # Of another kind than those here.
    with jax.sharding.use_abstract_mesh(mesh):
      form = attention.form(size.model)
    model = dataclasses.replace(size.model, attention=form)
    size = dataclasses.replace(size, model=model)
  name = config.phases[-1]
  # Earlier phases are left out, so a reference begins here.
  phase = config.section(name)
  if not phase.set_reference:
    phase = dataclasses.replace(phase, set_reference=True)
  policy = size.policy()
  algorithm, objective = config.objective(name)
  plan = update_plan(config, size, mesh)
  teachers = _references(config, name, size)
  made = build.Models(
    *(config, phase, policy, algorithm, objective, plan), outside=teachers
  )
  parts = step.Phase(
    policy=policy,
    algorithm=algorithm,
    config=objective,
    plan=plan,
    models=made.models(),
    losses=made.losses(),
  )
  start = checkpointed.abstract_start(parts.policy, config.seed)
  if (model := made.reward_model()) is not None:
    # So does a reward model, and what an earlier phase has kept for it.
    params = jax.eval_shape(model.init, start.params["policy"])
    start = start.with_models(reward=ModelState(params))
  start = dataclasses.replace(start, reservoir=_kept_of_old(config, size, mesh))
  state = jax.eval_shape(
    functools.partial(step.enter_phase, phase=parts, index=0), start
  )
  places = sharding.of_state(mesh, state)
  models = {}
  for key, model in state.models.items():
    place = places.models[key]
    models |= {
      f"{key}": (_ALWAYS, _bytes(model.params, place.params)),
      f"{key}, optimizer": (_ALWAYS, _bytes(model.opt_state, place.opt_state)),
      f"{key}, average": (_ALWAYS, _bytes(model.average, place.average)),
    }
  names = [key for loss in parts.losses[:1] for key in loss.trains]
  trained = {key: state.params[key]["trained"] for key in names}
  place = {key: places.params[key]["trained"] for key in names}
  num_shards = sharding.num_row_shards(mesh)
  tensor = mesh.shape["tensor"]
  micro = plan.micro_batch_size
  num_micro = phase.num_rows // phase.num_minibatches // micro
  rows = -(-micro // num_shards)
  prompts = -(-num_micro * rows // plan.rows_of_prompt)
  of_prompts = 0
  if plan.shares_prompts:
    params = _abstract_params(parts.policy)
    shared = jax.eval_shape(
      parts.policy.prefix, params, *_abstract_rows(size, prompts, rows)[:2]
    )
    of_prompts = _bytes(shared) + _bytes(jax.eval_shape(masked.wide, shared))
  chunk, head_gradient = _logits(
    size, state.params["policy"], micro, plan.chunk_bytes
  )
  found = {
    **models,
    "old completions": (_ALWAYS, _bytes(state.reservoir, places.reservoir)),
    "gradients": (_LEARNING, _bytes(trained, place)),
    "gradients from the prompts": (
      _LEARNING,
      _bytes(trained, place) * (num_micro == 1 and of_prompts > 0),
    ),
    "sum over micro-batches, float32": (
      _LEARNING,
      _bytes(jax.eval_shape(masked.wide, trained), place) * (num_micro > 1),
    ),
    "gradient of the head, float32": (_LEARNING, -(-head_gradient // tensor)),
    "states of the reference": (
      _LEARNING,
      _states(size, phase, teachers) // num_shards
      if "ref_kl" in made.required
      else 0,
    ),
    "a chunk of logits": (_LEARNING, -(-chunk // mesh.size)),
    "prompts, and their gradient": (_LEARNING, of_prompts),
    "kept for the backward pass": (
      _LEARNING,
      _kept(size, min(prompts, rows), rows, of_prompts > 0, tensor),
    ),
  }
  if phase.samples:
    sampler = quantization.rounding(policy, config.sampling.weights_dtype)
    layers = jax.eval_shape(sampler.weights, state.params["policy"])
    layers = {"layers": layers["trained"]["layers"]}
    places_of_layers = sharding.of_weights(mesh, layers)
    found["layers of the sampler"] = (
      _SAMPLING,
      _bytes(layers, places_of_layers),
    )
    lanes = config.sampling.lanes
    # Latent vectors are those of all heads.
    parts = 1 if size.model.latent_width else tensor
    found["cache of the rollout"] = (
      _SAMPLING,
      -(
        -_cache(
          size,
          -(-phase.num_prompts // num_shards),
          -(-phase.num_rows // num_shards),
          lanes and -(-lanes // num_shards),
        )
        // parts
      ),
    )
  return {kind: row for kind, row in found.items() if row[1]}


def _references(
  config: config_lib.RunConfig, name: str, size: Sizes
) -> dict[str, models.Outside]:
  """References of a phase from outside the run, by model."""
  ids: Any = types.SimpleNamespace(
    vocab_size=size.model.vocab_size, pieces=dict
  )
  problem: Any = types.SimpleNamespace(tokenizer=ids)
  with published.described(config) as described:
    phase = described.section(name)
    return {
      member: outside.find_outside(
        path,
        setting=f"config.{name}.reference_workdirs",
        config=described,
        problem=problem,
        mesh=sharding.make_mesh(1),
        storage=phase.reference_storage,
      )
      for member, path in models.paths(phase).items()
    }


def _states(
  size: Sizes,
  phase: config_lib.PhaseConfig,
  teachers: Mapping[str, models.Outside],
) -> int:
  """Bytes of the states behind the logits of the reference."""
  widths = [model.width for model in teachers.values()] or [size.model.width]
  width = sum(widths) if phase.reference_mixture else max(widths)
  itemsize = jnp.dtype(size.model.dtype).itemsize
  return phase.num_rows * size.max_new_tokens * width * itemsize


def _kept_of_old(
  config: config_lib.RunConfig, size: Sizes, mesh: AbstractMesh
) -> PyTree:
  """Shapes of the rows that a reward model keeps; None without any."""
  for name in config.phases:
    found = reservoirs.make(
      config,
      name,
      size.max_prompt_len,
      size.max_new_tokens,
      sharding.num_row_shards(mesh),
    )
    if found is not None:
      return jax.eval_shape(functools.partial(found.enter, None))
  return None


def _bytes(tree: PyTree, places: PyTree = None) -> int:
  """Bytes of all arrays, or of a device's part if shardings are given."""
  if places is None:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
  sizes = jax.tree.map(
    lambda x, place: math.prod(place.shard_shape(x.shape)) * x.dtype.itemsize,
    tree,
    places,
  )
  return sum(jax.tree.leaves(sizes))


def _abstract_rows(size: Sizes, num_prompts: int, num_rows: int):
  """Shapes of prompts, completions, their masks, and the prompt of each row."""
  shape = jax.ShapeDtypeStruct
  prompts = num_prompts, size.max_prompt_len
  completions = num_rows, size.max_new_tokens
  return (
    shape(prompts, jnp.int32),
    shape(prompts, jnp.bool),
    shape(completions, jnp.int32),
    shape(completions, jnp.bool),
    shape((num_rows,), jnp.int32),
  )


def _abstract_params(policy: Policy) -> PyTree:
  return jax.eval_shape(policy.init, jax.random.key(0))


def _cache(
  size: Sizes, num_prompts: int, num_rows: int, num_lanes: int | None = None
) -> int:
  """Bytes of the keys and values of prompts, and of completions at length T.

  Args:
    size: The size of the policy and of the slots.
    num_prompts: Number of prompts.
    num_rows: Number of completions of all prompts.
    num_lanes: Number of completions decoded at once; None for all. With fewer
      than all, each has a copy of its prompt.
  """
  policy = size.policy()
  prompts, mask, *_ = _abstract_rows(size, num_prompts, num_rows)
  params = _abstract_params(policy)
  _, prefix, _ = jax.eval_shape(policy.prefill, params, prompts, mask)
  lanes = min(num_lanes or num_rows, num_rows)
  of_prompts, of_lanes = _bytes(prefix.layers), prefix
  if lanes < num_rows:
    of_lanes = jax.eval_shape(
      lambda tree: jax.tree.map(lambda x: x[jnp.zeros(lanes, int)], tree),
      prefix,
    )
    of_prompts += _bytes(of_lanes.layers)
  of_completions = jax.eval_shape(
    functools.partial(policy.allocate, lanes, size.max_new_tokens), of_lanes
  )
  return of_prompts + _bytes(of_completions)


def _logits(
  size: Sizes, params: PyTree, num_rows: int, chunk_bytes: int
) -> tuple[int, int]:
  """Bytes of a chunk of logits of a micro-batch, and of the head's gradient."""
  policy = size.policy()

  def chunk(params, h):
    head = functools.partial(policy.head, params)
    return head(h[:, : logprobs.chunk_size(head, h, chunk_bytes)])

  shape = num_rows, size.max_new_tokens, size.model.width
  h = jax.ShapeDtypeStruct(shape, size.model.dtype)
  logits = jax.eval_shape(chunk, params, h)
  itemsize = logits.dtype.itemsize
  kernel = size.model.width * logits.shape[-1] * itemsize
  return logits.size * itemsize, 0 if size.adapters else kernel


def _kept(
  size: Sizes,
  num_prompts: int,
  num_rows: int,
  shares_prompts: bool,
  tensor: int,
) -> int:
  """Bytes that a micro-batch keeps for its backward pass; see above.

  Args:
    size: The size of the policy and of the slots.
    num_prompts: Number of prompts that are run at a time, if rows share them.
    num_rows: Number of completions that are run at a time.
    shares_prompts: Whether rows share prompts.
    tensor: Number of devices that share positions, if the model splits them.
  """

  def residuals(model: TransformerConfig) -> int:
    policy = policy_lib.policy_of(model, size.adapters)
    params = _abstract_params(policy)
    ours = {(x.shape, x.dtype) for x in jax.tree.leaves(params)}

    def kept(function, slots, *arguments) -> int:
      def pull_back(trained, frozen, *arguments):
        def of_trained(trained):
          params = {"trained": trained, "frozen": frozen}
          return function(params, *arguments)

        return jax.vjp(of_trained, trained)[1]

      found = jax.eval_shape(
        pull_back, params["trained"], params["frozen"], *arguments
      )
      found = [
        x for x in jax.tree.leaves(found) if (x.shape, x.dtype) not in ours
      ]
      return _bytes(found) - _shared(found, model, slots, tensor)

    def hidden(params, prefix, *rows):
      return policy.hidden(params, *rows, prefix=prefix)[0]

    rows = _abstract_rows(size, num_rows, num_rows)
    slots = size.max_prompt_len - 1  # The last one is run with each row.
    if not shares_prompts:
      return kept(hidden, slots + size.max_new_tokens, None, *rows)
    prefix = jax.eval_shape(policy.prefix, params, *rows[:2])
    prompts = _abstract_rows(size, num_prompts, num_rows)[:2]
    return max(
      kept(hidden, size.max_new_tokens, prefix, *rows),
      kept(policy.prefix, slots, *prompts),
    )

  total = residuals(size.model)
  if size.model.remat == "none":
    return total
  layers = _layers(size.model)
  of_layer = max(map(residuals, layers))
  if size.model.delta is not None:
    # A layer with the delta rule stands before one with attention.
    rule = dataclasses.replace(size.model.delta, period=2)
    both = dataclasses.replace(layers[0], num_layers=2, delta=rule)
    of_layer = max(of_layer, residuals(both) - of_layer)
  return total + of_layer


def _layers(model: TransformerConfig) -> list[TransformerConfig]:
  """Models of a layer of each kind with attention; Gemma 4's go in pairs."""
  of = functools.partial(
    *(dataclasses.replace, model),
    num_layers=1,
    num_dense_layers=0,
    sliding_layers=(),
    rotary_layers=(),
    delta=None,
    remat="none",
  )
  if (llama4 := model.llama4) is not None:
    return [of(llama4=dataclasses.replace(llama4, dense_layers=()))]
  if (gemma4 := model.gemma4) is not None:
    own = dataclasses.replace(gemma4, num_shared_layers=0)
    return [of(gemma4=own, num_layers=2, sliding_layers=(True, False))]
  if (sizes := model.deepseek4) is not None:
    return [
      of(
        deepseek4=dataclasses.replace(sizes, kinds=(kind,), num_hash_layers=0),
        sliding_layers=(kind == "sliding",),
        router_bias=True,
      )
      for kind in sorted({*sizes.kinds})
    ]
  return [of()]


def _shared(
  found: Sequence[jax.ShapeDtypeStruct],
  model: TransformerConfig,
  slots: int,
  tensor: int,
) -> int:
  """Bytes that a device need not keep, because others have the positions.

  Outputs of layers are shared by positions. Arrays between two layers are
  shared by heads, by the width of the MLP or by positions.

  Args:
    found: The arrays that a device keeps for the backward pass.
    model: Model, which sets whether positions are shared.
    slots: Number of positions of the pass.
    tensor: Number of devices that share them.
  """
  if not model.split_positions or slots % tensor:
    return 0
  sizes = [_bytes(x) for x in found if slots in x.shape]
  return sum(size - size // tensor for size in sizes)


def totals(found: Mapping[str, tuple[str, int]]) -> dict[str, int]:
  """Bytes of a device during sampling, and during learning.

  Args:
    found: Result of `table`.
  """
  return {
    what: sum(size for at, size in found.values() if at in (_ALWAYS, when))
    for when, what in (
      (_SAMPLING, "together, while sampling"),
      (_LEARNING, "together, while learning"),
    )
  }

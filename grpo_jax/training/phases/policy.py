"""The models that a config describes, and states with their parameters."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from grpo_jax.data import encoder
from grpo_jax.data.sources import Record
from grpo_jax.models import architecture, quantization, transformer
from grpo_jax.settings import config as config_lib
from grpo_jax.training.problem.problem import Arrays, Problem
from grpo_jax.training.runtime import jit, sharding
from grpo_jax.types import ModelState, Policy, PyTree, TrainState

if TYPE_CHECKING:
  from grpo_jax.models.policies import lora


def make_policy(
  config: config_lib.RunConfig, problem: Problem, mesh: Mesh
) -> Policy:
  """Makes the model for the problem's vocabulary, split over the mesh.

  It never writes an id that the tokenizer does not have (`only_known`).

  Raises:
    ValueError: A size of the model does not split over the mesh, or the model
      does not fit the images or the lengths of the problem.
  """
  model = config.model.transformer(problem.tokenizer.vocab_size)
  check_model(model, mesh)
  check_images(model, problem, "config.model")
  longest = problem.max_prompt_len + problem.max_new_tokens
  is_short = model.rope_scaling == "longrope" and not model.long_context
  if is_short and longest > model.rope_original_len:
    raise ValueError(
      f"config: prompts and completions have up to {longest} tokens, and the"
      f" model's positions are scaled for {model.rope_original_len}; set"
      " config.model.long_context=True, which scales those of all sequences"
      " for long ones, or lower config.data.max_prompt_len or"
      " config.sampling.max_new_tokens."
    )
  adapters = config.model.adapters()
  if adapters is not None:
    alpha = jit.number("model.lora_alpha", adapters.alpha)
    adapters = dataclasses.replace(adapters, alpha=alpha)
  policy = sharding.on_mesh(policy_of(model, adapters), mesh)
  return only_known(policy, problem.tokenizer, model.vocab_size)


def only_known(policy: Policy, tokenizer: Any, num_ids: int) -> Policy:
  """The policy with logits of -inf for ids that the tokenizer does not have.

  Tables of checkpoints are often rounded up, and a vocabulary may have gaps.
  The same ids are left out of draws and of log-probs, entropies and
  divergences, because all of them read `head`. If there is a token for each id,
  the policy stays as it is.

  Args:
    policy: A policy with `num_ids` logits.
    tokenizer: Tokenizer, whose `pieces` are the tokens; empty: they are
      unknown, and the policy stays as it is.
    num_ids: V.
  """
  has_token = np.zeros(num_ids, bool)
  has_token[[id_ for id_ in tokenizer.pieces() if id_ < num_ids]] = True
  if has_token.all() or not has_token.any():
    return policy

  def head(params, h, *more):
    logits = policy.head(params, h, *more)
    return jnp.where(has_token, logits, -jnp.inf)

  return dataclasses.replace(policy, head=head)


def check_images(
  model: architecture.TransformerConfig, problem: Problem, where: str
) -> None:
  """Raises ValueError unless a model can read the images of the prompts."""
  shapes = problem.image_shapes
  if shapes is None:
    return
  if model.tower is None:
    raise ValueError(
      f"{where}: the model has no vision tower, and the prompts show images;"
      " set config.model.tower.kind, or name a checkpoint that has one."
    )
  num_places, num_values = shapes.patches.shape
  of_token = model.tower.patches_per_token
  if num_values != model.tower.patch_width or num_places % of_token:
    raise ValueError(
      f"{where}: prompts show {num_places} patches of {num_values} numbers, and"
      f" the model's tower reads patches of {model.tower.patch_width} numbers,"
      f" {of_token} for each token; needs the same numbers, and a multiple"
      " of these patches. Change the sizes of config.model.tower, or of the"
      " images."
    )
  if (image_encoder := problem.encoder.image_encoder) is not None:
    _check_image_encoder(model, image_encoder, problem, where)
  elif len(problem.train):  # A problem that is only compiled has no records.
    _check_placeholders(model, problem.train[0], where)


def _check_placeholders(
  model: architecture.TransformerConfig, first: Record, where: str
) -> None:
  """Raises ValueError unless a task's first prompt has room for its images."""
  assert model.tower is not None  # It was looked at before.
  of_token = model.tower.patches_per_token
  size = int((np.asarray(first["images"].image) >= 0).sum()) // of_token
  num_places = int((np.asarray(first["prompt"]) == model.image_token).sum())
  if num_places != size:
    raise ValueError(
      f"{where}: the images of the first prompt are {size} tokens, and it has"
      f" {num_places} placeholders with the id {model.image_token}; set"
      " config.model.tower.image_token to the id that stands for images."
    )


def _check_image_encoder(
  model: architecture.TransformerConfig,
  image_encoder: encoder.ImageEncoder,
  problem: Problem,
  where: str,
) -> None:
  """Raises ValueError unless a model reads the output of the image processor.

  Args:
    image_encoder: Encoding of images in prompts.
  """
  assert model.tower is not None  # It was looked at before.
  token = image_encoder.processor.image_token
  (id_,) = problem.tokenizer.encode(token)
  if id_ != model.image_token:
    raise ValueError(
      f"{where}: the placeholder of images has the id {model.image_token}, and"
      f" {token!r} has the id {id_} in the tokenizer; set"
      " config.model.tower.image_token to it, or config.data.tokenizer to that"
      " of the checkpoint."
    )
  if image_encoder.processor.merge**2 != model.tower.patches_per_token:
    raise ValueError(
      f"{where}: the tower makes a token of {model.tower.patches_per_token}"
      f" patches, and the processor of config.data.images of"
      f" {image_encoder.processor.merge} x {image_encoder.processor.merge}; set"
      " config.data.image_processor to the folder of the same family."
    )


def check_model(model: architecture.TransformerConfig, mesh: Mesh) -> None:
  """Raises ValueError if a size of the model does not split over the mesh."""
  sizes = {
    ("tensor",): {
      "num_kv_heads": model.num_kv_heads,
      "vocab_size": model.vocab_size,
      **{
        name: getattr(model, name)
        for name, present in (
          ("expert_width", model.num_experts),
          ("shared_width", model.shared_width),
          (
            "mlp_width",
            not model.num_experts or model.num_dense_layers or model.gemma4,
          ),
        )
        if present
      },
      **(
        {"delta.num_key_heads": model.delta.num_key_heads}
        if model.delta
        else {}
      ),
    },
    ("expert",): {"num_experts": model.num_experts},
    ("fsdp", "expert"): {
      "width": model.width,
      **{
        name: getattr(model, name)
        for name in ("latent_width", "query_latent_width")
        if getattr(model, name)
      },
    },
  }
  if (tower := model.tower) is not None:
    for axes, names in {
      ("tensor",): ("num_heads", "mlp_width"),
      ("fsdp", "expert"): ("width",),
    }.items():
      sizes[axes] |= {f"tower's {n}": getattr(tower, n) for n in names}
  if (gemma4 := model.gemma4) is not None:
    sizes["tensor",] |= {
      f"gemma4's {name}": getattr(gemma4, name)
      for name in ("full_kv_heads", "shared_mlp_width", "input_width")
      if getattr(gemma4, name)
    }
  if (deepseek4 := model.deepseek4) is not None:
    # Of the kernel [G, I, d] behind attention, axis I; and vectors of queries.
    inputs = model.num_heads * model.head_width // deepseek4.num_groups
    sizes["fsdp", "expert"] |= {
      "channels of a group of heads": inputs,
      "deepseek4's query_width": deepseek4.query_width,
    }
  for axes, fields in sizes.items():
    parts = math.prod(mesh.shape[axis] for axis in axes)
    grid = " × ".join(f"{axis} {mesh.shape[axis]}" for axis in axes)
    settings = " or ".join(f"config.mesh.{axis}" for axis in axes)
    for name, size in fields.items():
      if size % parts or (size == 0 and parts > 1):
        raise ValueError(
          f"config.mesh: the model's {name} {size} does not split over {grid}:"
          f" {size} / {parts} is not a whole number"
          f"{' of at least 1' if not size else ''}. Change {settings}."
        )


def policy_of(
  model: architecture.TransformerConfig, adapters: lora.LoRAConfig | None
) -> Policy:
  """Makes a transformer, with adapters if there are any."""
  policy = transformer.transformer_policy(model)
  if adapters is None:
    return policy
  from grpo_jax.models.policies import lora

  return lora.lora_policy(policy, adapters)


def sampling_policy(policy: Policy, kind: str, mesh: Mesh) -> Policy:
  """The policy with the weights that rollouts of training read.

  Args:
    kind: `config.sampling.weights_dtype`.
    mesh: Mesh of the run; codes and scales lie where the kernels do.
  """

  def place(codes):
    if mesh.size == 1:
      return codes
    return lax.with_sharding_constraint(codes, sharding.of_params(mesh, codes))

  return quantization.rounding(policy, kind, place)


def state_of(params: PyTree, policy: Policy, seed: int) -> TrainState:
  """Makes a state before any phase, with these parameters of the policy."""
  # Only keys are made: a random model of that size would take memory.
  empty = dataclasses.replace(policy, init=lambda key: {})
  return initial_state(empty, seed).with_params(policy=params)


def initial_state(policy: Policy, seed: int) -> TrainState:
  """Makes a state before any phase: parameters and keys only."""
  key = jax.random.key(seed)
  init_key, run_key = jax.random.split(key)
  return TrainState(
    step=jnp.int32(0),
    phase=jnp.int32(0),
    phase_step=jnp.int32(0),
    key=run_key,
    models={"policy": ModelState(jax.jit(policy.init)(init_key))},
    algorithm_state={},
  )


def evaluation_params(model: ModelState) -> PyTree:
  """The parameters of a model for evaluation: the average if one is kept."""
  if model.average is None:
    return model.params
  trained = jax.tree.map(
    lambda average, leaf: average.astype(leaf.dtype),
    model.average,
    model.params["trained"],
  )
  return {**model.params, "trained": trained}


def hints(
  config: config_lib.RunConfig, problem: Problem, name: str
) -> Arrays | None:
  """Returns (record) -> hints for corrections; None without corrections."""
  if not config.section(name).correction.corrects:
    return None
  from grpo_jax.training.phases import corrections

  return corrections.make_hints(config, problem, name).arrays

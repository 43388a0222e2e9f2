"""A decoder-only transformer as a `Policy`; model families are its switches.

The transformer has RMSNorm or LayerNorm, rotary or learned positions,
grouped-query attention, and an MLP or a mixture of experts. The switches are in
`architecture.py`: places of the norms, caps, windows, scaling of positions.
`hf/families.py` sets them for each family. `blocks.py` has one block. The
layers are one stacked parameter tree: the training pass scans over the stack,
so that one layer is compiled once; the decode step unrolls the layers in Python
(see `_weights`). Layers of several kinds, such as those with the gated delta
rule (`delta.py`), are in stacks of their own (`stacks.py`).

`P` prompts, `B` rows, `S` prompt and `T` completion slots, `L = S + T`, `D`
width, `H` query heads, `C` key/value heads, `R = H / C` queries per key, `K`
head width; `E` experts of width `F`, of which a token takes `k`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.models import (
  attention,
  blocks,
  delta,
  mesh,
  paged,
  stacks,
  vision_inputs,
)
from grpo_jax.models.architecture import Prefix, TransformerConfig
from grpo_jax.models.blocks import Block, RMSNorm, RouterInputs
from grpo_jax.types import Policy, PyTree, RouterOutputs

# Kernels whose results "dots" keeps, as it keeps products with weights:
# attention costs as much to recompute, and more in long sequences.
_KERNELS = ("pallas_call", "dot_product_attention_fwd")


def _products(primitive, *args, **params) -> bool:
  """Returns True if "dots" keeps the results of a primitive."""
  dots = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
  name = primitive.name.removesuffix("_wrapper")
  return name in _KERNELS or dots(primitive, *args, **params)


# Results of a block that are kept for the backward pass. Temporary MiB of a
# gradient with 4 layers, width 256, MLP 768, 4 heads, 64 rows of 175 tokens,
# float32: none 1791, dots 715, full 458.
_REMAT = {
  "none": jax.checkpoint_policies.everything_saveable,
  "dots": _products,
  "full": jax.checkpoint_policies.nothing_saveable,
}


def _deepseek4() -> Any:
  """The module of DeepSeek-V4's layers; only its models import it."""
  from grpo_jax.models import deepseek4

  return deepseek4


def _gemma4() -> Any:
  """The module of Gemma 4's layers; only its models import it."""
  from grpo_jax.models import gemma4

  return gemma4


def _indexer() -> Any:
  """The module of indexers; only models with indexers import it."""
  from grpo_jax.models import indexer

  return indexer


def _rows(config, table, tokens, mix):
  """Rows [B, L, D] of a table, of tokens [B, L] or of what is mixed."""
  # Masked slots may hold any number: indexing clamps it, and no token attends
  # to a masked slot.
  if mix is None:
    return table[tokens].astype(config.dtype)
  ids, weights = mix  # [B, L, k] each.
  wide = jnp.promote_types(config.dtype, jnp.float32)
  rows = table[ids].astype(config.dtype).astype(wide)  # [B, L, k, D]
  # A weight of 1 gives the bits of the row itself.
  return (rows * weights[..., None]).sum(axis=-2).astype(config.dtype)


def _embed(config, trained, tokens, mix=None, positions=None):
  """Embeddings [B, L, D] of tokens [B, L] at positions [B, L].

  In DeepSeek-V4 all streams [B, L, n, D] of a token are its embedding.
  """
  x = _rows(config, trained["embed"]["embedding"], tokens, mix)
  if config.embedding_scale != 1:
    x = x * jnp.asarray(config.embedding_scale, config.dtype)
  if config.embedding_norm:
    x = RMSNorm(blocks.without_scale(config)).apply({}, x)
  if config.learned_positions:
    x = x + trained["places"]["embedding"][positions].astype(config.dtype)
  if config.deepseek4 is not None:
    x = jnp.repeat(x[..., None, :], config.deepseek4.num_streams, axis=-2)
  return x


def _of_layers(config, params, x, tokens, mix=None):
  """Gemma 4's inputs of the layers [layers, B, L, w] and scales [layers, 1]."""
  if config.gemma4 is None:
    return None
  inputs = params["trained"].get("layer_inputs")
  if inputs is not None:
    rows = _rows(config, inputs["embed"]["embedding"], tokens, mix)
    inputs = _gemma4().inputs_of_layers(config, inputs, x, rows)
  return inputs, params["frozen"]["layer_scale"]


def _check_length(config, num_slots):
  """Raises ValueError if sequences are longer than the table of positions."""
  if 0 < config.learned_positions < num_slots:
    raise ValueError(
      f"transformer: sequences have {num_slots} slots, and the model has"
      f" {config.learned_positions} learned positions; make prompts and"
      " completions shorter (config.data.max_prompt_len,"
      " config.sampling.max_new_tokens)."
    )


def _remat(config, layer):
  """The function of a layer with the checkpointing of `config.remat`."""
  if config.remat == "none":
    return layer
  policy = _REMAT[config.remat]
  return jax.checkpoint(layer, prevent_cse=False, policy=policy)


def _forward(
  config,
  params,
  tokens,
  mask,
  *,
  hold=None,
  choices=None,
  prefix=None,
  mix=None,
  vision=None,
):
  """Runs the stack on tokens [B, L], the last L of M slots.

  Args:
    config: The transformer's config.
    params: Parameters, stacked over layers.
    tokens: Tokens [B, L].
    mask: True on the slots [B, M] that hold a token.
    hold: (keys, values) -> the cache of a layer; None for no cache.
    choices: As `_choices` returns them; None for the best ones.
    prefix: Keys and values in the first M - L slots, stacked over layers; None
      if M = L.
    mix: Ids and weights, each [B, L, k], of the rows of the embedding table
      that are read instead of tokens; None for tokens.
    vision: Features of images, which are read instead of placeholders; or None.

  Returns:
    The residual stream [B, L, D]; hold(keys, values), stacked over layers, or
    None; the router's probabilities and choices, and the indexer's `Choice`,
    each stacked over layers or None.
  """
  num_before = mask.shape[1] - tokens.shape[1]
  _check_length(config, mask.shape[1])
  positions = _positions(mask)  # [B, M]
  attends = _over_sequences(config, mask, positions, num_before)
  own = turned = positions[:, num_before:]
  if vision is not None and vision.positions is not None:
    turned = vision.positions
  ropes = _ropes(config, turned)

  def shared(x):
    return mesh.share_positions(x) if config.split_positions else x

  def layer(name, carry, inputs):
    x, shared_kv = carry
    (params, before), (slides, turns, number, of_layer), router = inputs
    if name == "linear_layers":
      x, state, routed = _recur(
        config, params, x, mask[:, num_before:], router, before
      )
      return (shared(x), shared_kv), (hold and state, routed, None)
    rope = _rope_of(config, name, ropes, slides)
    rope = rope if turns is None else _where(turns, rope)
    run = x, rope, attends[name](slides), router
    x, kv, routed, choice, shared_kv = _attend(
      config, name, params, run, before, of_layer, shared_kv
    )
    if choice is not None and hold is None:
      choice = choice._replace(ids=None)  # Large, and read by no update.
    x = shared(vision_inputs.add(x, vision, number))
    return (x, shared_kv), (hold and kv and hold(*kv), routed, choice)

  def of_stack(name, carry, entries):
    router = _router(*(entries[x] for x in ("choice", "bias", "table", "slot")))
    inputs = entries[name], entries["of_layers"], router
    return _remat(config, functools.partial(layer, name))(carry, inputs)

  x = _embed(config, params["trained"], tokens, mix, own)
  x = shared(vision_inputs.put(x, vision))
  count = config.num_layers
  of_layers = (
    jnp.array([config.slides(i) for i in range(count)]),
    jnp.array(config.rotary_layers) if config.rotary_layers else None,
    None if vision is None else jnp.arange(count),
    _of_layers(config, params, x, tokens, mix),
  )
  every = (True,) * count
  (x, _), collected = stacks.scan(
    config.stacks,
    of_stack,
    (x, _nothing_read(config, mask)),
    {
      **{
        name: stacks.Stacked(
          (params["trained"][name], prefix and prefix[name]), has
        )
        for name, has in _members(config).items()
      },
      "of_layers": stacks.Stacked(of_layers, every),
      **_of_routers(config, params["frozen"], tokens, choices),
    },
  )
  cache = {name: collected(0, has) for name, has in _members(config).items()}
  records = collected(1, _with_experts(config)), collected(2, every)
  return x, cache if hold else None, *records


def _recur(config, params, x, mask, router, before):
  """Runs a layer with the gated delta rule from the states `before`."""
  outputs: Any = Block(config, is_linear=True).apply(
    {"params": params}, x, mask, router, before, method="recur"
  )
  return outputs


def _attend(config, name, params, run, before, of_layer, shared_kv):
  """Runs a layer with attention; layers of Gemma 4 share `shared_kv`."""
  of_block, variables = config.of_stack(name), {"params": params}
  outputs: Any
  if config.gemma4 is None:
    outputs = _block(of_block, name).apply(variables, *run, before)
    return *outputs, shared_kv
  source = name.removeprefix("shared_")
  before = before if source == name else shared_kv[source]
  block = _gemma4().Gemma4Block(of_block, name)
  *outputs, both = block.apply(variables, *run, before, of_layer)
  return (
    *outputs,
    None,
    {k: both if k == source else v for k, v in shared_kv.items()},
  )


def _block(config, name) -> Any:
  """The block of a stack of layers with attention, but for Gemma 4's."""
  if config.deepseek4 is None:
    return Block(config)
  kind = name.removeprefix("hash_").removesuffix("_layers")
  return _deepseek4().Deepseek4Block(config, kind)


def _over_sequences(config, mask, positions, num_before):
  """Attention of the layers of each stack, as `attention.over_sequences`."""
  if config.deepseek4 is not None:
    see = _deepseek4().over_sequences(config, mask, positions, num_before)
    return dict.fromkeys(config.stacks, lambda slides: see)
  if config.indexer is not None:
    attend = _indexer().over_sequences(config, mask, num_before)
    return dict.fromkeys(config.stacks, lambda slides: attend)
  run = functools.partial(
    attention.over_sequences,
    mask=mask,
    positions=positions,
    num_before=num_before,
  )
  if config.gemma4 is None:
    return dict.fromkeys(config.stacks, run(config))
  return {name: run(config.of_stack(name)) for name in {*config.stacks}}


def _choices(config, experts, tokens):
  """Joins the choices of a model to one array: `Rollout.routing`.

  Args:
    config: The transformer's config.
    experts: Experts [layers with experts, ..., k], or None.
    tokens: Tokens that the indexers chose [layers, ..., top_k], or None.

  Returns:
    The experts without an indexer. With one, experts and then tokens along the
    last axis for each layer, with zeros for layers without experts. None if
    nothing is chosen.
  """
  if tokens is None or experts is None:
    return experts if tokens is None else tokens
  dense = [(config.num_dense_layers, 0)] + [(0, 0)] * (experts.ndim - 1)
  return jnp.concatenate([jnp.pad(experts, dense), tokens], axis=-1)


def _parts(config, choices):
  """The experts and tokens of which `_choices` made an array."""
  if choices is None or config.indexer is None:
    return choices, None
  count = config.experts_per_token if config.num_experts else 0
  experts, tokens = jnp.split(choices, [count], axis=-1)
  return experts[config.num_dense_layers :] if count else None, tokens


def _nothing_read(config, mask):
  """Room for the keys and values of all M slots that shared layers read."""
  if config.gemma4 is None or not config.gemma4.num_shared_layers:
    return {}
  num_rows, num_slots = mask.shape
  room = {}
  for name in ("layers", "full_layers"):
    of_block = config.of_stack(name)
    heads, width = of_block.num_kv_heads, of_block.head_width
    shapes = (heads, width, num_slots), (heads, num_slots, width)
    room[name] = tuple(
      jnp.zeros((num_rows, *shape), config.dtype) for shape in shapes
    )
  return room


def _of_routers(config, frozen, tokens, choices):
  """Inputs of `_router` for tokens [B, L], stacked over layers."""
  choices, slots = _parts(config, choices)
  bias, table = frozen.get("router_bias"), _of_table(frozen, tokens)
  return {
    "choice": stacks.Stacked(choices, _with_experts(config)),
    "bias": stacks.Stacked(bias, _with_biases(config)),
    "table": stacks.Stacked(table, _with_tables(config)),
    "slot": stacks.Stacked(slots, (True,) * config.num_layers),
  }


def _of_table(frozen, tokens):
  """Experts [layers with tables, B, L, k] of token ids [B, L], or None."""
  table = frozen.get("router_table")
  return None if table is None else table[:, tokens]


def _router(choices, bias, table, slots=None):
  """Inputs of a layer's router; `choices` go before a table."""
  return RouterInputs(table if choices is None else choices, bias, slots)


def _members(config):
  """Flags of the layers that are in a stack, for each stack by name."""
  names = config.stacks
  return {name: tuple(x == name for x in names) for name in sorted({*names})}


def _with_experts(config):
  """Flags of the layers that have experts."""
  return tuple(config.of_stack(x).num_experts > 0 for x in config.stacks)


def _with_tables(config):
  """Flags of the layers in which token ids choose the experts."""
  return tuple(map(config.has_table, range(config.num_layers)))


def _with_biases(config):
  """Flags of the layers whose routers may have biases."""
  pairs = zip(_with_experts(config), _with_tables(config), strict=True)
  return tuple(has and not is_fixed for has, is_fixed in pairs)


def _positions(mask):  # [B, L] bool -> [B, L]
  """Number of tokens before each token; left padding has position 0."""
  return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


def _ropes(config, positions):  # [B, L]
  """Cosines and sines for sliding layers, and for layers that do not slide."""
  if config.gemma4 is not None:
    both = map(config.of_stack, ("layers", "full_layers"))
    near, far = (blocks.rotary(of_block, positions) for of_block in both)
    return near, far
  far = blocks.rotary(config, positions)
  if config.sliding_window is None or config.local_rope_theta is None:
    return far, far
  local = dataclasses.replace(
    config,
    rope_theta=config.local_rope_theta,
    rope_scaling="none",
    rope_amplitude=1.0,
  )
  return blocks.rotary(local, positions), far


def _rope_of(config, name, ropes, slides):
  """Cosines and sines of a layer that slides, or not, in a stack."""
  if config.gemma4 is not None:  # They have two widths.
    return ropes[name.endswith("full_layers")]
  return jax.tree.map(
    lambda near, far: near if near is far else jnp.where(slides, near, far),
    *ropes,
  )


def _where(turns, rope):
  """Cosines and sines of a layer; those of 0 if positions do not turn it."""
  cos, sin, *others = rope
  if len(others) == 2:  # Llama 4's.
    others[1] = turns
  return jnp.where(turns, cos, 1), jnp.where(turns, sin, 0), *others


def _final_norm(config, trained, x):
  if config.deepseek4 is not None:  # [..., n, D]
    x = _deepseek4().joined(config, trained["stream_head"], x)
  params = trained.get("final_norm", {})  # A plain norm has none.
  return blocks.norm(config).apply({"params": params}, x)


def _init(config: TransformerConfig, key: jax.Array) -> PyTree:
  embed_key, layers_key, head_key = jax.random.split(key, 3)
  x = jnp.zeros((1, 1, config.width), config.dtype)
  ropes = _ropes(config, jnp.zeros((1, 1), jnp.int32))
  mask = jnp.ones((1, 1, 1), bool)
  attend: Callable = functools.partial(attention.plain, config, mask=mask)
  if config.indexer is not None:
    attend = _indexer().over_sequences(config, mask[0])
  if config.deepseek4 is not None:
    attend = _deepseek4().over_sequences(
      config, mask[0], jnp.zeros((1, 1), int)
    )
    x = jnp.repeat(x[..., None, :], config.deepseek4.num_streams, axis=-2)
  small = nn.initializers.normal(0.02)

  def stack(name, key):
    layers = config.layers_of(name)
    if len({*config.stacks}) > 1:
      key = jax.random.fold_in(key, layers[0])
    keys = jax.random.split(key, len(layers))
    of_block: Any = config.of_stack(name)
    block: Any = _block(of_block, name)
    if name == "linear_layers":
      block = Block(config, is_linear=True)
      recur = functools.partial(block.init, method="recur")
      return jax.vmap(lambda k: recur(k, x, mask[0], RouterInputs())["params"])(
        keys
      )
    inputs: Any = x, _rope_of(config, name, ropes, True), attend, RouterInputs()
    if config.gemma4 is not None:
      block, width = (
        _gemma4().Gemma4Block(of_block, name),
        config.gemma4.input_width,
      )
      room = _nothing_read(config, mask[0]).get(name.removeprefix("shared_"))
      before = room if name.startswith("shared_") else None
      extra = jnp.zeros((1, 1, width), config.dtype) if width else None
      inputs = *inputs, before, (extra, jnp.ones(1))
    return jax.vmap(lambda k: block.init(k, *inputs)["params"])(keys)

  trained = {
    "embed": {
      # Logits through a tied head then have unit size, and the embedding is
      # large enough beside the outputs of the blocks.
      "embedding": nn.initializers.normal(config.width**-0.5)(
        embed_key, (config.vocab_size, config.width), config.param_dtype
      )
    },
    **{name: stack(name, layers_key) for name in dict.fromkeys(config.stacks)},
  }
  if config.norm != "plain":
    trained["final_norm"] = blocks.norm(config).init(key, x)["params"]
  if config.learned_positions:
    shape = config.learned_positions, config.width
    places_key = jax.random.fold_in(embed_key, 1)
    places = small(places_key, shape, config.param_dtype)
    trained["places"] = {"embedding": places}
  if not config.tied_embeddings:
    trained["head"] = {
      "kernel": small(
        head_key, (config.width, config.vocab_size), config.param_dtype
      )
    }
  frozen = {}
  if config.gemma4 is not None:
    trained |= _gemma4().init_inputs(config, jax.random.fold_in(embed_key, 2))
    shape = config.num_layers, 1
    frozen["layer_scale"] = jnp.ones(shape, config.param_dtype)
  if config.router_bias:
    shape = (sum(_with_biases(config)), config.num_experts)
    frozen["router_bias"] = jnp.zeros(shape, jnp.float32)
  if config.deepseek4 is not None:
    key = jax.random.fold_in(embed_key, 3)
    trained["stream_head"], tables = _deepseek4().init(config, key, x)
    frozen |= tables
  if config.tower is not None:
    group = trained if config.tower_trained else frozen
    group[vision_inputs.TOWER] = vision_inputs.init(config, key)
  return {"trained": trained, "frozen": frozen}


def _layers_last(x):  # [layers, B, L, ...] -> [B, L, layers, ...]
  return jnp.moveaxis(x, 0, 2)


def _check_extras(config, extras):
  """Raises ValueError if the model does not take these extra inputs."""
  routing, mix = {"prompt_routing", "routing"}, {"mix_ids", "mix_weights"}
  chooses = config.num_experts > 0 or config.indexer is not None
  options = [set(), mix] + [routing, routing | mix] * chooses
  if any(_with_tables(config)):  # A mixture has no token id.
    options = [set(), routing]
  images = {"images"} if config.tower is not None else set()
  if set(extras or ()) - images not in options:
    raise ValueError(
      f"transformer: received the extra inputs {sorted(extras)}, but it reads"
      " tokens only, or what they are mixed of (mix_ids and mix_weights), with"
      " num_experts > 0 or an indexer also the choices to keep (prompt_routing"
      " and routing), and with a tower images. Where token ids choose experts"
      " (DeepSeek-V4) nothing can be mixed. Pass None, or use a model that"
      " takes them."
    )


def _prefix(config, params, prompt_tokens, prompt_mask, extras=None):
  """Keys and values of all but the last token of each prompt, or None.

  The last token is run with each row. That costs one token, and then every
  state that predicts a completion token is in one array. With images the result
  is a `vision_inputs.Shared`, which also has the vectors that the last token
  reads.
  """
  _check_extras(config, extras)
  images = (extras or {}).get("images")
  vision, last = None, jnp.zeros(())  # Without images `last` is not read.
  if images is not None:
    last = _embed(config, params["trained"], prompt_tokens[:, -1:])
    vision, _ = vision_inputs.of_prompts(
      config, params, prompt_tokens, prompt_mask, images, _remat
    )
  if prompt_tokens.shape[1] == 1 or not attention.continues(config):
    return None if vision is None else vision_inputs.shared(None, vision, last)
  choices = None
  if extras and "prompt_routing" in extras:
    choices = jnp.moveaxis(extras["prompt_routing"][:, :-1], 2, 0)
  _, kv, *_ = _forward(
    config,
    params,
    prompt_tokens[:, :-1],
    prompt_mask[:, :-1],
    hold=lambda k, v: (k, v),
    choices=choices,
    vision=vision and vision_inputs.some(vision, slice(-1)),
  )
  return kv if vision is None else vision_inputs.shared(kv, vision, last)


def _hidden(
  config,
  params,
  prompt_tokens,  # [P, S]
  prompt_mask,  # [P, S]
  tokens,  # [B, T]
  completion_mask,  # [B, T]
  prompt_index,  # [B]
  extras=None,
  prefix=None,
):
  _check_extras(config, extras)
  kv = prefix.kv if isinstance(prefix, vision_inputs.Shared) else prefix
  last = prompt_tokens.shape[1] - 1
  first = 0 if kv is None else last  # First of the slots that are run.

  def joined(of_prompts, of_rows):  # [B, S + T - 1, ...]
    if prefix is None:
      of_prompts = of_prompts[prompt_index]
    # The state after the last completion token is not needed.
    return jnp.concatenate([of_prompts, of_rows[:, :-1]], axis=1)

  choices = mix = None
  if extras and "routing" in extras:
    choices = joined(extras["prompt_routing"], extras["routing"])
    choices = jnp.moveaxis(choices[:, first:], 2, 0)  # [layers, B, L, k]
  if extras and "mix_ids" in extras:
    of_rows = extras["mix_ids"], extras["mix_weights"]  # [B, T, k] each.
    # A prompt is read as it is: all k ids are its token, and the first has
    # weight 1.
    as_it_is = (
      jnp.broadcast_to(x, (*prompt_tokens.shape, of_rows[0].shape[-1]))
      for x in (prompt_tokens[..., None], jnp.eye(1, of_rows[0].shape[-1])[0])
    )
    mix = tuple(
      joined(x, y)[:, first:] for x, y in zip(as_it_is, of_rows, strict=True)
    )
  read, vision = joined(prompt_tokens, tokens)[:, first:], None
  if extras and "images" in extras:
    vision = vision_inputs.of_rows(
      *(config, params, prompt_tokens, prompt_mask, prompt_index),
      *(read.shape[1], extras["images"], prefix, _remat),
    )
  x, _, *routing = _forward(
    config,
    params,
    read,
    joined(prompt_mask, completion_mask),
    choices=choices,
    prefix=kv,
    mix=mix,
    vision=vision,
  )
  routed, choice = jax.tree.map(
    lambda z: _layers_last(z)[:, last - first :], routing
  )
  aux = None
  if choice is not None:
    probs, ids = routed or (None, None)
    aux = RouterOutputs(probs, ids, choice.loss, choice.changed)
  elif routed is not None:
    aux = RouterOutputs(*routed)
  return _final_norm(config, params["trained"], x[:, last - first :]), aux


def _head(config, params, h):  # [..., D] -> [..., V]
  trained = params["trained"]
  if config.tied_embeddings:
    kernel = trained["embed"]["embedding"].T
  else:
    kernel = trained["head"]["kernel"]
  logits = blocks.projected(h, kernel.astype(config.dtype))
  if config.logit_scale != 1:
    logits = logits * config.logit_scale
  if config.final_softcap is not None:
    logits = attention.capped(logits, config.final_softcap)
  return logits


def _in_chunks(config, params, tokens, mask, hold):  # [P, S]
  """Runs `_forward` on chunks of `config.prefill_chunk` tokens.

  A prefill of 4 prompts of 2048 slots has 1121 MiB of temporaries in one piece,
  and 334 MiB in chunks of 512 (4 layers of width 512, plain attention, float32,
  compiled for a CPU).

  Returns:
    The residual stream of the last chunk; hold(keys, values) of all tokens,
    stacked over layers; the choices of all tokens, or None.

  Raises:
    ValueError: The form of attention cannot continue a prompt.
  """
  if not attention.continues(config):
    raise ValueError(
      f"model: prefill_chunk is {config.prefill_chunk}, and attention 'cudnn'"
      " reads prompts whole; set attention='plain', or prefill_chunk=0."
    )
  kv: Any = None
  choices: list[Any] = []
  for start in range(0, tokens.shape[1], config.prefill_chunk):
    end = start + config.prefill_chunk
    x, new, routed, choice = _forward(
      config,
      params,
      tokens[:, start:end],
      mask[:, :end],
      hold=lambda k, v: (k, v),
      prefix=kv,
    )
    if kv is not None:
      new = {
        name: new[name]
        if name == "linear_layers"
        else _concatenate(kv[name], new[name])
        for name in kv
      }
    kv = new
    choices.append(_record(config, routed, choice))
  routing = None
  if choices[0] is not None:
    routing = jnp.concatenate(choices, axis=2)
  of_stack = jax.vmap(lambda kv: hold(*kv))
  kv = {
    name: pair if pair is None or name == "linear_layers" else of_stack(pair)
    for name, pair in kv.items()
  }
  return x, kv, routing


def _record(config, routed, choice):
  """The choices of `_forward` as `_choices` returns them."""
  return _choices(
    config,
    None if routed is None else routed[1],
    None if choice is None else choice.ids,
  )


def _concatenate(kv, new):
  """Keys [layers, P, C, K, S] and values [layers, P, C, S, K], concatenated."""
  return kv and tuple(
    jax.tree.map(lambda *z, axis=axis: jnp.concatenate(z, axis), *pair)
    for axis, pair in zip((-1, -2), zip(kv, new, strict=True), strict=True)
  )


def _prefill(config, params, prompt_tokens, prompt_mask, images=None):  # [P, S]
  hold: Callable = functools.partial(attention.cache_of, config)
  if config.decode_attention == "paged":
    hold = functools.partial(paged.pages_of, config, prompt_mask)
  vision = end = None
  if images is not None:
    _check_extras(config, {"images": images})
    vision, end = vision_inputs.of_prompts(
      config, params, prompt_tokens, prompt_mask, images, _remat
    )
  if config.prefill_chunk and vision is None:
    x, kv, record = _in_chunks(config, params, prompt_tokens, prompt_mask, hold)
  else:
    x, kv, *routing = _forward(
      config, params, prompt_tokens, prompt_mask, hold=hold, vision=vision
    )
    record = _record(config, *routing)
  h = _final_norm(config, params["trained"], x[:, -1])  # [P, D]
  layers = _in_order(config, kv)
  prefix = Prefix(layers, prompt_mask, end)
  return h, prefix, None if record is None else _layers_last(record)


def _weights(config, params):
  """Parameters with a tree for each layer, and kernels in the model's dtype.

  Both are done once, before the decode loop. In the loop a slice of a stack is
  a copy: a step of 64 rows took 11.8 ms instead of 8.3 (4 layers, width 256, on
  a CPU). Kernels would be rounded in every step; and a mesh that gathers
  rounded kernels gathers half the bytes.
  """

  def rounded(path, leaf):
    *_, module, name = (str(getattr(key, "key", key)) for key in path)
    is_kernel = name in ("kernel", "embedding") or module == "experts"
    if module in ("router", "head_weights") or not is_kernel:
      return leaf  # Read as it is, at least in float32.
    return leaf.astype(config.dtype)

  params = vision_inputs.without_tower(params)
  trained = jax.tree_util.tree_map_with_path(rounded, params["trained"])
  layers = {name: trained.pop(name) for name in {*config.stacks}}
  return {**params, "trained": {**trained, "layers": _in_order(config, layers)}}


def _in_order(config, by_stack):
  """A tree for each layer, from a tree for each stack of layers by name."""
  return tuple(
    _layer(by_stack[name], config.stacks[:layer].count(name))
    for layer, name in enumerate(config.stacks)
  )


def _allocate(config, num_rows, num_slots, prefix=None):
  before = 0 if prefix is None else prefix.mask.shape[1]
  _check_length(config, before + num_slots)
  if config.decode_attention == "paged":
    return paged.allocate(num_rows, num_slots, prefix)

  def of_layer(layer):
    if config.keys_of(layer) != layer:
      return None
    if config.is_linear(layer):
      return delta.empty(config.delta, num_rows, config.dtype)
    of_block = config.of_stack(config.stacks[layer])
    heads, width = of_block.num_kv_heads, of_block.head_width
    keys = num_rows, heads, width, num_slots
    values: Any = num_rows, heads, num_slots, width
    if config.deepseek4 is not None:
      kind = config.deepseek4.kinds[layer]
      size = _deepseek4().width_of_features(config, kind)
      values = (num_rows, 1, num_slots, size) if size else None
    if config.latent_width:
      width = config.latent_width + config.turned_width
      keys, values = (num_rows, 1, width, num_slots), None
      if config.indexer is not None:
        values = num_rows, 1, num_slots, config.indexer.head_dim
    # Shapes only: else the compiler takes seconds to compute the scales of
    # zeros.
    shapes = jax.eval_shape(
      functools.partial(attention.cache_of, config),
      jax.ShapeDtypeStruct(keys, config.dtype),
      values and jax.ShapeDtypeStruct(values, config.dtype),
    )
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

  return tuple(map(of_layer, range(config.num_layers)))


def _admit(config, prefix, cache, num_rows):
  if config.decode_attention == "paged":
    return paged.admit(prefix, cache, num_rows)
  return cache


def _num_slots(config, cache):
  """Number of completion slots of the cache."""
  of_layer = cache[0 if config.delta is None else config.delta.period - 1]
  return jax.tree.leaves(of_layer)[0].shape[-1]


def _first_states(t, of_prompts, own):  # [B], states of P prompts and of B rows
  """States before tokens t: first tokens continue those of their prompts.

  So a row that takes the place of another one in the cache begins anew.
  """

  def select(first, own):
    first = jnp.repeat(first, len(t) // len(first), axis=0)
    return jnp.where(t.reshape(-1, *[1] * (own.ndim - 1)) <= 0, first, own)

  return jax.tree.map(select, of_prompts, own)


def _attends(config, positions, t, slot, prefix, cache) -> list[Any]:
  """A function for each layer: (q, k, v of a token) -> (attended, cache).

  For a layer with the delta rule it is the state that the token continues, and
  with an indexer the function is `indexer.cached`.
  """
  if config.decode_attention == "paged":
    length = prefix.mask.sum(axis=1)
    windows = None, config.sliding_window
    return [
      functools.partial(
        paged.attend,
        config,
        length,
        t,
        pages.shape[1],
        windows[config.slides(layer)],
        cache=cache[layer],
      )
      for layer, pages in enumerate(prefix.layers)
    ]
  num_slots = _num_slots(config, cache)
  share = len(t) // len(prefix.mask)
  of_prompt, prompt_mask = (
    jnp.repeat(x, share, axis=0) for x in (_positions(prefix.mask), prefix.mask)
  )  # [B, S]
  age = (slot - jnp.arange(num_slots)) % num_slots  # [T], in tokens.
  visible = jnp.concatenate([prompt_mask, age <= t[:, None]], axis=1)
  if config.indexer is not None:
    slots = (slot - t[:, None] + jnp.arange(num_slots)) % num_slots
    write = functools.partial(attention.in_slot, config, slot)
    of_layer = functools.partial(_indexer().cached, config)
    more = slots, visible[:, None]
    return _cached(of_layer, write, prefix, cache, *more)
  of_key = jnp.concatenate([of_prompt, positions - age], axis=1)  # [B, S + T]
  if config.deepseek4 is not None:
    where = _deepseek4().places(
      config, visible, visible[:, None], positions, of_key
    )
    write = functools.partial(attention.in_slot, config, slot)
    return _cached(_deepseek4().cached, write, prefix, cache, where)
  near, far = attention.views(
    config, visible[:, None], positions[:, :, None], of_key
  )
  return _attend_each(config, attention.ring, prefix, cache, t, slot, near, far)


def _attend_each(config, attend, prefix, cache, t, place, near, far):
  """The function `attend` of each layer; `near` and `far` are masks.

  That of a layer without keys of its own first takes the cache of the other.
  """
  calls = []
  for layer in range(config.num_layers):
    source, mask = config.keys_of(layer), near if config.slides(layer) else far
    read = config, prefix.layers[source]
    if config.is_linear(layer):
      calls.append(_first_states(t, prefix.layers[layer], cache[layer]))
    elif source != layer:
      calls.append(functools.partial(attention.of_another, *read, mask))
    else:
      calls.append(functools.partial(attend, *read, cache[layer], place, mask))
  return calls


def _cached(of_layer, write, prefix, cache, *more) -> list[Callable]:
  """`of_layer` for each layer; `write` writes to a layer's cache."""
  return [
    functools.partial(
      of_layer, of_prompts, functools.partial(write, own), *more
    )
    for of_prompts, own in zip(prefix.layers, cache, strict=True)
  ]


def _decode(config, weights, tokens, t, slot, prefix, cache, mix=None):
  trained = weights["trained"]
  length, end = _ends(prefix, len(tokens))
  positions = (length + t)[:, None]  # [B, 1]
  near, far = _ropes(config, (end + t)[:, None])
  attends = _attends(config, positions, t, slot, prefix, cache)
  if mix is not None:
    mix = tuple(x[:, None] for x in mix)  # [B, 1, k]
  x = _embed(config, trained, tokens[:, None], mix, positions)  # [B, 1, D]
  of_layers = _of_layers(config, weights, x, tokens[:, None], mix)
  inputs = None, (near, far), attends, of_layers
  x, cache, routing = _through(config, weights, tokens[:, None], x, *inputs)
  h = _final_norm(config, trained, x[:, 0])  # [B, D]
  return h, cache, None if routing is None else routing[:, 0]


def _ends(prefix, num_rows):
  """Numbers of prompt tokens [B], and positions of first completion tokens."""
  length = prefix.mask.sum(axis=1)
  end = length if prefix.end is None else prefix.end
  return (jnp.repeat(x, num_rows // len(length)) for x in (length, end))


def _through(config, weights, token_ids, x, mask, ropes, attends, of_layers):
  """Runs the layers on tokens x [B, L, D] that `attends` write to the cache.


  Slots without a token, if there is a mask [B, L], do not change states.

  Returns:
    The residual stream [B, L, D], the cache, and the choices [B, L, layers, k]
    of `_choices`, or None.
  """
  trained, (near, far) = weights["trained"], ropes
  layers: list[Any] = []
  experts: list[Any] = []
  tokens: list[Any] = []
  bias = weights["frozen"].get("router_bias")
  table, has_bias = (
    _of_table(weights["frozen"], token_ids),
    _with_biases(config),
  )
  for layer, (name, attend) in enumerate(
    zip(config.stacks, attends, strict=True)
  ):
    of_block = config.of_stack(name)
    rope = near if config.slides(layer) else far
    rope = rope if config.turns(layer) else _where(False, rope)
    if (source := config.keys_of(layer)) != layer:
      attend = functools.partial(attend, layers[source])
    router = _router(
      None,
      bias[sum(has_bias[:layer])]
      if bias is not None and has_bias[layer]
      else None,
      table[layer] if config.has_table(layer) else None,
    )
    block: Any = _block(of_block, name)
    inputs: Any = x, rope, attend, router
    method = "decode"
    if name == "linear_layers":
      block, method = Block(config, is_linear=True), "recur"
      exists = jnp.ones(x.shape[:2], bool) if mask is None else mask
      inputs = x, exists, router, attend
    if config.gemma4 is not None:
      block = _gemma4().Gemma4Block(of_block, name)
      inputs = *inputs, _layer(of_layers, layer)
    outputs: Any = block.apply(
      {"params": trained["layers"][layer]}, *inputs, method=method
    )
    x, extended, routed, *ids = outputs
    layers.append(extended)
    if routed is not None:
      experts.append(routed[1])  # [B, L, k]
    tokens += (z for z in ids if z is not None)  # [B, L, top_k]
  if not tokens:
    return x, tuple(layers), jnp.stack(experts, axis=2) if experts else None
  of_experts = jnp.stack(experts) if experts else None
  choices = _choices(config, of_experts, jnp.stack(tokens))
  return x, tuple(layers), _layers_last(choices)


def _extend(config, weights, tokens, t, count, prefix, cache):  # [B, L]
  if config.decode_attention == "paged":
    return _extend_paged(config, weights, tokens, t, count, prefix, cache)
  trained = weights["trained"]
  length, end = _ends(prefix, len(tokens))
  share = len(length) // len(prefix.mask)
  repeat = functools.partial(jnp.repeat, repeats=share, axis=0)
  num_slots = _num_slots(config, cache)
  offsets, slots = jnp.arange(tokens.shape[1]), jnp.arange(num_slots)
  length, place = length[:, None], t[:, None] + offsets  # [B, L]
  positions = length + place
  shape = *tokens.shape, prefix.mask.shape[1]
  of_prompt = jnp.broadcast_to(repeat(prefix.mask)[:, None], shape)
  visible = jnp.concatenate(
    [of_prompt, slots <= place[..., None]], axis=-1
  )  # [B, L, S + T]
  of_key = jnp.concatenate(
    [repeat(_positions(prefix.mask)), length + slots], axis=1
  )  # [B, S + T]
  near, far = attention.views(config, visible, positions[..., None], of_key)
  ropes = _ropes(config, end[:, None] + place)
  exists = offsets < count[:, None]
  place = jnp.where(exists, place, num_slots)
  attends = _attend_each(
    config, attention.in_places, prefix, cache, t, place, near, far
  )
  if config.deepseek4 is not None:
    holds = jnp.ones((len(tokens), num_slots), bool)
    holds = jnp.concatenate([repeat(prefix.mask), holds], axis=1)
    where = _deepseek4().places(config, holds, visible, positions, of_key)
    write = functools.partial(attention.in_own_slots, config, place)
    attends = _cached(_deepseek4().cached, write, prefix, cache, where)
  if config.indexer is not None:
    slots = jnp.broadcast_to(slots, (len(tokens), num_slots))
    write = functools.partial(attention.in_own_slots, config, place)
    of_layer = functools.partial(_indexer().cached, config)
    attends = _cached(of_layer, write, prefix, cache, slots, visible)
  x = _embed(config, trained, tokens, positions=positions)
  of_layers = _of_layers(config, weights, x, tokens)
  inputs = exists, ropes, attends, of_layers
  x, cache, routing = _through(config, weights, tokens, x, *inputs)
  last = jnp.maximum(count - 1, 0).reshape(-1, *[1] * (x.ndim - 1))
  h = jnp.take_along_axis(x, last, axis=1)[:, 0]
  return _final_norm(config, trained, h), cache, routing


def _extend_paged(config, weights, tokens, t, count, prefix, cache):
  """Extends token by token, because the kernel takes one query of each row."""

  def step(carry, inputs):
    cache, h = carry
    token, number = inputs
    exists = number < count
    # A token before the first slot is not written.
    place = jnp.where(exists, t + number, -1)
    new, cache, routing = _decode(
      config, weights, token, place, place, prefix, cache
    )
    return (cache, jnp.where(exists[:, None], new, h)), routing

  h = jnp.zeros((len(tokens), config.width), config.dtype)
  (cache, h), routing = lax.scan(
    step, (cache, h), (tokens.T, jnp.arange(tokens.shape[1]))
  )
  return h, cache, None if routing is None else jnp.swapaxes(routing, 0, 1)


def _layer(stacked, index):
  return jax.tree.map(lambda leaf: leaf[index], stacked)


def transformer_policy(config: TransformerConfig) -> Policy:
  """The functions of a transformer; see `Policy` for their contract.

  Args:
    config: Sizes and switches.

  Returns:
    A policy whose parameters are all trained, except for the biases of routers
    and a frozen tower. Layers are stacked: every leaf under "layers" has a
    leading axis of layers; and so under other stacks, such as "linear_layers".
    `hidden` takes in `extras` the embeddings that are mixed in the place of
    tokens, "mix_ids" and "mix_weights". With experts or indexers it returns
    `RouterOutputs`, and takes the choices to keep, "prompt_routing" and
    "routing". All are as in `Rollout`.
  """
  return Policy(
    init=functools.partial(_init, config),
    hidden=functools.partial(_hidden, config),
    prefix=functools.partial(_prefix, config),
    head=functools.partial(_head, config),
    prefill=functools.partial(_prefill, config),
    weights=functools.partial(_weights, config),
    allocate=functools.partial(_allocate, config),
    admit=functools.partial(_admit, config),
    decode=functools.partial(_decode, config),
    extend=functools.partial(_extend, config),
    embeddings=lambda params: params["trained"]["embed"]["embedding"],
    num_experts=config.num_experts,
    has_indexers=config.indexer is not None,
    has_states=config.delta is not None,
    only_head=() if config.tied_embeddings else ("head",),
  )

"""Images in the prompts of a transformer: features in the place of tokens.

A prompt has one placeholder token for each feature of its images, and the r-th
placeholder reads the r-th feature. The tower is run once for each prompt: by
`prefill` in sampling, and by `prefix` in the update. `hidden` runs the tower
only if rows are run whole without a prefix. Completions have no images: a
placeholder that the policy writes is a token like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.models.vision_parts import TowerOutputs
from grpo_jax.types import Images, PyTree

TOWER = "tower"  # Name of the tower among the parameters of a policy.

Remat = Callable[[TransformerConfig, Callable], Callable]


class Features(NamedTuple):
  """Features of images, which slots read instead of their tokens.

  Attributes:
    features: The R vectors of each row.
    which: Index of the vector that a slot reads; -1 where it reads its token.
    deep: Vectors that are added to the residual stream after the first layers,
      one array for each layer.
    positions: Time, row and column of each slot, with `rope_sections`; None if
      the position is the number of tokens before a slot.
  """

  features: jax.Array  # [B, R, D]
  which: jax.Array  # [B, L] int32
  deep: tuple[jax.Array, ...] = ()  # each [B, R, D]
  positions: jax.Array | None = None  # [3, B, L] int32


def init(config: TransformerConfig, key: jax.Array) -> PyTree:
  """Draws the parameters of the tower."""
  assert config.tower is not None
  own = jax.random.fold_in(key, 1)  # Other draws are as without a tower.
  from grpo_jax.models import vision_towers

  return vision_towers.init(config.tower, config.width, own, config.param_dtype)


def without_tower(params: PyTree) -> PyTree:
  """Parameters without the tower, for decoding: completions have no images."""
  return {
    group: {name: x for name, x in tree.items() if name != TOWER}
    for group, tree in params.items()
  }


def features(
  config: TransformerConfig,
  params: PyTree,
  images: Images,
  remat: Remat,
) -> TowerOutputs:  # of [P, R, D]
  """Outputs of the tower for the images of P prompts.

  Args:
    config: The model's config.
    params: The model's parameters.
    images: Images of the prompts.
    remat: (config, function of a layer) -> the function with checkpointing.
  """
  assert config.tower is not None
  group = "trained" if TOWER in params["trained"] else "frozen"
  from grpo_jax.models import vision_towers

  with jax.named_scope("tower"):
    return vision_towers.encode(
      config.tower,
      params[group][TOWER],
      images,
      config.dtype,
      functools.partial(remat, config),
    )


def index(
  config: TransformerConfig,
  tokens: jax.Array,  # [P, S]
  mask: jax.Array,  # [P, S]
  images: Images,
) -> jax.Array:  # [P, S] int32
  """Index of the feature that each slot of a prompt reads; -1 for its token.

  Placeholders beyond the last feature read their token.
  """
  assert config.tower is not None
  is_image = mask & (tokens == config.image_token)
  number = jnp.cumsum(is_image, axis=1, dtype=jnp.int32) - 1
  patches = (images.image >= 0).sum(axis=1, dtype=jnp.int32)  # [P]
  count = patches // config.tower.patches_per_token
  return jnp.where(is_image & (number < count[:, None]), number, -1)


def positions(
  config: TransformerConfig,
  mask: jax.Array,  # [P, S]
  which: jax.Array,  # [P, S] int32
  images: Images,
) -> tuple[jax.Array, jax.Array]:  # [3, P, S], [P]
  """Time, row and column of the slots of prompts, and the position after them.

  All three numbers of a text token are its position. An image has one position
  s: the time of its tokens is s, and their rows and columns are s plus the row
  and the column in the grid of its tokens. The next token has the position s
  plus the larger side of that grid. Without images all positions are the number
  of tokens before.

  Args:
    config: The model's config.
    mask: True on tokens.
    which: As `index` returns it.
    images: Images of the prompts.

  Returns:
    Time, row and column of each slot, 0 on padding; and the position of the
    first token of a completion.

  Source: Wang et al., "Qwen2-VL", arXiv:2409.12191, Section 2.1.
  """
  assert config.tower is not None
  is_image = which >= 0
  patch = jnp.maximum(which, 0) * config.tower.patches_per_token
  number = jnp.take_along_axis(images.image, patch, axis=1)  # [P, S]
  place = jnp.take_along_axis(images.place, patch[..., None], axis=1)
  place = jnp.moveaxis(place // config.tower.merge, -1, 0)  # [2, P, S]
  extent = images.grid.max(axis=-1) // config.tower.merge  # [P, M]
  spans = jnp.pad(jnp.cumsum(extent, axis=1), ((0, 0), (1, 0)))  # [P, M + 1]
  count = lax.cummax(jnp.where(is_image, number + 1, 0), axis=1)
  text = (mask & ~is_image).astype(jnp.int32)
  before = jnp.cumsum(text, axis=1) - text
  before += jnp.take_along_axis(spans, count - is_image, axis=1)
  within = jnp.pad(jnp.where(is_image, place, 0), ((1, 0), (0, 0), (0, 0)))
  end = (
    text.sum(axis=1) + jnp.take_along_axis(spans, count[:, -1:], axis=1)[:, 0]
  )
  return jnp.where(mask, before + within, 0), end


def of_prompts(
  config: TransformerConfig,
  params: PyTree,
  tokens: jax.Array,  # [P, S]
  mask: jax.Array,  # [P, S]
  images: Images,
  remat: Remat,
) -> tuple[Features, jax.Array | None]:
  """Features of prompts, and the positions of the first completion tokens.

  The positions are None if they are the numbers of prompt tokens. `remat` is as
  in `features`.
  """
  which = index(config, tokens, mask, images)
  of_slots = end = None
  if config.rope_sections:
    of_slots, end = positions(config, mask, which, images)
  outputs = features(config, params, images, remat)
  return Features(outputs.features, which, outputs.deep, of_slots), end


def some(vision: Features, part: slice) -> Features:
  """Takes a part of the slots."""
  of_slots = vision.positions
  if of_slots is not None:
    of_slots = of_slots[:, :, part]
  return vision._replace(which=vision.which[:, part], positions=of_slots)


def put(x: jax.Array, vision: Features | None) -> jax.Array:  # [B, L, D]
  """Replaces embeddings by features in the slots that read features."""
  if vision is None:
    return x
  place = jnp.maximum(vision.which, 0)[..., None]
  vectors = jnp.take_along_axis(vision.features, place, axis=1)
  return jnp.where(vision.which[..., None] >= 0, vectors.astype(x.dtype), x)


def add(x: jax.Array, vision: Features | None, layer: jax.Array) -> jax.Array:
  """Adds the deep features of a layer to the residual stream [B, L, D]."""
  if vision is None or not vision.deep:
    return x

  def added(number):
    vectors = jnp.stack(vision.deep)[number]
    return x + put(jnp.zeros_like(x), vision._replace(features=vectors))

  return lax.cond(layer < len(vision.deep), added, lambda _: x, layer)


class Shared(NamedTuple):
  """The prefix of prompts with images, which several rows share.

  Attributes:
    kv: Keys and values of all tokens but the last, each [layers, P, ...]; None
      if rows are run whole.
    vectors: The vectors that the last tokens read, [1, P, 1, D]; if rows are
      run whole, the features [1, P, R, D].
    deep: The deep features in the same form.
  """

  kv: Any
  vectors: jax.Array
  deep: tuple[jax.Array, ...] = ()


def shared(kv: Any, vision: Features, last: jax.Array) -> Shared:
  """Builds the prefix of prompts with images.

  Args:
    kv: As in `Shared`.
    vision: Features of the prompts.
    last: Embeddings [P, 1, D] of the prompts' last tokens.
  """
  if kv is None:
    return Shared(
      None, vision.features[None], tuple(deep[None] for deep in vision.deep)
    )
  end = some(vision, slice(-1, None))
  nothing = jnp.zeros_like(last)
  return Shared(
    kv,
    put(last, end)[None],
    tuple(put(nothing, end._replace(features=d))[None] for d in vision.deep),
  )


def of_rows(
  config: TransformerConfig,
  params: PyTree,
  prompt_tokens: jax.Array,  # [P, S]
  prompt_mask: jax.Array,  # [P, S]
  prompt_index: jax.Array,  # [B]
  num_slots: int,
  images: Images,
  prefix: Any,
  remat: Remat,
) -> Features:
  """Features of rows [B, L], which begin with a prompt or its last token.

  Args:
    config: The model's config.
    params: The model's parameters.
    prompt_tokens, prompt_mask, images: The prompts.
    prompt_index: Prompt of each row.
    num_slots: L.
    prefix: As `hidden` received it.
    remat: As in `features`.
  """
  own = index(config, prompt_tokens, prompt_mask, images)
  of_slots = None
  if config.rope_sections:
    of_slots, end = positions(config, prompt_mask, own, images)
  if isinstance(prefix, Shared):  # Row b continues prompt b.
    vectors = TowerOutputs(prefix.vectors[0], tuple(d[0] for d in prefix.deep))
  elif len(prompt_index) < len(prompt_tokens):  # Some prompts have no row here.
    images = jax.tree.map(lambda x: x[prompt_index], images)
    vectors = features(config, params, images, remat)
  else:
    vectors = features(config, params, images, remat)
    vectors = jax.tree.map(lambda x: x[prompt_index], vectors)
  if not isinstance(prefix, Shared):
    own = own[prompt_index]
    if of_slots is not None:
      of_slots, end = of_slots[:, prompt_index], end[prompt_index]
  if isinstance(prefix, Shared) and prefix.kv is not None:
    own = jnp.zeros((len(prompt_index), 1), jnp.int32)  # The last token's.
    of_slots = None if of_slots is None else of_slots[:, :, -1:]
  num_after = num_slots - own.shape[1]
  if of_slots is not None:
    after = jnp.broadcast_to(
      end[:, None] + jnp.arange(num_after), (3, len(end), num_after)
    )
    of_slots = jnp.concatenate([of_slots, after], axis=2)
  own = jnp.pad(own, ((0, 0), (0, num_after)), constant_values=-1)
  return Features(vectors.features, own, vectors.deep, of_slots)

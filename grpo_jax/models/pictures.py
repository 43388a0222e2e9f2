"""Images in the prompts of a transformer: features in the place of tokens.

A prompt has a placeholder token for each token's worth of its images, and the
r-th placeholder reads the r-th feature of its prompt. A tower is run once for
each prompt: in `prefill`, and in the update in `prefix`; only where rows are
run whole and without it, in `hidden`. Completions have no images: a placeholder
that the policy writes is a token like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.models import towers
from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.types import Images, PyTree

TOWER = "tower"  # Its name among the parameters of a policy.

Remat = Callable[[TransformerConfig, Callable], Callable]


class Seen(NamedTuple):
  """What is read in the place of some tokens.

  Attributes:
    features: Vectors of each row, R of them.
    which: Which of its vectors a slot reads; -1 where it reads its token.
  """

  features: jax.Array  # [B, R, D]
  which: jax.Array  # [B, L] int32


def init(config: TransformerConfig, key: jax.Array) -> PyTree:
  """Parameters of the tower; of a model without one, none."""
  assert config.tower is not None
  own = jax.random.fold_in(key, 1)  # Others draw as if there were no tower.
  return towers.init(config.tower, config.width, own, config.param_dtype)


def without_tower(params: PyTree) -> PyTree:
  """Parameters of what reads completions, which show nothing."""
  return {
    group: {name: x for name, x in tree.items() if name != TOWER}
    for group, tree in params.items()
  }


def features(
  config: TransformerConfig,
  params: PyTree,
  images: Images,
  remat: Remat,
) -> jax.Array:  # [P, R, D]
  """What the tower says of the images of P prompts.

  Args:
    config: Of the model.
    params: Its parameters.
    images: Of the prompts.
    remat: (config, function of a layer) -> the same with less kept of it.
  """
  assert config.tower is not None
  group = "trained" if TOWER in params["trained"] else "frozen"
  with jax.named_scope("tower"):
    return towers.encode(
      config.tower,
      params[group][TOWER],
      images,
      config.dtype,
      functools.partial(remat, config),
    ).features


def index(
  config: TransformerConfig,
  tokens: jax.Array,  # [P, S]
  mask: jax.Array,  # [P, S]
  images: Images,
) -> jax.Array:  # [P, S] int32
  """Which feature each slot of a prompt reads; -1 where it reads its token.

  Placeholders beyond the last merged patch read their token.
  """
  assert config.tower is not None
  is_one = mask & (tokens == config.image_token)
  number = jnp.cumsum(is_one, axis=1, dtype=jnp.int32) - 1
  patches = (images.image >= 0).sum(axis=1, dtype=jnp.int32)  # [P]
  count = patches // config.tower.patches_per_token
  return jnp.where(is_one & (number < count[:, None]), number, -1)


def of_prompts(
  config: TransformerConfig,
  params: PyTree,
  tokens: jax.Array,  # [P, S]
  mask: jax.Array,  # [P, S]
  images: Images,
  remat: Remat,
) -> Seen:
  """What prompts read; `remat` is as in `features`."""
  return Seen(
    features(config, params, images, remat), index(config, tokens, mask, images)
  )


def put(x: jax.Array, seen: Seen | None) -> jax.Array:  # [B, L, D]
  """Embeddings with features where some are read."""
  if seen is None:
    return x
  place = jnp.maximum(seen.which, 0)[..., None]
  taken = jnp.take_along_axis(seen.features, place, axis=1)
  return jnp.where(seen.which[..., None] >= 0, taken.astype(x.dtype), x)


class Shared(NamedTuple):
  """What rows read of a prompt with images that they share.

  Attributes:
    kv: Keys and values of all tokens but the last, each [layers, P, ...]; None
      where rows are run whole.
    vectors: What the last token reads, as the vector [1, P, 1, D]; of rows that
      are run whole, the features [1, P, R, D].
  """

  kv: Any
  vectors: jax.Array


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
) -> Seen:
  """What rows [B, L] read, that begin with a prompt or with its last token.

  Args:
    config: Of the model.
    params: Its parameters.
    prompt_tokens, prompt_mask, images: Of the prompts.
    prompt_index: Prompt of each row.
    num_slots: L.
    prefix: As `hidden` has got it.
    remat: As in `features`.
  """
  if isinstance(prefix, Shared) and prefix.kv is not None:
    row = jnp.full((len(prompt_index), num_slots), -1, jnp.int32)
    return Seen(prefix.vectors[0], row.at[:, 0].set(0))
  own = index(config, prompt_tokens, prompt_mask, images)
  if isinstance(prefix, Shared):
    vectors = prefix.vectors[0]
  elif len(prompt_index) < len(prompt_tokens):  # Some prompts have no row here.
    images = jax.tree.map(lambda x: x[prompt_index], images)
    vectors = features(config, params, images, remat)
    own = own[prompt_index]
  else:
    vectors = features(config, params, images, remat)[prompt_index]
    own = own[prompt_index]
  after = ((0, 0), (0, num_slots - own.shape[1]))
  return Seen(vectors, jnp.pad(own, after, constant_values=-1))

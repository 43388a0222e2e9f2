"""The tower of SigLIP in Idefics3 and SmolVLM, with their connector.

    x = W p + b + E[bucket]           of each patch p
    x = x + attention(norm(x)),  x = x + mlp(norm(x))        in each layer
    token = C concat(norm(x) of merge × merge neighbouring patches)

A table E of side × side learned positions is used for grids of any size: a
patch in row i of h rows takes row ⌊i · side / h⌋ of the table; columns are
alike.

Deviation: the published code computes that quotient in float32. If i · side / h
is whole but rounds down, a patch takes the row before. With grids of 1 to 64
rows and tables of 16, 24, 26, 27 or 32 rows this never happens.

Sources: Zhai et al., "Sigmoid Loss for Language Image Pre-Training",
arXiv:2303.15343; Laurençon et al., "Building and better understanding
vision-language models", arXiv:2408.12637, Section 3 (the pixel shuffle).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.models import vision_parts
from grpo_jax.models.architecture import TowerConfig
from grpo_jax.models.vision_parts import TowerOutputs
from grpo_jax.types import Images, PyTree


def init(
  tower: TowerConfig, width: int, key: jax.Array, param_dtype: str
) -> PyTree:
  """Draws parameters; see `vision_towers.init`."""
  patch_key, place_key, layers_key, connector_key = jax.random.split(key, 4)
  lecun = nn.initializers.lecun_normal()
  block = vision_parts.VisionBlock(tower, param_dtype, param_dtype)
  x = jnp.zeros((1, 1, tower.width), param_dtype)
  mask = jnp.ones((1, 1, 1), bool)
  layers = jax.vmap(lambda k: block.init(k, x, mask)["params"])(
    jax.random.split(layers_key, tower.num_layers)
  )
  ones = jnp.ones(tower.width, param_dtype)
  return {
    "patch": {
      "kernel": lecun(patch_key, (tower.patch_width, tower.width), param_dtype),
      "bias": jnp.zeros(tower.width, param_dtype),
    },
    "places": {
      "embedding": nn.initializers.normal(tower.width**-0.5)(
        place_key, (tower.side**2, tower.width), param_dtype
      )
    },
    "layers": layers,
    "final_norm": {"scale": ones, "bias": jnp.zeros_like(ones)},
    # Its outputs are as large as rows of the language model's embedding table.
    "connector": {
      "kernel": nn.initializers.normal(
        (width * tower.width * tower.patches_per_token) ** -0.5
      )(
        connector_key,
        (tower.width * tower.patches_per_token, width),
        param_dtype,
      )
    },
  }


def buckets(tower: TowerConfig, images: Images) -> jax.Array:  # [P, N] int32
  """Row of the table of positions for each patch; 0 in empty places."""
  image = jnp.maximum(images.image, 0)
  grid = jnp.take_along_axis(images.grid, image[..., None], axis=1)  # [P, N, 2]
  near = images.place * tower.side // jnp.maximum(grid, 1)
  bucket = near[..., 0] * tower.side + near[..., 1]
  return jnp.where(images.image >= 0, bucket, 0)


def encode(
  tower: TowerConfig,
  params: PyTree,
  images: Images,
  dtype: str,
  remat: Callable,
) -> TowerOutputs:
  """Runs the tower; see `vision_towers.encode`."""

  def linear(of, x):
    y = x.astype(dtype) @ of["kernel"].astype(dtype)
    return y + of["bias"].astype(dtype) if "bias" in of else y

  table = params["places"]["embedding"].astype(dtype)
  x = linear(params["patch"], images.patches) + table[buckets(tower, images)]
  mask = vision_parts.visible(images)
  param_dtype = str(table.dtype)
  block = vision_parts.VisionBlock(tower, dtype, param_dtype)

  def layer(x, of_layer):
    return block.apply({"params": of_layer}, x, mask), None

  x, _ = lax.scan(remat(layer), x, params["layers"])
  norm: Callable = functools.partial(
    vision_parts.LayerNorm(tower.norm_eps, dtype, param_dtype).apply,
    {"params": params["final_norm"]},
  )
  # The patches of a token are adjacent, row by row, so a reshape is enough.
  merged = norm(x).reshape(
    x.shape[0], -1, tower.patches_per_token * tower.width
  )
  return TowerOutputs(linear(params["connector"], merged))

"""The vision towers of Qwen2-VL, 2.5-VL and 3-VL, with their mergers.

    x = W p (+ b + learned position)  of each patch p
    x = x + attention(norm(x)),  x = x + mlp(norm(x))        in each layer
    token = down(gelu(up(concat(norm(x) of merge × merge neighbours))))

Patches see the patches of their own image; in most layers of Qwen2.5-VL only
those of their own window. The row of a patch turns one half of the pairs of
channels of queries and keys, and the column the other half. Qwen3-VL also adds
learned positions: the table belongs to the points of a grid, and a patch
interpolates between the four nearest points. Some middle layers of Qwen3-VL
give tokens too (DeepStack); their mergers apply the norm after the neighbours
are concatenated.

Scores of a layer are [P, H, N, N], even where windows hide most of them.

Sources: Wang et al., "Qwen2-VL", arXiv:2409.12191, Section 2.1; Bai et al.,
"Qwen2.5-VL Technical Report", arXiv:2502.13923, Section 2.1; Meng et al.,
"DeepStack: Deeply Stacking Visual Tokens is Surprisingly Simple and Effective
for LMMs", arXiv:2406.04334.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.models import blocks, vision_parts
from grpo_jax.models.architecture import TowerConfig
from grpo_jax.models.vision_parts import TowerOutputs
from grpo_jax.types import Images, PyTree

_THETA = 10_000.0  # Rotary base for rows and columns.


class Merger(nn.Module):
  """Makes a token of merge × merge neighbouring patches.

  The neighbours are concatenated after the norm, or with `norm_joined` before.
  """

  tower: TowerConfig
  width: int
  dtype: str
  param_dtype: str
  norm_joined: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [P, N, D] -> [P, R, width]
    dense = functools.partial(
      nn.Dense, dtype=self.dtype, param_dtype=self.param_dtype
    )
    norm = vision_parts.norm(
      self.tower, self.dtype, self.param_dtype, name="norm"
    )
    inner = self.tower.patches_per_token * self.tower.width
    shape = x.shape[0], -1, inner
    x = norm(x.reshape(shape)) if self.norm_joined else norm(x).reshape(shape)
    x = nn.gelu(dense(inner, name="up")(x), approximate=False)
    return dense(self.width, name="down")(x)


def init(
  tower: TowerConfig, width: int, key: jax.Array, param_dtype: str
) -> PyTree:
  """Draws parameters; see `vision_towers.init`."""
  patch_key, place_key, layers_key, merger_key, deep_key = jax.random.split(
    key, 5
  )
  lecun = nn.initializers.lecun_normal()
  block = vision_parts.VisionBlock(tower, param_dtype, param_dtype)
  merger = Merger(tower, width, param_dtype, param_dtype)
  x = jnp.zeros((1, tower.patches_per_token, tower.width), param_dtype)
  mask = jnp.ones((1, *x.shape[1:2] * 2), bool)
  params: dict[str, Any] = {
    "patch": {
      "kernel": lecun(patch_key, (tower.patch_width, tower.width), param_dtype)
    },
    "layers": jax.vmap(lambda k: block.init(k, x, mask)["params"])(
      jax.random.split(layers_key, tower.num_layers)
    ),
    "merger": merger.init(merger_key, x)["params"],
  }
  if tower.kind == "qwen3_vl":
    params["patch"]["bias"] = jnp.zeros(tower.width, param_dtype)
    params["places"] = {
      "embedding": nn.initializers.normal(tower.width**-0.5)(
        place_key, (tower.side**2, tower.width), param_dtype
      )
    }
  if tower.deep_layers:
    deep = merger.clone(norm_joined=True)
    params["deep"] = jax.vmap(lambda k: deep.init(k, x)["params"])(
      jax.random.split(deep_key, len(tower.deep_layers))
    )
  return params


def encode(
  tower: TowerConfig,
  params: PyTree,
  images: Images,
  dtype: str,
  remat: Callable,
) -> TowerOutputs:
  """Runs the tower; see `vision_towers.encode`."""
  kernel = params["patch"]["kernel"].astype(dtype)
  x = images.patches.astype(dtype) @ kernel
  if tower.kind == "qwen3_vl":
    x = x + params["patch"]["bias"].astype(dtype)
    x = x + places(tower, params["places"]["embedding"], images).astype(dtype)
  turn = functools.partial(_turned, _rope(tower, images.place, dtype))
  far = near = vision_parts.visible(images)
  if tower.window:
    near = far & _same(images.place // (tower.merge * tower.window))
  param_dtype = str(kernel.dtype)
  block: Any = vision_parts.VisionBlock(tower, dtype, param_dtype)

  def layer(carry, inputs):
    x, deep = carry
    of_layer, sees_all, is_deep = inputs
    mask = jnp.where(sees_all, far, near) if tower.window else far
    x = block.apply({"params": of_layer}, x, mask, turn)
    deep = jnp.where(is_deep[:, None, None, None], x, deep)
    return (x, deep), None

  layers = jnp.arange(tower.num_layers)
  sees_all, is_deep = (
    layers[:, None] == jnp.array(indices, jnp.int32)
    for indices in (tower.full_layers, tower.deep_layers)
  )  # [layers, …]
  deep = jnp.zeros((len(tower.deep_layers), *x.shape), x.dtype)
  (x, deep), _ = lax.scan(
    remat(layer), (x, deep), (params["layers"], sees_all.any(axis=1), is_deep)
  )
  width = params["merger"]["down"]["kernel"].shape[-1]
  merger: Any = Merger(tower, width, dtype, param_dtype)
  joined = merger.clone(norm_joined=True)

  def of_deep(params, x):
    return joined.apply({"params": params}, x)

  return TowerOutputs(
    merger.apply({"params": params["merger"]}, x),
    tuple(
      of_deep(jax.tree.map(lambda leaf, j=j: leaf[j], params["deep"]), deep[j])
      for j in range(len(deep))
    ),
  )


def _same(labels):  # [P, N, n] -> [P, N, N]
  return (labels[:, :, None] == labels[:, None]).all(axis=-1)


def _rope(tower, place, dtype):  # [P, N, 2] -> 2 · [P, N, K / 2]
  """Cosines and sines: the row's in the first half, then the column's."""
  dtype = jnp.promote_types(dtype, jnp.float32)
  quarter = tower.head_width // 4
  frequencies = _THETA ** (-jnp.arange(quarter, dtype=dtype) / quarter)
  angles = place[..., None].astype(dtype) * frequencies  # [P, N, 2, K / 4]
  angles = angles.reshape(*place.shape[:-1], 2 * quarter)
  return jnp.cos(angles), jnp.sin(angles)


def _turned(rope, x):  # [P, N, H, K]
  return blocks.rotate(x[..., None, :], rope)[..., 0, :]


def places(
  tower: TowerConfig,
  table: jax.Array,  # [side², D]
  images: Images,
) -> jax.Array:  # [P, N, D], at least float32
  """Learned positions of patches, interpolated in a grid of side × side.

  The corners of an image are the corners of the grid. An image of a single row
  or column has the first row or column of the grid.
  """
  image = jnp.maximum(images.image, 0)
  grid = jnp.take_along_axis(images.grid, image[..., None], axis=1)  # [P, N, 2]
  wide = jnp.promote_types(table.dtype, jnp.float32)
  at = images.place.astype(wide) * (tower.side - 1) / jnp.maximum(grid - 1, 1)
  first = jnp.floor(at)
  share = jnp.stack([1 - (at - first), at - first])  # [2, P, N, 2]
  near = first.astype(jnp.int32) + jnp.arange(2)[:, None, None, None]
  near = jnp.clip(near, 0, tower.side - 1)
  total = jnp.zeros((), wide)
  for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
    weight = share[down, ..., 0] * share[right, ..., 1]
    row = near[down, ..., 0] * tower.side + near[right, ..., 1]
    total = total + table[row].astype(wide) * weight[..., None]
  return total

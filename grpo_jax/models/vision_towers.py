"""Vision towers: features that a language model reads for image tokens.

| kind         | of                | file               |
|--------------|-------------------|--------------------|
| `siglip`     | Idefics3, SmolVLM | `vision_siglip.py` |
| `qwen2_vl`   | Qwen2-VL          | `vision_qwen.py`   |
| `qwen2_5_vl` | Qwen2.5-VL        | `vision_qwen.py`   |
| `qwen3_vl`   | Qwen3-VL          | `vision_qwen.py`   |

A tower is a function of the `Images` of P prompts. All images of a prompt are
in one row of patches, and a patch sees only patches of its own image. Patches
that become one token of the language model are adjacent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from grpo_jax.models import vision_qwen, vision_siglip
from grpo_jax.models.architecture import TowerConfig
from grpo_jax.models.vision_parts import TowerOutputs
from grpo_jax.types import Images, PyTree

_FAMILIES: dict[str, Any] = {
  "siglip": vision_siglip,
  "qwen2_vl": vision_qwen,
  "qwen2_5_vl": vision_qwen,
  "qwen3_vl": vision_qwen,
}


def init(
  tower: TowerConfig, width: int, key: jax.Array, param_dtype: str = "float32"
) -> PyTree:
  """Draws the parameters of a tower.

  Args:
    tower: The tower's sizes.
    width: Width of the language model.
    key: Random key.
    param_dtype: The dtype of the parameters.

  Returns:
    {"layers": leaves with a leading axis of layers, …}.
  """
  return _FAMILIES[tower.kind].init(tower, width, key, param_dtype)


def encode(
  tower: TowerConfig,
  params: PyTree,
  images: Images,
  dtype: str = "float32",
  remat: Callable[[Callable], Callable] = lambda layer: layer,
) -> TowerOutputs:
  """Runs a tower on the images of P prompts.

  Args:
    tower: The tower's sizes.
    params: The tower's parameters.
    images: Images of P prompts, with N places each, a multiple of merge².
    dtype: Dtype of activations; statistics of norms and softmax are at least
      float32.
    remat: A transformation of the function of a layer, such as
      `jax.checkpoint`.

  Raises:
    ValueError: The places do not split into tokens, or the patches do not have
      this tower's size.
  """
  num_places, num_values = images.patches.shape[-2:]
  if num_places % tower.patches_per_token:
    raise ValueError(
      f"vision_towers.encode: there are {num_places} places for patches, and a"
      f" token is made of {tower.patches_per_token}; set"
      " config.data.max_patches to a multiple."
    )
  if num_values != tower.patch_width:
    raise ValueError(
      f"vision_towers.encode: patches have {num_values} numbers, and this tower"
      f" reads {tower.channels} channels of {tower.frames} ×"
      f" {tower.patch_size} × {tower.patch_size} pixels,"
      f" {tower.patch_width} numbers; change patch_size of the tower, or the"
      " size of the patches."
    )
  return _FAMILIES[tower.kind].encode(tower, params, images, dtype, remat)

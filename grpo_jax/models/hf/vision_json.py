"""Keys of a config.json about images, and the fields that they make.

As `config_json.py`: a function takes out the keys that it reads. Towers are in
"vision_config", whose keys must all be known too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_jax.models.hf import config_json, family
from grpo_jax.models.hf.config_json import Keys
from grpo_jax.models.tower_parts import RANGES, TowerConfig

# Notes, and sizes of images, which the processor reads.
_IGNORED = family.IGNORED | {
  "max_image_size",
  "model_type",
  "size",
  "spatial_patch_size",
  "tie_word_embeddings",
  "tokens_per_second",
}
_QWEN = {
  "depth": "num_layers",
  "hidden_size": "width",
  "in_channels": "channels",
  "intermediate_size": "mlp_width",
  "num_heads": "num_heads",
  "patch_size": "patch_size",
  "spatial_merge_size": "merge",
  "temporal_patch_size": "frames",
}
_QWEN_DEFAULTS: Keys = {
  "in_channels": 3,
  "num_heads": 16,
  "spatial_merge_size": 2,
  "temporal_patch_size": 2,
}
_AXIAL: tuple = (
  None,
  {"rope_theta": 10_000.0, "rope_type": "axial"},
  {"rope_theta": 10_000, "rope_type": "axial"},
)


def turned_by_place(keys: Keys, default: tuple[int, ...]) -> dict[str, Any]:
  """Positions in three rows, of time, row and column, which share a head.

  Args:
    keys: Of the language model.
    default: Pairs of channels of each, where a file does not say it.
  """
  for key in ("rope_scaling", "rope_parameters"):
    found = keys.get(key)
    if not isinstance(found, Mapping):
      continue
    found = dict(found)
    if "mrope_section" in found:
      default = found.pop("mrope_section")
    # transformers decides it by the family.
    found.pop("mrope_interleaved", None)
    for name in ("type", "rope_type"):
      if found.get(name) == "mrope":
        found[name] = "default"
    keys[key] = found
  if (
    not isinstance(default, list | tuple)
    or len(default) != 3
    or not all(type(x) is int and x >= 0 for x in default)
  ):
    raise config_json.unsupported(
      "mrope_section", default, "a list of three numbers of pairs of channels"
    )
  return {**config_json.rope(keys), "rope_sections": tuple(default)}


def _tower(
  keys: Keys,
  kind: str,
  names: Mapping[str, str],
  defaults: Keys,
  supported: Mapping[str, tuple],
) -> tuple[dict[str, Any], Keys]:
  """Fields of a `TowerConfig`, and the keys of the tower that are left."""
  found = config_json.take(keys, "vision_config")
  if not isinstance(found, Mapping):
    raise config_json.unsupported("vision_config", found, "an object of keys")
  found = {**defaults, **found}
  fields: dict[str, Any] = {"kind": kind}
  for key, values in supported.items():
    if key in found and (value := found.pop(key)) not in values:
      raise config_json.unsupported(
        f"vision_config.{key}", value, config_json.listed(values)
      )
  for key, name in names.items():
    value = config_json.required(found, key)
    kinds = (int, float) if name == "norm_eps" else (int,)
    if type(value) not in kinds or value not in RANGES[name]:
      raise config_json.unsupported(
        f"vision_config.{key}", value, f"a number, {RANGES[name]}"
      )
    fields[name] = found.pop(key)
  return fields, {k: v for k, v in found.items() if k not in _IGNORED}


def _made(fields: dict[str, Any], left: Keys) -> dict[str, Any]:
  """The tower, if no key is left."""
  for key, value in left.items():
    raise config_json.unsupported(
      f"vision_config.{key}",
      value,
      "no such key: it may change what the tower computes",
    )
  try:
    return {"tower": TowerConfig(**fields)}
  except ValueError as error:
    raise ValueError(f"config.json: vision_config makes no {error}") from error


def _layers(key: str, value: Any) -> tuple[int, ...]:
  if not isinstance(value, list | tuple) or not all(
    type(x) is int and x >= 0 for x in value
  ):
    raise config_json.unsupported(key, value, "a list of layers, from 0")
  return tuple(value)


def _same_width(keys: Keys, left: Keys) -> None:
  """Features are as wide as the residual stream that reads them."""
  width = config_json.required(keys, "hidden_size")
  if (out := left.pop("out_hidden_size", width)) != width:
    raise config_json.unsupported(
      "vision_config.out_hidden_size", out, f"hidden_size, {width}"
    )


def qwen2_5_tower(keys: Keys) -> dict[str, Any]:
  """The tower of Qwen2.5-VL."""
  fields, left = _tower(
    keys,
    "qwen2_5_vl",
    _QWEN,
    {
      **_QWEN_DEFAULTS,
      "depth": 32,
      "fullatt_block_indexes": [7, 15, 23, 31],
      "hidden_size": 3584,
      "intermediate_size": 3420,
      "patch_size": 14,
      "window_size": 112,
    },
    {"hidden_act": ("silu",), "in_chans": (3,), "rope_parameters": _AXIAL},
  )
  _same_width(keys, left)
  size = left.pop("window_size")
  token = fields["patch_size"] * fields["merge"]
  if type(size) is not int or size // token not in RANGES["window"]:
    raise config_json.unsupported(
      "vision_config.window_size", size, "a number of pixels"
    )
  if size < token:
    raise config_json.unsupported(
      "vision_config.window_size", size, f"at least a token, {token} pixels"
    )
  key = "fullatt_block_indexes"
  full = _layers(f"vision_config.{key}", left.pop(key))
  # In any order, and also beyond the last one.
  full = tuple(sorted({x for x in full if x < fields["num_layers"]}))
  return _made({**fields, "window": size // token, "full_layers": full}, left)


def qwen3_tower(keys: Keys) -> dict[str, Any]:
  """The tower of Qwen3-VL."""
  fields, left = _tower(
    keys,
    "qwen3_vl",
    _QWEN,
    {
      **_QWEN_DEFAULTS,
      "deepstack_visual_indexes": [8, 16, 24],
      "depth": 27,
      "hidden_size": 1152,
      "intermediate_size": 4304,
      "num_position_embeddings": 2304,
      "patch_size": 16,
    },
    {"hidden_act": ("gelu_pytorch_tanh",), "rope_parameters": _AXIAL},
  )
  _same_width(keys, left)
  count = left.pop("num_position_embeddings")
  side = round(count**0.5) if type(count) is int and count > 0 else 0
  if side < 1 or side**2 != count:
    raise config_json.unsupported(
      "vision_config.num_position_embeddings", count, "the square of a number"
    )
  key = "deepstack_visual_indexes"
  deep = _layers(f"vision_config.{key}", left.pop(key))
  return _made({**fields, "side": side, "deep_layers": deep}, left)


def siglip_tower(keys: Keys) -> dict[str, Any]:
  """The tower of Idefics3 and SmolVLM."""
  fields, left = _tower(
    keys,
    "siglip",
    {
      "hidden_size": "width",
      "intermediate_size": "mlp_width",
      "layer_norm_eps": "norm_eps",
      "num_attention_heads": "num_heads",
      "num_channels": "channels",
      "num_hidden_layers": "num_layers",
      "patch_size": "patch_size",
    },
    {
      "hidden_size": 1152,
      "image_size": 224,
      "intermediate_size": 3072,
      "layer_norm_eps": 1e-6,
      "num_attention_heads": 16,
      "num_channels": 3,
      "num_hidden_layers": 12,
      "patch_size": 32,
    },
    {"hidden_act": ("gelu_pytorch_tanh",), "use_base_siglip": (False,)},
  )
  merge = config_json.take(keys, "scale_factor")
  size = left.pop("image_size")
  for key, value, name, number in (
    ("scale_factor", merge, "merge", merge),
    ("vision_config.image_size", size, "side", size),
  ):
    if type(number) is not int or number not in RANGES[name]:
      raise config_json.unsupported(key, value, f"a number, {RANGES[name]}")
  side = size // fields["patch_size"]
  return _made({**fields, "merge": merge, "side": side}, left)

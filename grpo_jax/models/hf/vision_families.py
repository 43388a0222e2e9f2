"""Families whose prompts may show images: Qwen2.5-VL, Qwen3-VL, Idefics3.

SmolVLM's files are those of Idefics3; `families.py` has the table. Videos have
no place here: their keys are read over, and their tokens are tokens as any.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from grpo_jax.models.hf import config_json, family, vision_json


def _within(
  tensors: Mapping[str, tuple[str, ...]], inner: str
) -> dict[str, tuple[str, ...]]:
  """The tensors of a language model that is a part of another model."""
  return {
    leaf: tuple(
      inner + name.removeprefix("model.") if name.startswith("model.") else name
      for name in names
    )
    for leaf, names in tensors.items()
  }


def _affine(leaf: str, name: str, kernel: bool = True) -> dict:
  """Kernel, or scale, and bias of a module."""
  weight = "kernel" if kernel else "scale"
  return {
    f"tower/{leaf}/{weight}": (f"{name}.weight",),
    f"tower/{leaf}/bias": (f"{name}.bias",),
  }


def _qwen_tower(prefix: str, names: Mapping[str, str]) -> dict:
  """Tensors of a tower of Qwen; `names` are those of leaves of each."""
  layer = prefix + "blocks.{layer}."
  tensors = {
    **_affine("patch", prefix + "patch_embed.proj"),
    **_affine("layers/attention/qkv", layer + "attn.qkv"),
    **_affine("layers/attention/out", layer + "attn.proj"),
    **_affine("layers/attention_norm", layer + "norm1", kernel=False),
    **_affine("layers/mlp_norm", layer + "norm2", kernel=False),
  }
  for leaf, name in names.items():
    is_kernel = not leaf.endswith("norm")
    tensors |= _affine(leaf, prefix + name, kernel=is_kernel)
  return tensors


_QWEN2_5_TOWER = _qwen_tower(
  "visual.",
  {
    **{
      f"layers/mlp/{name}": f"blocks.{{layer}}.mlp.{name}_proj"
      for name in ("gate", "up", "down")
    },
    "merger/norm": "merger.ln_q",
    "merger/up": "merger.mlp.0",
    "merger/down": "merger.mlp.2",
  },
)
_MERGER = {"norm": "norm", "up": "linear_fc1", "down": "linear_fc2"}
_QWEN3_TOWER = {
  **_qwen_tower(
    "model.visual.",
    {
      "layers/mlp/up": "blocks.{layer}.mlp.linear_fc1",
      "layers/mlp/down": "blocks.{layer}.mlp.linear_fc2",
      **{f"merger/{k}": f"merger.{v}" for k, v in _MERGER.items()},
      **{
        f"deep/{k}": f"deepstack_merger_list.{{layer}}.{v}"
        for k, v in _MERGER.items()
      },
    },
  ),
  "tower/places/embedding": ("model.visual.pos_embed.weight",),
}
_SIGLIP = "model.vision_model."
_SIGLIP_LAYER = _SIGLIP + "encoder.layers.{layer}."
_SIGLIP_TOWER = {
  **_affine("patch", _SIGLIP + "embeddings.patch_embedding"),
  **_affine("layers/attention_norm", _SIGLIP_LAYER + "layer_norm1", False),
  **_affine("layers/mlp_norm", _SIGLIP_LAYER + "layer_norm2", False),
  **_affine("layers/attention/out", _SIGLIP_LAYER + "self_attn.out_proj"),
  **_affine("layers/mlp/up", _SIGLIP_LAYER + "mlp.fc1"),
  **_affine("layers/mlp/down", _SIGLIP_LAYER + "mlp.fc2"),
  **_affine("final_norm", _SIGLIP + "post_layernorm", False),
  **{
    f"tower/layers/attention/qkv/{leaf}": tuple(
      f"{_SIGLIP_LAYER}self_attn.{name}_proj.{ending}" for name in "qkv"
    )
    for leaf, ending in (("kernel", "weight"), ("bias", "bias"))
  },
  "tower/places/embedding": (_SIGLIP + "embeddings.position_embedding.weight",),
  "tower/connector/kernel": (
    "model.connector.modality_projection.proj.weight",
  ),
}
_FIELDS = {**family.FIELDS, "image_token_id": "image_token"}
# Of tokens around images, and of videos, which nothing here reads.
_MARKS = {
  "video_token_id",
  "vision_end_token_id",
  "vision_start_token_id",
  "vision_token_id",
}

QWEN2_5_VL = family.Family(
  name="qwen2_5_vl",
  architecture="Qwen2_5_VLForConditionalGeneration",
  fixed={"qkv_bias": True},
  fields={key: name for key, name in _FIELDS.items() if key != "head_dim"},
  derived=(
    functools.partial(vision_json.turned_by_place, default=(16, 24, 24)),
    vision_json.qwen2_5_tower,
    config_json.qwen_window,
  ),
  defaults={
    **{key: x for key, x in family.DEFAULTS.items() if key != "head_dim"},
    **family.NO_WINDOW,
    "max_window_layers": 80,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
  },
  supported={**family.SUPPORTED, **family.SILU},
  ignored=family.IGNORED | _MARKS,
  nested=("qwen2_5_vl_text", None),
  tensors={**family.tensors(family.LLAMA_NORMS), **_QWEN2_5_TOWER},
)
QWEN3_VL = family.Family(
  name="qwen3_vl",
  architecture="Qwen3VLForConditionalGeneration",
  fixed={"qk_norm": "head", "rope_sections_mixed": True},
  fields=_FIELDS,
  derived=(
    functools.partial(vision_json.turned_by_place, default=(24, 20, 20)),
    vision_json.qwen3_tower,
  ),
  defaults={**family.DEFAULTS, "head_dim": 128, "rope_theta": 500_000.0},
  supported={**family.SUPPORTED, **family.SILU, **family.NO_BIAS},
  ignored=family.IGNORED | _MARKS,
  nested=("qwen3_vl_text",),
  tensors={
    **_within(family.tensors(family.LLAMA_NORMS), "model.language_model."),
    **_QWEN3_TOWER,
  },
)
IDEFICS3 = family.Family(
  name="idefics3",
  architecture="Idefics3ForConditionalGeneration",
  fields=_FIELDS,
  derived=(config_json.rope, vision_json.siglip_tower),
  defaults={
    **family.DEFAULTS,
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-5,
    "scale_factor": 2,
  },
  supported={
    **family.SUPPORTED,
    **family.SILU,
    **family.NO_BIAS,
    "is_llama_config": (True,),
    "mlp_bias": (False, None),
    "qk_layer_norms": (False,),
    "rope_interleaved": (False,),
    "use_resampler": (False,),
  },
  # Of the code that trained them; "scale_factor" is what counts.
  ignored=family.IGNORED
  | {
    "_flash_attn_2_enabled",
    "neftune_noise_alpha",
    "perceiver_config",
    "pixel_shuffle_factor",
    "pretraining_tp",
    "use_reentrant_checkpointing",
  },
  nested=("llama",),
  tensors={
    **_within(family.tensors(family.LLAMA_NORMS), "model.text_model."),
    **_SIGLIP_TOWER,
  },
)
SMOLVLM = dataclasses.replace(
  IDEFICS3, name="smolvlm", architecture="SmolVLMForConditionalGeneration"
)
